package verifier

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"math/big"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
)

// An ECC P-256 attestation key, a quote of it and the signature, from an emulated TPM.
const (
	sampleAK = "0023000b00050472000000100018000b000300100020959df5ae9f84e7097e9b643e7d2ce664e8929a652155bf9ee042bcc0" +
		"582e14590020a016673e1def3849a22c1eaae6ca82fa4211b639e637cc80a5e9db4c6702afcc"
	sampleQuoted = "ff54434780180022000b50139acd91032eb6c3ec1b494bd86ec8d452785a3b0dfeb9246ab3515e3e0f190020b2d2a55e1fec" +
		"c352bb3b199fcccc3cede816128af37202e14c1a1a7e7c540144000000000000004a042f46bcc0473e1801acd9ab07a55537" +
		"ec00000001000b03fffb000020df85e04ae8329218ae256c2987227bd43619c202202c8801b733133f0987a321"
	sampleSignature = "0018000b0020802a9b395043455db6a621587fd9fa184c00ac53080393c85b2c1d953d3332410020bde5da7087a256eed027" +
		"0d14c7964515b837ebef7407699681507a85c39f06fc"
)

func seeds(f *testing.F) {
	f.Helper()
	for _, s := range []string{sampleAK, sampleQuoted, sampleSignature} {
		seed, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Add(tpm2.Marshal(tpm2.RSAEKTemplate))
	f.Add(tpm2.Marshal(tpm2.New2B(tpm2.RSAEKTemplate)))
}

// FuzzPublic holds the reader of EKs and AKs to what its callers rely on: no
// panic, and one encoding for one key.
func FuzzPublic(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		public, err := parsePublic(data)
		if ak, ok := attest.ParseAK(data); ok && (err != nil || string(tpm2.Marshal(ak)) != string(data)) {
			t.Errorf("the key that is read by comparing is another: %+v, %v", ak, err)
		}
		if err != nil {
			return
		}
		if string(tpm2.Marshal(public)) != string(data) {
			t.Error("a key with another encoding was accepted")
		}
		_, _, _ = attest.ParseEK(data)
		if verify, err := signatureScheme(public); err == nil {
			_ = verify(data, data)
		}
	})
}

// FuzzEKCertificate holds the reader of EK certificates to what its callers rely on: no panic, and no certificate of another key.
func FuzzEKCertificate(f *testing.F) {
	ek := tpm2.RSAEKTemplate
	ek.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: make([]byte, 256)})
	for _, bits := range []int{1024, 2048, 3072} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			f.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{OrganizationalUnit: []string{"a", "b"}}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		certificate, wrong := certificateOf(&ek, data)
		if certificate != nil || wrong == "" {
			t.Error("a certificate of no key is taken")
		}
		_ = shown(certificate, wrong)
	})
}

// quoteOf is a quote that says what is wanted.
func quoteOf(binding attest.Binding, registers attest.Registers) []byte {
	digest := registers.Digest()
	return tpm2.Marshal(tpm2.TPMSAttest{
		Magic: tpm2.TPMGeneratedValue, Type: tpm2.TPMSTAttestQuote,
		QualifiedSigner: tpm2.TPM2BName{Buffer: make([]byte, 34)}, ExtraData: tpm2.TPM2BData{Buffer: binding[:]},
		ClockInfo: tpm2.TPMSClockInfo{Clock: 5, ResetCount: 6, RestartCount: 7, Safe: true}, FirmwareVersion: 8,
		Attested: tpm2.NewTPMUAttest(tpm2.TPMSTAttestQuote, &tpm2.TPMSQuoteInfo{
			PCRSelect: attest.Selection(), PCRDigest: tpm2.TPM2BDigest{Buffer: digest[:]},
		}),
	})
}

// FuzzStatement holds the check by comparing to the check by reading: of what reading accepts, comparing accepts the one encoding.
func FuzzStatement(f *testing.F) {
	seeds(f)
	binding, registers := attest.Binding{1}, attest.Registers{}
	f.Add(quoteOf(binding, registers))
	f.Fuzz(func(t *testing.T, data []byte) { agree(t, data, binding, registers) })
}

