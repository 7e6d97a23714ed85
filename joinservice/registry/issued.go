package registry

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/hullmark/hullmark/joinservice"
)

// noteIssued lists a client certificate that was issued in its machine's record, if it is of the machine's present life.
func (a *Approver) noteIssued(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	certificate, err := parseIssued(csr.Status.Certificate)
	if err != nil {
		return nil // Nobody can show it.
	}
	for try := 1; ; try++ {
		known, err := a.look(ctx, csr)
		if err != nil {
			return err
		}
		fingerprint := fingerprintOf(certificate)
		if known.machine.Holds(fingerprint) || !presentLife(csr, certificate, known) {
			return nil
		}
		m, issued := known.machine, joinservice.Credential{Fingerprint: fingerprint, Ends: certificate.NotAfter}
		if a.Issuers != nil && a.Issuers() {
			issued.Issuer = joinservice.IssuerOf(certificate)
		}
		m.NoteCredential(issued, time.Now())
		_, err = a.Registry.Store(ctx, m, known.version)
		if !errors.Is(err, joinservice.ErrConflict) || try == noteTries {
			return err
		}
	}
}

// presentLife reports whether a certificate was asked for by what the machine was known by since its last token: the key that
// the token was used for, or a certificate that is listed. What a former life asked for is none, though the request may still
// be there.
func presentLife(csr *certificatesv1.CertificateSigningRequest, certificate *x509.Certificate, known facts) bool {
	who, m := requesterOf(csr), known.machine
	switch {
	case !known.recorded || certificate.Subject.CommonName != nodeUser+m.Name:
		return false
	case who.token != "":
		return m.FirstKey != "" && m.FirstKey == keyOf(certificate.RawSubjectPublicKeyInfo)
	}
	return who.name == m.Name && (m.RecognisedByName() || m.Holds(who.credential))
}

// parseIssued reads the first certificate that a signer wrote: the one that was asked for.
func parseIssued(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("issued certificate: want PEM, got %d bytes of another kind", len(text))
	}
	return x509.ParseCertificate(block.Bytes)
}

// fingerprintOf identifies a certificate as API servers do.
func fingerprintOf(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}
