package channel

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
)

// NewCrossCertificate returns the certificate by which a root hands its cluster over to another root's key.
func NewCrossCertificate(from *x509.Certificate, fromKey crypto.Signer, to crypto.PublicKey) (*x509.Certificate, error) {
	return sign(rootTemplate(), from, to, fromKey)
}

// WithCrossCertificates returns an operator's or a service's certificate whose chain goes on with the cross-certificates that
// lead to its root, in DER.
func WithCrossCertificates(certificate tls.Certificate, crossCertificates [][]byte) tls.Certificate {
	certificate.Certificate = slices.Concat(certificate.Certificate, crossCertificates)
	return certificate
}

// Roots reads the cross-certificates that lead to a root: the newest first, each followed by the certificate of the root that made it.
// It returns the roots, that root first: whoever pins one of them obeys it. All of them have to be whole.
func Roots(root hullmark.ClusterRoot, crossCertificates []*x509.Certificate) ([]hullmark.ClusterRoot, error) {
	if len(crossCertificates)%2 != 0 || len(crossCertificates) > 2*hullmark.MaxCrossCertificates {
		return nil, fmt.Errorf("cross-certificates: %d certificates, want two for each, and at most %d cross-certificates", len(crossCertificates), hullmark.MaxCrossCertificates)
	}
	roots := []hullmark.ClusterRoot{root}
	for pair := range slices.Chunk(crossCertificates, 2) {
		if err := checkCrossCertificate(roots[len(roots)-1], pair[0], pair[1]); err != nil {
			return nil, fmt.Errorf("cross-certificate to root %s: %w", roots[len(roots)-1], err)
		}
		earlier := hullmark.ClusterRootOf(pair[1].RawSubjectPublicKeyInfo)
		if slices.Contains(roots, earlier) {
			return nil, fmt.Errorf("cross-certificates: root %s comes twice", earlier)
		}
		roots = append(roots, earlier)
	}
	return roots, nil
}

// ParseRoots is Roots for cross-certificates in DER, as a policy has them.
func ParseRoots(root hullmark.ClusterRoot, crossCertificates [][]byte) ([]hullmark.ClusterRoot, error) {
	var certificates []*x509.Certificate
	for _, der := range crossCertificates {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("cross-certificates: %w", err)
		}
		certificates = append(certificates, certificate)
	}
	return Roots(root, certificates)
}

// checkCrossCertificate holds a cross-certificate to the shape of a root's certificate: it has no path length, and an online
// CA's has one, so that neither passes for the other.
func checkCrossCertificate(to hullmark.ClusterRoot, crossCertificate, from *x509.Certificate) error {
	switch {
	case hullmark.ClusterRootOf(crossCertificate.RawSubjectPublicKeyInfo) != to:
		return errors.New("it is for another key")
	case !crossCertificate.IsCA || crossCertificate.MaxPathLen != -1 || !bytes.Equal(crossCertificate.RawSubject, from.RawSubject):
		return errors.New("it is no root's certificate")
	case len(crossCertificate.UnhandledCriticalExtensions) > 0:
		return fmt.Errorf("unknown critical extension %s", crossCertificate.UnhandledCriticalExtensions[0])
	}
	return crossCertificate.CheckSignatureFrom(from)
}

func isP256(key crypto.PublicKey) bool {
	k, ok := key.(*ecdsa.PublicKey)
	return ok && k.Curve == elliptic.P256()
}

// OtherRoot says that a chain is whole, but neither the pinned root nor one to which that has handed over is its root.
type OtherRoot struct {
	// Pinned is the root that the node's configuration names, Shown that of the chain.
	Pinned, Shown hullmark.ClusterRoot
}

// Error names both.
func (e *OtherRoot) Error() string {
	return fmt.Sprintf("cluster root: want %s, got %s, to which it has not handed over", e.Pinned, e.Shown)
}

// checkRoots holds the end of a chain, a root and the cross-certificates that lead to it, to the pinned root.
func checkRoots(chain []*x509.Certificate, pinned hullmark.ClusterRoot) error {
	roots, err := Roots(hullmark.ClusterRootOf(chain[0].RawSubjectPublicKeyInfo), chain[1:])
	if err != nil {
		return err
	}
	if !slices.Contains(roots, pinned) {
		return &OtherRoot{Pinned: pinned, Shown: roots[0]}
	}
	return nil
}

// checkShape wants so many certificates up to the root, and two more for each cross-certificate. All keys are P-256, as those that
// Hullmark makes: what others cost is not for an unauthenticated peer to choose.
func checkShape(chain []*x509.Certificate, toRoot int, what string) error {
	if more := len(chain) - toRoot; more < 0 || more%2 != 0 || more > 2*hullmark.MaxCrossCertificates {
		return fmt.Errorf("a chain of %d, want %s, and two for each of at most %d cross-certificates", len(chain), what, hullmark.MaxCrossCertificates)
	}
	for _, c := range chain {
		if !isP256(c.PublicKey) {
			return errors.New("a key in its chain is no P-256 key")
		}
	}
	return nil
}