func agree(t *testing.T, quoted []byte, binding attest.Binding, registers attest.Registers) {
	t.Helper()
	read := readStatement(quoted, binding, registers)
	if read == nil {
		statement, err := tpm2.Unmarshal[tpm2.TPMSAttest](quoted)
		if err == nil && !bytes.Equal(tpm2.Marshal(statement), quoted) {
			return // Another encoding, which reading alone accepts.
		}
	}
	if compared := states(quoted, binding, registers); compared != (read == nil) {
		t.Errorf("accepted by comparing: %v; by reading: %v: %x", compared, read, quoted)
	}
}

// Each bit of a quote is changed, and each length of it: comparing and reading agree.
func TestComparingIsReading(t *testing.T) {
	binding, registers := attest.Binding{1, 2, 3}, attest.Registers{2: {4}}
	good := quoteOf(binding, registers)
	if !states(good, binding, registers) {
		t.Fatal("what is wanted is not accepted by comparing")
	}
	refused := 0
	for i := range 8 * len(good) {
		changed := bytes.Clone(good)
		changed[i/8] ^= 1 << (i % 8)
		agree(t, changed, binding, registers)
		if !states(changed, binding, registers) {
			refused++
		}
	}
	// 34 bytes of name, 16 of clock, one bit of whether it is safe, 8 bytes of firmware may be others.
	if want := 8*len(good) - 8*(34+16+8) - 1; refused != want {
		t.Errorf("%d changes of a bit are refused, want %d", refused, want)
	}
	for n := range good {
		agree(t, good[:n], binding, registers)
	}
	agree(t, append(bytes.Clone(good), 0), binding, registers)
}

// The numbers that comparing finds are those that were signed, and a signature that is changed in a bit or cut is refused. One with a byte
// more is not split.
func TestSplitsSignatures(t *testing.T) {
	key := sampleKey(t)
	digest := sha256.Sum256([]byte("message"))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	number := func(n *big.Int) tpm2.TPM2BECCParameter {
		return tpm2.TPM2BECCParameter{Buffer: n.FillBytes(make([]byte, p256Size))}
	}
	good := tpm2.Marshal(tpm2.TPMTSignature{
		SigAlg:    tpm2.TPMAlgECDSA,
		Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgECDSA, &tpm2.TPMSSignatureECC{Hash: tpm2.TPMAlgSHA256, SignatureR: number(r), SignatureS: number(s)}),
	})
	first, second, ok := splitECDSA(good)
	if !ok || new(big.Int).SetBytes(first).Cmp(r) != 0 || new(big.Int).SetBytes(second).Cmp(s) != 0 {
		t.Fatalf("split into %x and %x, want %x and %x", first, second, r, s)
	}
	if err := verifyECDSA(&key.PublicKey, []byte("message"), good); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(good) {
		changed := bytes.Clone(good)
		changed[i/8] ^= 1 << (i % 8)
		if verifyECDSA(&key.PublicKey, []byte("message"), changed) == nil {
			t.Errorf("accepted with bit %d changed", i)
		}
	}
	for n := range good {
		if verifyECDSA(&key.PublicKey, []byte("message"), good[:n]) == nil {
			t.Errorf("accepted %d bytes of it", n)
		}
	}
	if _, _, ok := splitECDSA(append(bytes.Clone(good), 0)); ok {
		t.Error("split with a byte more")
	}
}

// FuzzQuote holds the readers of quotes in files to what their callers rely on:
// no panic, registers that exist, and no proof of values that are not given.
func FuzzQuote(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if key, err := ParseKey(data); err == nil {
			_ = key.verify(data, data)
		}
		q, err := readQuote(data)
		if err != nil {
			return
		}
		for _, s := range q.Selection {
			for _, r := range s.Registers {
				if !r.Valid() {
					t.Errorf("no register %d", r)
				}
			}
			if len(s.Registers) > 0 && q.Check(nil) == nil {
				t.Error("values that are not given are proven")
			}
		}
	})
}

// FuzzSignature must refuse whatever it is given.
func FuzzSignature(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) <= wire.MaxSignature && verifyECDSA(&sampleKey(t).PublicKey, []byte("message"), data) == nil {
			t.Error("accepted")
		}
	})
}

func sampleKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
