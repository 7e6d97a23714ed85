package verifier_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/pcrs"
)

// quoteFiles is a quote as tpm2-tools would leave it: the key in both forms, message, signature, and the values.
type quoteFiles struct {
	key, pem, message, signature []byte
	values                       map[pcrs.Bank]pcrs.Values
}

func newQuoteFiles(t *testing.T) quoteFiles {
	t.Helper()
	s, proof, _ := evidenceOf(t)
	registers, err := attest.ParseRegisters(proof.GetPcrValues())
	if err != nil {
		t.Fatal(err)
	}
	values := pcrs.Values{}
	for _, r := range attest.Quoted() {
		values[pcrs.Register(r)] = registers[r][:]
	}
	spki, err := x509.MarshalPKIXPublicKey(akKey(t, s.hello.AkPublic))
	if err != nil {
		t.Fatal(err)
	}
	return quoteFiles{
		key: sized(s.hello.AkPublic), pem: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}),
		message: proof.GetQuoted(), signature: proof.GetSignature(), values: map[pcrs.Bank]pcrs.Values{pcrs.SHA256: values},
	}
}

// sized puts the length before a TPM2B's content.
func sized(content []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(content))), content...)
}

// open goes all the way from the files to proven values.
func (f quoteFiles) open() (verifier.Quote, error) {
	key, err := verifier.ParseKey(f.key)
	if err != nil {
		return verifier.Quote{}, err
	}
	q, err := verifier.OpenQuote(key, f.message, f.signature)
	if err != nil {
		return verifier.Quote{}, err
	}
	return q, q.Check(f.values)
}

func TestQuoteFiles(t *testing.T) {
	f := newQuoteFiles(t)
	for name, key := range map[string][]byte{"TPM2B_PUBLIC": f.key, "PEM": f.pem} {
		f.key = key
		q, err := f.open()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		covered := q.Covered(pcrs.SHA256)
		if len(covered) != len(attest.Quoted()) || slices.Contains(covered, 10) || len(q.Nonce) != sha256.Size {
			t.Errorf("%s: covers %v, nonce %x", name, covered, q.Nonce)
		}
		if q.Covered(pcrs.SHA384) != nil {
			t.Error("another bank is covered")
		}
	}
}

func TestQuoteFilesRefused(t *testing.T) {
	good := newQuoteFiles(t)
	other := newQuoteFiles(t)
	unrestricted, err := tpm2.Unmarshal[tpm2.TPMTPublic](good.key[2:])
	if err != nil {
		t.Fatal(err)
	}
	unrestricted.ObjectAttributes.Restricted = false
	for name, c := range map[string]struct {
		change func(*quoteFiles)
		want   string
	}{
		"another key":       {func(f *quoteFiles) { f.key = other.key }, "did not sign"},
		"another key, PEM":  {func(f *quoteFiles) { f.key = other.pem }, "did not sign"},
		"another signature": {func(f *quoteFiles) { f.signature = other.signature }, "did not sign"},
		"changed message":   {func(f *quoteFiles) { f.message[len(f.message)-1] ^= 1 }, "did not sign"},
		"cut message":       {func(f *quoteFiles) { f.message = f.message[:20] }, "did not sign"},
		"long message":      {func(f *quoteFiles) { f.message = make([]byte, wire.MaxQuoted+1) }, "at most"},
		"long signature":    {func(f *quoteFiles) { f.signature = make([]byte, wire.MaxSignature+1) }, "at most"},
		"no signature":      {func(f *quoteFiles) { f.signature = nil }, "did not sign"},
		"changed value":     {func(f *quoteFiles) { f.values[pcrs.SHA256][4] = make([]byte, sha256.Size) }, "not the quoted ones"},
		"missing value":     {func(f *quoteFiles) { delete(f.values[pcrs.SHA256], 4) }, "PCR 4"},
		"missing bank":      {func(f *quoteFiles) { f.values = nil }, "not given"},
		"no key":            {func(f *quoteFiles) { f.key = nil }, "neither PEM nor"},
		"cut key":           {func(f *quoteFiles) { f.key = f.key[:40] }, "neither PEM nor"},
		"long key":          {func(f *quoteFiles) { f.key = make([]byte, verifier.MaxKeyFile+1) }, "at most"},
		"unrestricted key":  {func(f *quoteFiles) { f.key = sized(tpm2.Marshal(unrestricted)) }, "restricted is clear"},
		"two PEM blocks":    {func(f *quoteFiles) { f.key = append(f.pem, f.pem...) }, "one PEM block"},
		"other PEM":         {func(f *quoteFiles) { f.key = []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n") }, "PUBLIC KEY"},
	} {
		f := quoteFiles{
			key: slices.Clone(good.key), pem: slices.Clone(good.pem), message: slices.Clone(good.message), signature: slices.Clone(good.signature),
			values: map[pcrs.Bank]pcrs.Values{pcrs.SHA256: {}},
		}
		for r, v := range good.values[pcrs.SHA256] {
			f.values[pcrs.SHA256][r] = v
		}
		c.change(&f)
		if _, err := f.open(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
