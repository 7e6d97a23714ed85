package nitro_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/nitro"
	"github.com/hullmark/hullmark/internal/nitrotest"
)

var nonce = []byte("nonce of the exchange")

func newScene(t testing.TB) (*nitrotest.AWS, *nitro.Verifier) {
	t.Helper()
	aws := nitrotest.New(t)
	return aws, &nitro.Verifier{TestRoots: [][]byte{aws.Root()}}
}

func wantCode(t *testing.T, name string, err error, code evidence.Code) {
	t.Helper()
	var refusal *evidence.Refusal
	if !errors.As(err, &refusal) || !refusal.Has(code) {
		t.Errorf("%s: %v, want %s", name, err, code)
	}
}

func TestVerify(t *testing.T) {
	aws, v := newScene(t)
	d := nitro.Demands{Nonce: nonce, Instances: []string{"i-0123456789abcdef0"}, Registers: map[uint64][]evidence.Hex{4: {make([]byte, 48)}}}
	verified, err := v.Verify(aws.Document(aws.Good(nonce)), d, nitrotest.Now)
	if err != nil || !verified.TestRoot || !verified.Document.TPM || verified.Document.Instance() != "i-0123456789abcdef0" || !bytes.Equal(verified.Document.Nonce, nonce) {
		t.Fatalf("%+v, %v", verified, err)
	}
	enclave := aws.Good(nonce)
	delete(enclave, "nitrotpm_pcrs")
	enclave["module_id"], enclave["pcrs"] = "i-0123456789abcdef0-enc0123456789abcdef", map[uint64][]byte{0: make([]byte, 48)}
	stranger, _ := newScene(t)
	good := aws.Document(aws.Good(nonce))
	for name, c := range map[string]struct {
		document []byte
		demands  nitro.Demands
		at       time.Time
		code     evidence.Code
	}{
		"another nonce":        {aws.Document(aws.Good([]byte("another"))), d, nitrotest.Now, evidence.NotBound},
		"no nonce":             {aws.Document(aws.Good(nil)), nitro.Demands{}, nitrotest.Now, evidence.NotBound},
		"an enclave":           {aws.Document(enclave), nitro.Demands{Nonce: nonce}, nitrotest.Now, evidence.Flags},
		"another instance":     {good, nitro.Demands{Nonce: nonce, Instances: []string{"i-1"}}, nitrotest.Now, evidence.Instance},
		"another register":     {good, nitro.Demands{Nonce: nonce, Registers: map[uint64][]evidence.Hex{4: {make([]byte, 47)}}}, nitrotest.Now, evidence.Measurement},
		"no such register":     {good, nitro.Demands{Nonce: nonce, Registers: map[uint64][]evidence.Hex{9: {make([]byte, 48)}}}, nitrotest.Now, evidence.Measurement},
		"another root":         {stranger.Document(stranger.Good(nonce)), d, nitrotest.Now, evidence.Chain},
		"an expired signer":    {good, d, nitrotest.Now.AddDate(2, 0, 0), evidence.Expired},
		"a signer of tomorrow": {good, d, nitrotest.Now.AddDate(0, 0, -2), evidence.Expired},
	} {
		_, err := v.Verify(c.document, c.demands, c.at)
		wantCode(t, name, err, c.code)
	}
	if _, err := v.Verify(aws.Document(enclave), nitro.Demands{Nonce: nonce, Enclaves: true}, nitrotest.Now); err != nil {
		t.Errorf("an enclave that may be one: %v", err)
	}
}

// TestSigners puts other certificates into the bundle.
func TestSigners(t *testing.T) {
	aws, v := newScene(t)
	for name, change := range map[string]func(map[string]any){
		"no issuer":       func(f map[string]any) { f["cabundle"] = [][]byte{aws.Root()} },
		"an authority":    func(f map[string]any) { f["certificate"] = f["cabundle"].([][]byte)[1] },
		"the root itself": func(f map[string]any) { f["certificate"] = aws.Root() },
		"no certificate":  func(f map[string]any) { f["certificate"] = []byte{0x30} },
		"bytes behind":    func(f map[string]any) { f["certificate"] = append(slices.Clone(f["certificate"].([]byte)), 0) },
	} {
		fields := aws.Good(nonce)
		change(fields)
		_, err := v.Verify(aws.Document(fields), nitro.Demands{Nonce: nonce}, nitrotest.Now)
		wantCode(t, name, err, evidence.Chain)
	}
}

func TestDocumentsThatAreRefused(t *testing.T) {
	aws, v := newScene(t)
	for want, change := range map[string]func(map[string]any){
		"digest":                  func(f map[string]any) { f["digest"] = "SHA256" },
		"of an enclave, or":       func(f map[string]any) { f["pcrs"] = map[uint64][]byte{0: make([]byte, 48)} },
		"0 registers":             func(f map[string]any) { f["nitrotpm_pcrs"] = map[uint64][]byte{} },
		"register 4 of 32":        func(f map[string]any) { f["nitrotpm_pcrs"] = map[uint64][]byte{4: make([]byte, 32)} },
		"register 40":             func(f map[string]any) { f["nitrotpm_pcrs"] = map[uint64][]byte{40: make([]byte, 48)} },
		"0 certificates":          func(f map[string]any) { f["cabundle"] = [][]byte{} },
		"registers of another":    func(f map[string]any) { f["module_id"] = "i-0123456789abcdef0-enc0123" },
		"module \"i-X":            func(f map[string]any) { f["module_id"] = "i-X-tpm" },
		"time 0":                  func(f map[string]any) { f["timestamp"] = 0 },
		"of more than 1024 bytes": func(f map[string]any) { f["user_data"] = make([]byte, 1025) },
		"unknown field":           func(f map[string]any) { f["more"] = 1 },
	} {
		fields := aws.Good(nonce)
		change(fields)
		if _, err := nitro.Parse(aws.Document(fields)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	twice := []byte{0xa2, 0x66, 'd', 'i', 'g', 'e', 's', 't', 0x60, 0x66, 'd', 'i', 'g', 'e', 's', 't', 0x60}
	if _, err := nitro.Parse(aws.Sign(twice)); err == nil || !strings.Contains(err.Error(), "duplicate") {
		t.Errorf("a name twice: %v", err)
	}
	good := aws.Document(aws.Good(nonce))
	for name, raw := range map[string][]byte{
		"nothing": nil, "bytes behind": append(slices.Clone(good), 0), "a tag": append([]byte{0xd2}, good...), "too long": make([]byte, nitro.MaxDocument+1),
	} {
		if _, err := nitro.Parse(raw); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	_, err := v.Verify(good[:100], nitro.Demands{Nonce: nonce}, nitrotest.Now)
	wantCode(t, "a part", err, evidence.Malformed)
}

// TestEveryByteCounts flips each byte of a document: none is outside of what is signed.
func TestEveryByteCounts(t *testing.T) {
	aws, v := newScene(t)
	good := aws.Document(aws.Good(nonce))
	for i := range good {
		changed := slices.Clone(good)
		changed[i] ^= 1
		if _, err := v.Verify(changed, nitro.Demands{Nonce: nonce}, nitrotest.Now); err == nil {
			t.Errorf("byte %d: accepted", i)
		}
	}
}

func FuzzParse(f *testing.F) {
	aws, _ := newScene(f)
	f.Add(aws.Document(aws.Good(nonce)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if d, err := nitro.Parse(raw); err == nil && (d.Module == "" || len(d.Registers) == 0 || d.Instance() == "") {
			t.Errorf("%+v", d)
		}
	})
}
