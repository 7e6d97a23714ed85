package attest

import (
	"bytes"

	"github.com/google/go-tpm/tpm2"
)

// EKModulus is the length of the default endorsement key's modulus, in bytes.
const EKModulus = 256

// IsDefaultEK reports whether public is an endorsement key of the TCG's default
// template L-1 (RSA-2048, SHA-256; EK Credential Profile 2.5 §B.3.3): every
// field but the modulus is compared. A key of any other shape could be one that
// decrypts what it should not, and would have another identity in the same TPM.
func IsDefaultEK(public *tpm2.TPMTPublic) bool {
	if public.Type != tpm2.TPMAlgRSA {
		return false
	}
	modulus, err := public.Unique.RSA()
	if err != nil || len(modulus.Buffer) != EKModulus {
		return false
	}
	template := tpm2.RSAEKTemplate
	template.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus.Buffer})
	return bytes.Equal(tpm2.Marshal(public), tpm2.Marshal(template))
}
