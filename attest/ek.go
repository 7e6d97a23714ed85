package attest

import (
	"bytes"

	"github.com/google/go-tpm/tpm2"
)

// EKModulus is the length of the default endorsement key's modulus, in bytes.
const EKModulus = 256

// ekPrefix is the encoding of every endorsement key of the TCG's default template L-1 (RSA-2048, SHA-256; EK Credential Profile
// 2.5 §B.3.3) up to its modulus, with which it ends (TPM 2.0 Part 2 §12.2.4).
var ekPrefix = func() []byte {
	encoded := tpm2.Marshal(ekOf(make([]byte, EKModulus)))
	return encoded[:len(encoded)-EKModulus]
}()

// ekOf is the endorsement key of the default template with a modulus.
func ekOf(modulus []byte) tpm2.TPMTPublic {
	public := tpm2.RSAEKTemplate
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus})
	return public
}

// ParseDefaultEK reads a TPMT_PUBLIC that is an endorsement key of the TCG's default
// template L-1: every field but the modulus is compared, so there is one encoding of each. A key of any other shape could be one that
// decrypts what it should not, and would have another identity in the same TPM.
func ParseDefaultEK(encoded []byte) (public tpm2.TPMTPublic, ok bool) {
	modulus, found := bytes.CutPrefix(encoded, ekPrefix)
	if !found || len(modulus) != EKModulus {
		return tpm2.TPMTPublic{}, false
	}
	return ekOf(modulus), true
}

// IsDefaultEK reports whether ParseDefaultEK takes public's encoding.
func IsDefaultEK(public *tpm2.TPMTPublic) bool {
	_, ok := ParseDefaultEK(tpm2.Marshal(public))
	return ok
}
