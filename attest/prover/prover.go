// Package prover produces evidence from a machine's TPM: its identity, the
// proof that its attestation key lives in the same TPM as its endorsement key,
// and quotes. It judges nothing; package verifier does, and never imports it.
package prover

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
)

const (
	// maxCertificate bounds what is read of an index with certificates, in bytes.
	maxCertificate = 8 << 10
	// quoteAttempts is how often a quote is tried when a register changes between reading and quoting.
	quoteAttempts = 3
)

// errRace says that registers kept changing under the quote.
var errRace = errors.New("registers changed between reading and quoting, three times")

// Identity is what a machine shows of its TPM, in the TPM's own encodings.
type Identity struct {
	// EKPublic is the endorsement key's TPMT_PUBLIC.
	EKPublic []byte
	// EKCertificate is the manufacturer's certificate of the EK in DER, with those of its chain behind it as far as the TPM has
	// them; nil where there is none.
	EKCertificate []byte
	// EKWrong says what keeps a certificate that the TPM has, or its chain, from being shown: the machine may do without. It is nil
	// if nothing does.
	EKWrong error
	// AKPublic is the attestation key's TPMT_PUBLIC.
	AKPublic []byte
}

// Evidence is a quote with what is needed to check it.
type Evidence struct {
	// Quoted is the TPMS_ATTEST that the TPM signed.
	Quoted []byte
	// Signature is the TPMT_SIGNATURE over Quoted.
	Signature []byte
	// Registers are the values that the quote covers.
	Registers attest.Registers
}

// Platform is a machine's evidence of what it runs on that does not depend on the exchange, as Hello has it.
type Platform struct {
	// Kind is the kind of evidence, such as hullmark.PlatformAzureSNP.
	Kind string
	// Report is what the platform wrote, and Quote what somebody outside of the machine signed over it.
	Report, Quote []byte
	// Certificates are those of the keys that signed, in DER.
	Certificates [][]byte
	// Prove makes the evidence that depends on the exchange; nil where there is none.
	Prove func(tpm transport.TPM, binding attest.Binding) ([]byte, error)
}

// FirstOf gathers the evidence of the first kind that a machine has any of; nil without any. What one kind lacks is an error only
// where no other has something.
func FirstOf(kinds ...func(context.Context, transport.TPM) (*Platform, error)) func(context.Context, transport.TPM) (*Platform, error) {
	return func(ctx context.Context, tpm transport.TPM) (*Platform, error) {
		var failed error
		for _, gather := range kinds {
			p, err := gather(ctx, tpm)
			if err == nil && p != nil {
				return p, nil
			}
			failed = errors.Join(failed, err)
		}
		return nil, failed
	}
}

// Prover holds the two keys of an exchange. It is not safe for concurrent use.
type Prover struct {
	tpm      transport.TPM
	ek, ak   tpm2.NamedHandle
	template attest.EKTemplate
	identity Identity
	flush    []tpm2.TPMHandle
}

// Open finds or makes an endorsement key, and makes an attestation key. Of several endorsement keys it takes the one that owner is the
// identity of, the owner of the machine's disk or zero, so that a machine stays who it was; a TPM that has none of that identity shows
// the first that is certified, in the order of attest.EKTemplates, or the default one. The caller closes the prover, then the TPM.
func Open(tpm transport.TPM, owner hullmark.EKID) (*Prover, error) {
	p := &Prover{tpm: tpm}
	if err := p.open(owner); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Prover) open(owner hullmark.EKID) error {
	ek, err := choose(p.tpm, owner)
	if err != nil {
		return fmt.Errorf("prover: endorsement key: %w", err)
	}
	p.ek, p.template = ek.key, ek.template
	if ek.made {
		p.flush = append(p.flush, ek.key.Handle)
	}
	p.identity.EKPublic = ek.public
	p.identity.EKCertificate, p.identity.EKWrong = readCertificate(p.tpm, ek.template)
	if p.identity.AKPublic, err = p.createAK(); err != nil {
		return fmt.Errorf("prover: attestation key: %w", err)
	}
	return nil
}

// Node returns the identity of the machine with that TPM, before anybody knows whose disk it has.
func Node(tpm transport.TPM) (hullmark.EKID, error) {
	ek, err := choose(tpm, hullmark.EKID{})
	if err == nil {
		err = ek.unload(tpm)
	}
	if err != nil {
		return hullmark.EKID{}, fmt.Errorf("prover: endorsement key: %w", err)
	}
	return hullmark.EKIDOf(ek.public), nil
}

// createAK makes the attestation key, notes that it has to be flushed, and returns its TPMT_PUBLIC.
func (p *Prover) createAK() ([]byte, error) {
	made, err := createPrimary(p.tpm, tpm2.TPMRHOwner, attest.AKTemplate())
	if err != nil {
		return nil, err
	}
	p.flush = append(p.flush, made.ObjectHandle)
	p.ak = tpm2.NamedHandle{Handle: made.ObjectHandle, Name: made.Name}
	public, err := made.OutPublic.Contents()
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	return tpm2.Marshal(public), nil
}

