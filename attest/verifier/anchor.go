package verifier

import (
	"crypto/rsa"
	"crypto/x509"
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
)

// accept holds a machine's endorsement key to the anchor, and reports whether an authority vouched for it. wrong says why there
// is no certificate.
func (a Anchor) accept(node hullmark.EKID, certificate *x509.Certificate, wrong string) (certified bool, err error) {
	if a.EKID == nil && a.Admits == nil && len(a.Authorities) == 0 {
		return false, &hullmark.Condition{
			Code: "ek-not-named", Step: step, Title: "no endorsement key was named and no authority is trusted",
			Got: node.String(), Next: "name the node's EK (--ekid), and the CA that certified it if there is one (--ek-ca)",
		}
	}
	if a.EKID != nil && *a.EKID != node {
		return false, &hullmark.Condition{
			Code: "ek-unexpected", Step: step, Title: "the machine that answered has another endorsement key than the named one",
			Expected: a.EKID.String(), Got: node.String(),
			Next: "check the address, and the EK's identity with whoever made or rents out the machine",
		}
	}
	if a.Admits != nil && !a.Admits(node, certificate) {
		return false, &hullmark.Condition{
			Code: "not-a-member", Step: step, Title: "no membership rule admits this machine",
			Got: node.String() + ", " + shown(certificate, wrong), Next: "add a rule for its identity to the policy, or for a machine of a group the CA that signed its certificate",
		}
	}
	if len(a.Authorities) == 0 {
		return false, nil
	}
	if cause := a.vouched(certificate, wrong); cause != "" {
		return false, &hullmark.Condition{
			Code: "ek-uncertified", Step: step, Title: "no named authority vouches for the endorsement key: " + cause,
			Got: node.String(), Next: "name the CA that signed this EK's certificate itself (--ek-ca)",
		}
	}
	return true, nil
}

// shown says of what certificate a machine shows, in at most 300 bytes.
func shown(certificate *x509.Certificate, wrong string) string {
	if certificate == nil {
		return fmt.Sprintf("%.300s", wrong)
	}
	return fmt.Sprintf("with a certificate of %.140q by %.140q", certificate.Subject, certificate.Issuer)
}

// certificateOf reads a certificate of this very key; without one it returns what is wrong.
func certificateOf(ek *tpm2.TPMTPublic, der []byte) (certificate *x509.Certificate, wrong string) {
	if len(der) == 0 {
		return nil, "the node shows no EK certificate"
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, "its certificate: " + err.Error()
	}
	public, ok := certificate.PublicKey.(*rsa.PublicKey)
	modulus, err := ek.Unique.RSA()
	// A number of more bits than the modulus has room for would make FillBytes panic.
	if !ok || err != nil || public.E != defaultExponent || public.N.BitLen() > 8*len(modulus.Buffer) ||
		string(public.N.FillBytes(make([]byte, len(modulus.Buffer)))) != string(modulus.Buffer) {
		return nil, "its certificate is for another key"
	}
	return certificate, ""
}

// vouched checks that an authority signed the certificate; it
// returns what is wrong, or nothing. Times are not looked at: an EK is burnt in
// and outlives its certificate's dates, and the decision rests on the rule that names it.
func (a Anchor) vouched(certificate *x509.Certificate, wrong string) string {
	if certificate == nil {
		return wrong
	}
	for _, authority := range a.Authorities {
		if certificate.CheckSignatureFrom(authority) == nil {
			return ""
		}
	}
	return "its certificate was issued by " + certificate.Issuer.String()
}

// defaultExponent is the RSA exponent that a TPM means by 0 (TPM 2.0 Part 2 §12.2.3.5).
const defaultExponent = 65537
