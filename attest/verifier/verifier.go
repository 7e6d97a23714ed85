// Package verifier establishes who produced a machine's evidence and what it
// measured. It does not say whether that is accepted: package joinservice does.
// It never imports package prover, so that neither can lean on the other.
package verifier

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/pemcert"
)

// step names the part of a node's journey that this package's conditions belong to.
const step = "ATTEST"

// Anchor says which endorsement keys a verifier talks to. Each field that is set has to accept the key; with none set, no key is
// accepted.
type Anchor struct {
	// EKID accepts the one TPM of this identity.
	EKID *hullmark.EKID
	// Admits reports whether a membership rule admits a machine. It gets the certificate of the machine's EK, if it shows one, and
	// has to look itself who signed it.
	Admits func(node hullmark.EKID, ek *ekcert.Certificate) bool
	// Authorities are certificates, each trusted to sign EK certificates directly, and Roots such as are trusted to sign those of
	// the CAs that do: if there is any, one authority must have signed the EK's certificate, or it must lead to a root by the
	// certificates that the machine shows.
	Authorities, Roots []*x509.Certificate
}

// ParseAuthorities reads certificates in PEM, or one in DER, as makers of TPMs publish them.
func ParseAuthorities(data []byte) ([]*x509.Certificate, error) {
	certificates := [][]byte{data}
	if _, err := x509.ParseCertificate(data); err != nil {
		if certificates, err = pemcert.Split(data); err != nil {
			return nil, fmt.Errorf("EK authorities: %w", err)
		}
	}
	var authorities []*x509.Certificate
	for _, der := range certificates {
		authority, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("EK authorities: %w", err)
		}
		authorities = append(authorities, authority)
	}
	return authorities, nil
}

// Demands are what a verifier holds a machine's evidence to.
type Demands struct {
	// Roots are those that the machine's configuration may name: the present one, and those that have handed over to it. There
	// has to be one.
	Roots []hullmark.ClusterRoot
	// Anchor says which endorsement keys are accepted.
	Anchor Anchor
	// Platform returns what judges a machine's evidence of that kind, or nil if such evidence counts for nothing. The machine is
	// then judged as one that shows none. node is what the machine claims to be. It may be nil.
	Platform func(node hullmark.EKID, kind string) evidence.Platform
}

// Exchange is one machine's evidence while it is being gathered. Begin makes one; then Challenge and Verify are called, once each.
// Evidence is refused by a *hullmark.Condition; another error is the caller's fault, or that of its source of random bytes.
type Exchange struct {
	demands    Demands
	channelKey []byte
	hello      []byte
	message    *wire.Hello
	claims     attest.Claims
	ek, ak     *tpm2.TPMTPublic
	// akPublic is the AK's encoding.
	akPublic []byte
	secret   hullmark.Secret
}

// Begin does what needs no TPM: it holds Hello to the limits and to the anchor. channelKey is channel.Key's result for the
// channel on which hello, the bytes of Hello, arrived.
func Begin(hello, channelKey []byte, demands Demands) (*Exchange, error) {
	if len(demands.Roots) == 0 {
		return nil, errors.New("begin exchange: no cluster root is given that the machine's configuration could name")
	}
	message, err := wire.DecodeHello(hello)
	if err != nil {
		return nil, malformed("Hello", err)
	}
	if message.GetVersion() != attest.Version {
		return nil, &hullmark.Condition{
			Code: "version-unsupported", Step: step, Title: "the node speaks another version of the exchange",
			Expected: fmt.Sprint(attest.Version), Got: fmt.Sprint(message.GetVersion()),
			Next: "use a hullmark of the image's own release",
		}
	}
	e := &Exchange{demands: demands, channelKey: channelKey, hello: hello, message: message}
	if err := e.readKeys(message); err != nil {
		return nil, err
	}
	certificate, wrong := certificateOf(e.ek, message.GetEkCertificate())
	if e.claims.Certified, err = demands.Anchor.accept(e.claims.EKID, certificate, wrong); err != nil {
		return nil, err
	}
	e.claims.EKCertificate = certificate
	return e, e.readClaims(message)
}

// readKeys decodes both public keys, and accepts no EK but those of the TCG's templates.
func (e *Exchange) readKeys(message *wire.Hello) (err error) {
	e.akPublic = message.GetAkPublic()
	// Nearly every key is the prover's; to read any other, and to write it again to compare, takes longer than all but the cryptography.
	ak, ok := attest.ParseAK(e.akPublic)
	if e.ak = &ak; !ok {
		if e.ak, err = parsePublic(e.akPublic); err != nil {
			return malformed("attestation key", err)
		}
	}
	ek, _, ok := attest.ParseEK(message.GetEkPublic())
	if e.ek = &ek; !ok {
		if _, err := parsePublic(message.GetEkPublic()); err != nil {
			return malformed("endorsement key", err)
		}
		return &hullmark.Condition{
			Code: "ek-template", Step: step, Title: "the endorsement key is not one of the TCG's templates",
			Expected: "template L-1, L-2, H-1, H-2, H-3 or H-6", Got: "another public area", Next: "use a TPM that holds an endorsement key of such a template",
		}
	}
	e.claims.EKID = hullmark.EKIDOf(message.GetEkPublic())
	e.claims.Platform = hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}
	return nil
}

