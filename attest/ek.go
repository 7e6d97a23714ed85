package attest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/google/go-tpm/tpm2"
)

// EKTemplate is one of the TCG's templates of endorsement keys (EK Credential Profile 2.5, annex B). A TPM makes the same key of it
// each time, as long as its endorsement seed stays.
type EKTemplate struct {
	// Name is what people call such keys, as rsa-2048; those of the profile's high range end in -high.
	Name string
	// Handle is where manufacturers keep the key, and Certificate the NV index of its certificate (§2.2.1.4 and §2.2.1.5).
	Handle, Certificate tpm2.TPMHandle
	// HashAlg is the hash of the key's name and of its policy, which the endorsement hierarchy's TPM2_PolicySecret satisfies.
	HashAlg tpm2.TPMIAlgHash
	// Branches are those of the TPM2_PolicyOR that has to follow; there are none in the low range.
	Branches tpm2.TPMLDigest

	// common is the key without its unique part: a modulus or two coordinates, of size bytes each.
	common tpm2.TPMTPublic
	size   int
	// prefix is the encoding of every such key up to its modulus or first coordinate, with which it ends but for the second
	// (TPM 2.0 Part 2 §12.2.4).
	prefix []byte
}

// policy is that of endorsement keys (§B.6): PolicyA, which is TPM2_PolicySecret(TPM_RH_ENDORSEMENT), in the low range, and PolicyB in
// the high one, which is that or PolicyC, for a use that is nobody's here.
type policy struct{ a, b, c string }

var (
	low        = policy{a: "837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa"}
	highSHA256 = policy{
		a: "837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa",
		b: "ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0",
		c: "3767e2edd43ff45a3a7e1eaefcef78643dca964632e7aad82c673a30d8633fde",
	}
	highSHA384 = policy{
		a: "8bbf2266537c171cb56e403c4dc1d4b64f432611dc386e6f532050c3278c930e143e8bb1133824ccb431053871c6db53",
		b: "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12",
		c: "d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b455e261cffd217ad5b4947c2d73e63005eed2dc2b3593d165",
	}
)

// ekTemplates are L-1, L-2, H-1, H-2, H-3 and H-6 (§B.3.3, §B.3.4, §B.4).
var ekTemplates = []EKTemplate{
	rsaEK("rsa-2048", 0x81010001, 0x01c00002, 2048, tpm2.TPMAlgSHA256, low),
	eccEK("ecc-p256", 0x81010002, 0x01c0000a, tpm2.TPMECCNistP256, 32, tpm2.TPMAlgSHA256, low),
	rsaEK("rsa-2048-high", 0x81010012, 0x01c00012, 2048, tpm2.TPMAlgSHA256, highSHA256),
	eccEK("ecc-p256-high", 0x81010014, 0x01c00014, tpm2.TPMECCNistP256, 32, tpm2.TPMAlgSHA256, highSHA256),
	eccEK("ecc-p384-high", 0x81010016, 0x01c00016, tpm2.TPMECCNistP384, 48, tpm2.TPMAlgSHA384, highSHA384),
	rsaEK("rsa-3072-high", 0x8101001c, 0x01c0001c, 3072, tpm2.TPMAlgSHA384, highSHA384),
}

// EKTemplates returns the templates whose keys are taken, in the order in which a machine prefers them. The first is the default: a
// machine whose manufacturer certified no key shows that one.
func EKTemplates() []EKTemplate { return slices.Clone(ekTemplates) }

func rsaEK(name string, handle, certificate tpm2.TPMHandle, bits int, hash tpm2.TPMIAlgHash, by policy) EKTemplate {
	t := EKTemplate{Name: name, Handle: handle, Certificate: certificate, size: bits / 8}
	return t.complete(tpm2.TPMAlgRSA, hash, by, tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
		Symmetric: cipherOf(hash), KeyBits: tpm2.TPMKeyBits(bits),
	}))
}

func eccEK(name string, handle, certificate tpm2.TPMHandle, curve tpm2.TPMECCCurve, coordinate int, hash tpm2.TPMIAlgHash, by policy) EKTemplate {
	t := EKTemplate{Name: name, Handle: handle, Certificate: certificate, size: coordinate}
	return t.complete(tpm2.TPMAlgECC, hash, by, tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
		Symmetric: cipherOf(hash), CurveID: curve,
	}))
}

// cipherOf is the cipher that goes with a hash: AES in CFB mode, of 128 bits with SHA-256 and of 256 with SHA-384.
func cipherOf(hash tpm2.TPMIAlgHash) tpm2.TPMTSymDefObject {
	bits := tpm2.TPMKeyBits(128)
	if hash == tpm2.TPMAlgSHA384 {
		bits = 256
	}
	return tpm2.TPMTSymDefObject{
		Algorithm: tpm2.TPMAlgAES, KeyBits: tpm2.NewTPMUSymKeyBits(tpm2.TPMAlgAES, bits), Mode: tpm2.NewTPMUSymMode(tpm2.TPMAlgAES, tpm2.TPMAlgCFB),
	}
}

