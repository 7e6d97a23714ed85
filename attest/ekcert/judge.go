package ekcert

import (
	"crypto/x509"
	"slices"
)

// Standing is what certificates at hand say of who vouches for an endorsement key.
type Standing struct {
	// Signer is the CA that signed its certificate; nil if none of those at hand did.
	Signer *x509.Certificate
	// Known is the CA that the certificate leads to, or that signed it, and that is known; nil if there is none.
	Known *CA
}

// Judge looks where a certificate leads by its own chain, and by others that somebody has at hand. To be known is not to be trusted:
// this says which certificate a policy may name, and nothing is decided by it.
func (c *Certificate) Judge(atHand []*x509.Certificate) (s Standing) {
	whole := *c
	whole.Chain = slices.Concat(c.Chain, atHand)
	for _, ca := range whole.Chain {
		signed := c.CheckSignedBy(ca) == nil
		if signed {
			s.Signer = ca
		}
		if known, ok := Find(ca); ok && s.Known == nil && (signed || whole.CheckLeadsTo([]*x509.Certificate{ca}) == nil) {
			s.Known = &known
		}
	}
	return s
}