// readClaims decodes what the node says of its configuration and disk.
func (e *Exchange) readClaims(message *wire.Hello) (err error) {
	e.claims.NodeConfig = message.GetNodeConfig()
	if e.claims.Config, err = hullmark.ParseNodeConfig(message.GetNodeConfig()); err != nil {
		return malformed("node config", err)
	}
	if e.claims.Disk, err = message.GetDisk().DiskClaim(); err != nil {
		return malformed("disk", err)
	}
	return nil
}

// Node returns the identity that the machine claims; it is proven only once Verify succeeded.
func (e *Exchange) Node() hullmark.EKID { return e.claims.EKID }

// Challenge encrypts a new secret S to the EK, so that only the TPM which also
// holds the AK can read it. It returns a TPM2B_ID_OBJECT and a
// TPM2B_ENCRYPTED_SECRET. random is crypto/rand.Reader in all but tests.
func (e *Exchange) Challenge(random io.Reader) (credential, secret []byte, err error) {
	name, err := e.akName()
	if err != nil {
		return nil, nil, malformed("attestation key", err)
	}
	key, err := tpm2.ImportEncapsulationKey(e.ek)
	if err != nil {
		return nil, nil, malformed("endorsement key", err)
	}
	if e.secret, err = hullmark.RandomSecret(random, attest.SecretSize); err != nil {
		return nil, nil, fmt.Errorf("challenge: %w", err)
	}
	credential, secret, err = tpm2.CreateCredential(random, key, name, e.secret.Expose())
	if err != nil {
		return nil, nil, malformed("endorsement key", err)
	}
	return sized(credential), sized(secret), nil
}

// sized is a TPM2B of some bytes (TPM 2.0 Part 2 §10.4), of which there are less than 64 KiB here. tpm2.Marshal would look at
// each by reflection.
func sized(content []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(content))), content...)
}

// akName returns the AK's name: its name algorithm and the hash of its public area (TPM 2.0 Part 1 §16).
func (e *Exchange) akName() ([]byte, error) {
	if e.ak.NameAlg != tpm2.TPMAlgSHA256 {
		return nil, fmt.Errorf("name algorithm %#x, want SHA-256", e.ak.NameAlg)
	}
	hash := sha256.Sum256(e.akPublic) // the only encoding of it
	return append(binary.BigEndian.AppendUint16(nil, uint16(e.ak.NameAlg)), hash[:]...), nil
}

// Verify checks Proof against all that went before and returns what it proves.
func (e *Exchange) Verify(proof *wire.Proof) (attest.Claims, error) {
	secret := e.secret
	e.secret = hullmark.Secret{} // a second call fails
	defer secret.Wipe()
	binding, err := attest.Bind(e.channelKey, secret, e.hello)
	if err != nil {
		return attest.Claims{}, fmt.Errorf("verify: %w", err)
	}
	registers, err := attest.ParseRegisters(proof.GetPcrValues())
	if err != nil {
		return attest.Claims{}, malformed("Proof", err)
	}
	if err := checkQuote(e.ak, proof, binding, registers); err != nil {
		return attest.Claims{}, err
	}
	if err := e.checkOwnRegisters(&registers); err != nil {
		return attest.Claims{}, err
	}
	claims := e.claims
	claims.Registers = registers
	claims.EventLog = proof.GetEventLog()
	if err := e.verifyPlatform(&claims, proof, binding); err != nil {
		return attest.Claims{}, err
	}
	return claims, nil
}

// checkOwnRegisters holds the registers that the exchange itself uses to what Hello said.
func (e *Exchange) checkOwnRegisters(registers *attest.Registers) error {
	want := attest.Extended(hullmark.ConfigEvent(e.claims.NodeConfig))
	if got := registers[attest.ConfigRegister]; got != want {
		return &hullmark.Condition{
			Code: "config-mismatch", Step: step, Title: "PCR 8 does not hold the node config that the node shows",
			Expected: fmt.Sprintf("%x", want), Got: fmt.Sprintf("%x", got),
			Next: "reboot the node; if it happens again, its image does not measure its configuration",
		}
	}
	if !slices.Contains(e.demands.Roots, e.claims.Config.ClusterRoot) {
		return &hullmark.Condition{
			Code: "cluster-mismatch", Step: step, Title: "the node was configured for another cluster",
			Expected: e.demands.Roots[0].String(), Got: e.claims.Config.ClusterRoot.String(),
			Next: "boot the node with this cluster's root in its node config",
		}
	}
	if got := registers[attest.FuseRegister]; got != ([32]byte{}) {
		return &hullmark.Condition{
			Code: "fuse-blown", Step: step, Title: "the node already used a ticket in this boot: PCR 15 is not zero",
			Expected: "zero", Got: fmt.Sprintf("%x", got), Next: "reboot the node",
		}
	}
	return nil
}

// malformed is the condition of every message or key that cannot be read.
func malformed(what string, err error) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "message-malformed", Step: step, Title: what + ": " + err.Error(),
		Next: "check that the node boots a Hullmark image of the same release",
	}
}