// createPrimary makes a primary key of a hierarchy without a password.
func createPrimary(tpm transport.TPM, hierarchy tpm2.TPMHandle, template tpm2.TPMTPublic) (*tpm2.CreatePrimaryResponse, error) {
	made, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: hierarchy, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(template),
	}.Execute(tpm)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	return made, nil
}

// Identity returns the public halves of both keys.
func (p *Prover) Identity() Identity { return p.identity }

// Node returns the machine's identity.
func (p *Prover) Node() hullmark.EKID { return hullmark.EKIDOf(p.identity.EKPublic) }

// Close frees the TPM's memory. It is safe to call more than once.
func (p *Prover) Close() error {
	var errs []error
	for _, handle := range p.flush {
		if _, err := (tpm2.FlushContext{FlushHandle: handle}).Execute(p.tpm); err != nil {
			errs = append(errs, fmt.Errorf("prover: flush %#x: %w", uint32(handle), err))
		}
	}
	p.flush = nil
	return errors.Join(errs...)
}

// Activate decrypts a challenge's secret S. The TPM does so only if it holds
// both the EK that the challenge was encrypted to and the AK that it names
// (TPM 2.0 Part 3 §12.5). credential is a TPM2B_ID_OBJECT and secret a
// TPM2B_ENCRYPTED_SECRET.
func (p *Prover) Activate(credential, secret []byte) (hullmark.Secret, error) {
	blob, err := tpm2.Unmarshal[tpm2.TPM2BIDObject](credential)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("activate: credential: %w", err)
	}
	seed, err := tpm2.Unmarshal[tpm2.TPM2BEncryptedSecret](secret)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("activate: secret: %w", err)
	}
	activated, err := tpm2.ActivateCredential{
		ActivateHandle: tpm2.AuthHandle{Handle: p.ak.Handle, Name: p.ak.Name, Auth: tpm2.PasswordAuth(nil)},
		KeyHandle:      tpm2.AuthHandle{Handle: p.ek.Handle, Name: p.ek.Name, Auth: tpm2.Policy(p.template.HashAlg, 16, p.endorsementPolicy)},
		CredentialBlob: *blob,
		Secret:         *seed,
	}.Execute(p.tpm)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("activate: %w", err)
	}
	return hullmark.NewSecret(activated.CertInfo.Buffer), nil
}

// endorsementPolicy satisfies the endorsement key's policy. The password of a key of the high range is empty, too, but a TPM that lost
// power often would not take it: dictionary attacks are what it fears then.
func (p *Prover) endorsementPolicy(tpm transport.TPM, session tpm2.TPMISHPolicy, nonce tpm2.TPM2BNonce) error {
	_, err := tpm2.PolicySecret{
		AuthHandle:    tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
		PolicySession: session,
		NonceTPM:      nonce,
	}.Execute(tpm)
	if err != nil || len(p.template.Branches.Digests) == 0 {
		return err
	}
	_, err = tpm2.PolicyOr{PolicySession: session, PHashList: p.template.Branches}.Execute(tpm)
	return err
}

// Prove quotes the registers with binding as extraData. Registers are read
// first and the quote's digest compared with them; if one changed in between,
// both are repeated.
func (p *Prover) Prove(binding attest.Binding) (Evidence, error) {
	for range quoteAttempts {
		registers, err := ReadRegisters(p.tpm)
		if err != nil {
			return Evidence{}, fmt.Errorf("prove: %w", err)
		}
		evidence, digest, err := Quote(p.tpm, p.ak, binding)
		if err != nil {
			return Evidence{}, fmt.Errorf("prove: %w", err)
		}
		if want := registers.Digest(); bytes.Equal(digest, want[:]) {
			evidence.Registers = registers
			return evidence, nil
		}
	}
	return Evidence{}, fmt.Errorf("prove: %w", errRace)
}

// Quote returns a quote that a key without a password signs, without its registers, and the digest of registers that it states.
func Quote(tpm transport.TPM, key tpm2.NamedHandle, binding attest.Binding) (Evidence, []byte, error) {
	quoted, err := tpm2.Quote{
		SignHandle:     tpm2.AuthHandle{Handle: key.Handle, Name: key.Name, Auth: tpm2.PasswordAuth(nil)},
		QualifyingData: tpm2.TPM2BData{Buffer: binding[:]},
		InScheme:       tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgNull},
		PCRSelect:      attest.Selection(),
	}.Execute(tpm)
	if err != nil {
		return Evidence{}, nil, fmt.Errorf("quote: %w", err)
	}
	statement, err := quoted.Quoted.Contents()
	if err != nil {
		return Evidence{}, nil, fmt.Errorf("quote: %w", err)
	}
	info, err := statement.Attested.Quote()
	if err != nil {
		return Evidence{}, nil, fmt.Errorf("quote: %w", err)
	}
	return Evidence{Quoted: quoted.Quoted.Bytes(), Signature: tpm2.Marshal(quoted.Signature)}, info.PCRDigest.Buffer, nil
}