// digest reads hexadecimal digits.
func digest(digits string) tpm2.TPM2BDigest {
	b, err := hex.DecodeString(digits)
	if err != nil {
		panic(err)
	}
	return tpm2.TPM2BDigest{Buffer: b}
}

func (t EKTemplate) complete(kind tpm2.TPMIAlgPublic, hash tpm2.TPMIAlgHash, by policy, parameters tpm2.TPMUPublicParms) EKTemplate {
	t.HashAlg = hash
	if by.b != "" {
		t.Branches.Digests = []tpm2.TPM2BDigest{digest(by.a), digest(by.c)}
	}
	t.common = tpm2.TPMTPublic{
		Type: kind, NameAlg: hash, AuthPolicy: digest(cmp.Or(by.b, by.a)), Parameters: parameters,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: t.high(), AdminWithPolicy: true, Restricted: true, Decrypt: true,
		},
	}
	first, second := make([]byte, t.size), make([]byte, t.size)
	encoded := tpm2.Marshal(t.with(first, second))
	end := t.size
	if kind == tpm2.TPMAlgECC {
		end += len(t.length()) + t.size
	}
	t.prefix = encoded[:len(encoded)-end]
	return t
}

// high reports whether the template is of the profile's high range.
func (t EKTemplate) high() bool { return len(t.Branches.Digests) > 0 }

// length is what stands before each part of the unique one (TPM 2.0 Part 2 §11.2.4.5 and §11.2.5.1).
func (t EKTemplate) length() []byte { return binary.BigEndian.AppendUint16(nil, uint16(t.size)) }

// with is the key of the template with a modulus, of which second is no part, or with two coordinates.
func (t EKTemplate) with(first, second []byte) tpm2.TPMTPublic {
	public := t.common
	if public.Type == tpm2.TPMAlgRSA {
		public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: first})
		return public
	}
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: first}, Y: tpm2.TPM2BECCParameter{Buffer: second},
	})
	return public
}

// Public is what a TPM makes the key of: its unique part is empty in the high range, and zeros in the low one.
func (t EKTemplate) Public() tpm2.TPMTPublic {
	if t.high() {
		return t.with(nil, nil)
	}
	return t.with(make([]byte, t.size), make([]byte, t.size))
}

// Encode returns the one encoding of a key of the template, as a TPMT_PUBLIC, whatever zeros its TPM leaves out at the beginning of
// a coordinate. It fails for a key of another shape.
func (t EKTemplate) Encode(public *tpm2.TPMTPublic) (encoded []byte, ok bool) {
	if point, err := public.Unique.ECC(); public.Type == tpm2.TPMAlgECC && err == nil && len(point.X.Buffer) <= t.size && len(point.Y.Buffer) <= t.size {
		padded := *public
		first, second := make([]byte, t.size), make([]byte, t.size)
		copy(first[t.size-len(point.X.Buffer):], point.X.Buffer)
		copy(second[t.size-len(point.Y.Buffer):], point.Y.Buffer)
		padded.Unique = t.with(first, second).Unique
		public = &padded
	}
	encoded = tpm2.Marshal(public)
	_, ok = t.parse(encoded)
	return encoded, ok
}

// parse reads what Encode wrote.
func (t EKTemplate) parse(encoded []byte) (public tpm2.TPMTPublic, ok bool) {
	unique, found := bytes.CutPrefix(encoded, t.prefix)
	if !found || len(unique) < t.size {
		return tpm2.TPMTPublic{}, false
	}
	first, rest := unique[:t.size], unique[t.size:]
	if t.common.Type == tpm2.TPMAlgRSA {
		return t.with(first, nil), len(rest) == 0
	}
	second, found := bytes.CutPrefix(rest, t.length())
	return t.with(first, second), found && len(second) == t.size
}

// ParseEK reads a TPMT_PUBLIC that is an endorsement key of one of the templates: every field but the modulus, or the point, is
// compared, so there is one encoding of each. A key of any other shape could be one that decrypts what it should not, and would have
// another identity in the same TPM. Whether the point lies on its curve is left to who uses it.
func ParseEK(encoded []byte) (public tpm2.TPMTPublic, template EKTemplate, ok bool) {
	for _, t := range ekTemplates {
		if public, ok := t.parse(encoded); ok {
			return public, t, true
		}
	}
	return tpm2.TPMTPublic{}, EKTemplate{}, false
}
