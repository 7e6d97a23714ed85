package attest

import (
	"bytes"

	"github.com/google/go-tpm/tpm2"
)

// akCoordinate is the length of a coordinate of a point on P-256, in bytes.
const akCoordinate = 32

// AKTemplate is a restricted ECC P-256 signing key: the TPM signs with it only
// what it composed itself. It has no authorisation value, since it guards nothing.
func AKTemplate() tpm2.TPMTPublic {
	scheme := tpm2.TPMTECCScheme{
		Scheme:  tpm2.TPMAlgECDSA,
		Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256}),
	}
	return tpm2.TPMTPublic{
		Type:    tpm2.TPMAlgECC,
		NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true,
			UserWithAuth: true, NoDA: true, Restricted: true, SignEncrypt: true,
		},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{Scheme: scheme, CurveID: tpm2.TPMECCNistP256}),
	}
}

// AKOf is the attestation key of the template with a point.
func AKOf(x, y []byte) tpm2.TPMTPublic {
	public := AKTemplate()
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: x}, Y: tpm2.TPM2BECCParameter{Buffer: y},
	})
	return public
}

// akPrefix and akBetween are the encoding of every key of the template up to its point's first coordinate, and between the two,
// if both have all their bytes. With the second it ends (TPM 2.0 Part 2 §11.2.5.2 and §12.2.4).
var akPrefix, akBetween = func() (prefix, between []byte) {
	encoded := tpm2.Marshal(AKOf(make([]byte, akCoordinate), make([]byte, akCoordinate)))
	size := tpm2.Marshal(tpm2.TPM2BECCParameter{Buffer: make([]byte, akCoordinate)})[:2]
	return encoded[:len(encoded)-2*akCoordinate-len(size)], size
}()

// ParseAK reads a TPMT_PUBLIC that is an attestation key of AKTemplate, as a prover's TPM makes it, by comparing all but its
// point. It takes no key that has another encoding beside; one that it does not take may be another acceptable key.
func ParseAK(encoded []byte) (public tpm2.TPMTPublic, ok bool) {
	point, found := bytes.CutPrefix(encoded, akPrefix)
	if !found || len(point) != 2*akCoordinate+len(akBetween) {
		return tpm2.TPMTPublic{}, false
	}
	x, y := point[:akCoordinate], point[akCoordinate:]
	if y, found = bytes.CutPrefix(y, akBetween); !found {
		return tpm2.TPMTPublic{}, false
	}
	return AKOf(x, y), true
}
