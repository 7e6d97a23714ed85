package prover

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/ekcert"
)

// firstChainIndex and lastChainIndex are where makers keep the certificates of their CAs (TCG EK Credential Profile 2.5 §2.2.1.5.2).
const firstChainIndex, lastChainIndex tpm2.TPMHandle = 0x01c00100, 0x01c001ff

// EK is an endorsement key of a TPM.
type EK struct {
	// Template is the one by which it is made.
	Template attest.EKTemplate
	// Public is the key's TPMT_PUBLIC.
	Public []byte
	// Certificate is what the TPM has of certificates: the key's in DER, and those of its chain behind it; nil without any.
	Certificate []byte
	// Wrong says what keeps a certificate that the TPM has, or its chain, from being shown; nil if nothing does.
	Wrong error
}

// EKs lists the endorsement keys of a TPM for which it has a certificate, or the default one if it has none, in the order in which
// Open prefers them.
func EKs(tpm transport.TPM) (keys []EK, err error) {
	templates, err := certified(tpm)
	if err != nil {
		return nil, fmt.Errorf("endorsement keys: %w", err)
	}
	for _, t := range templates {
		key, err := load(tpm, t)
		if err != nil {
			return nil, fmt.Errorf("endorsement key %s: %w", t.Name, err)
		}
		if err := key.unload(tpm); err != nil {
			return nil, fmt.Errorf("endorsement key %s: %w", t.Name, err)
		}
		ek := EK{Template: t, Public: key.public}
		ek.Certificate, ek.Wrong = readCertificate(tpm, t)
		keys = append(keys, ek)
	}
	return keys, nil
}

// certified returns the templates for which the TPM has a certificate, or the default one. It goes by the indexes alone, not by what
// they hold, so that a machine's identity does not hang on that.
func certified(tpm transport.TPM) (templates []attest.EKTemplate, err error) {
	for _, t := range attest.EKTemplates() {
		_, err := tpm2.NVReadPublic{NVIndex: t.Certificate}.Execute(tpm)
		switch {
		case err == nil:
			templates = append(templates, t)
		case !errors.Is(err, tpm2.TPMRCHandle):
			return nil, err
		}
	}
	if len(templates) == 0 {
		templates = attest.EKTemplates()[:1]
	}
	return templates, nil
}

// loaded is an endorsement key that the TPM holds.
type loaded struct {
	template attest.EKTemplate
	key      tpm2.NamedHandle
	public   []byte
	// made says that it has to be flushed.
	made bool
}

func (l *loaded) unload(tpm transport.TPM) error {
	if !l.made {
		return nil
	}
	_, err := tpm2.FlushContext{FlushHandle: l.key.Handle}.Execute(tpm)
	return err
}

// load uses the manufacturer's persistent key if it is the template's, and otherwise makes that key, which takes a TPM up to some
// seconds.
func load(tpm transport.TPM, t attest.EKTemplate) (*loaded, error) {
	found, err := tpm2.ReadPublic{ObjectHandle: t.Handle}.Execute(tpm)
	if err == nil {
		public, err := found.OutPublic.Contents()
		if err != nil {
			return nil, err
		}
		if encoded, ok := t.Encode(public); ok {
			return &loaded{template: t, key: tpm2.NamedHandle{Handle: t.Handle, Name: found.Name}, public: encoded}, nil
		}
	}
	made, err := createPrimary(tpm, tpm2.TPMRHEndorsement, t.Public())
	if err != nil {
		return nil, err
	}
	l := &loaded{template: t, key: tpm2.NamedHandle{Handle: made.ObjectHandle, Name: made.Name}, made: true}
	public, err := made.OutPublic.Contents()
	if err == nil {
		var ok bool
		if l.public, ok = t.Encode(public); !ok {
			err = errors.New("the TPM made another key than it was told to")
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.unload(tpm))
	}
	return l, nil
}

// choose loads the endorsement key that owner is the identity of, if the TPM has that, and otherwise the first that is certified.
func choose(tpm transport.TPM, owner hullmark.EKID) (*loaded, error) {
	templates, err := certified(tpm)
	if err != nil {
		return nil, err
	}
	first, err := load(tpm, templates[0])
	if err != nil || owner == (hullmark.EKID{}) || hullmark.EKIDOf(first.public) == owner {
		return first, err
	}
	others := templates[1:]
	if standard := attest.EKTemplates()[0]; templates[0].Name != standard.Name {
		others = append(slices.Clone(others), standard) // It showed that one before its certificates were looked for.
	}
	for _, t := range others {
		other, err := load(tpm, t)
		if err != nil {
			continue // It is not what the machine shows if this fails: the first is.
		}
		if hullmark.EKIDOf(other.public) == owner {
			return other, first.unload(tpm)
		}
		if err := other.unload(tpm); err != nil {
			return nil, errors.Join(err, first.unload(tpm))
		}
	}
	return first, nil
}

// readCertificate reads the certificate of a template's key, and the chain behind it. Of several keys, all have one chain; what
// of it does not belong to a key is of no use to it, and does no harm.
func readCertificate(tpm transport.TPM, t attest.EKTemplate) ([]byte, error) {
	content, err := ReadIndex(tpm, t.Certificate, maxCertificate)
	if err != nil || content == nil {
		return nil, wrap("certificate", err)
	}
	certificate, err := ekcert.FromIndex(content)
	if err != nil {
		return nil, wrap("certificate", err)
	}
	chain, err := readChain(tpm)
	if err != nil {
		return certificate, wrap("certificates of its maker's CAs", err)
	}
	if len(certificate)+len(chain) > ekcert.MaxShown {
		return certificate, fmt.Errorf("certificates of its maker's CAs: %d bytes, with its own at most %d are shown", len(chain), ekcert.MaxShown)
	}
	return append(certificate[:len(certificate):len(certificate)], chain...), nil
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// readChain reads the certificates of the maker's CAs.
func readChain(tpm transport.TPM) ([]byte, error) {
	var content []byte
	for index := firstChainIndex; index <= lastChainIndex; index++ {
		piece, err := ReadIndex(tpm, index, maxCertificate)
		if err != nil {
			return nil, err
		}
		if piece == nil {
			break
		}
		if content = append(content, piece...); len(content) > 2*maxCertificate {
			return nil, fmt.Errorf("more than %d bytes", 2*maxCertificate)
		}
	}
	return ekcert.ChainFromIndexes(content)
}
