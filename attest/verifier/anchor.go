package verifier

import (
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
)

// accept holds a machine's endorsement key to the anchor, and reports whether an authority vouched for it. wrong says why there
// is no certificate.
func (a Anchor) accept(node hullmark.EKID, certificate *ekcert.Certificate, wrong string) (certified bool, err error) {
	authorities := len(a.Authorities) + len(a.Roots)
	if a.EKID == nil && a.Admits == nil && authorities == 0 {
		return false, &hullmark.Condition{
			Code: "ek-not-named", Step: step, Title: "no endorsement key was named and no authority is trusted",
			Got: node.String(), Next: "name the node's EK (--ekid), and the CA that certified it if there is one (--ek-ca, --ek-root)",
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
	if authorities == 0 {
		return false, nil
	}
	if cause := a.vouched(certificate, wrong); cause != "" {
		return false, &hullmark.Condition{
			Code: "ek-uncertified", Step: step, Title: "no named authority vouches for the endorsement key: " + cause,
			Got: node.String(), Next: "name the CA that signed this EK's certificate itself (--ek-ca), or the root that its certificates lead to (--ek-root)",
		}
	}
	return true, nil
}

// shown says of what certificate a machine shows, in at most 300 bytes.
func shown(certificate *ekcert.Certificate, wrong string) string {
	if certificate == nil {
		return fmt.Sprintf("%.300s", wrong)
	}
	return fmt.Sprintf("with a certificate of %.140q by %.140q", certificate.Subject, certificate.Issuer)
}

// certificateOf reads a certificate of this very key; without one it returns what is wrong.
func certificateOf(ek *tpm2.TPMTPublic, shown []byte) (certificate *ekcert.Certificate, wrong string) {
	if len(shown) == 0 {
		return nil, "the node shows no EK certificate"
	}
	certificate, err := ekcert.Parse(shown)
	if err != nil {
		return nil, "its certificate: " + err.Error()
	}
	if !certificate.IsFor(ek) {
		return nil, "its certificate is for another key"
	}
	return certificate, ""
}

// vouched checks that an authority signed the certificate, or that it leads to a root; it returns what is wrong, or nothing. Times
// are not looked at, or are those of the certificate's beginning: an EK is burnt in and outlives its certificate's dates, and the
// decision rests on the rule that names it.
func (a Anchor) vouched(certificate *ekcert.Certificate, wrong string) string {
	if certificate == nil {
		return wrong
	}
	var last error
	for _, authority := range a.Authorities {
		if last = certificate.CheckSignedBy(authority); last == nil {
			return ""
		}
	}
	if len(a.Roots) > 0 {
		if last = certificate.CheckLeadsTo(a.Roots); last == nil {
			return ""
		}
	}
	return fmt.Sprintf("%.300s", last)
}

// defaultExponent is the RSA exponent that a TPM means by 0 (TPM 2.0 Part 2 §12.2.3.5).
const defaultExponent = 65537
