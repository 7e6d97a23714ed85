//go:build vectors

package hcl_test

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/hcl"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/vectors"
)

// akOf reads the paravisor's attestation key out of a frame, by itself.
func akOf(t *testing.T, frame []byte) *rsa.PublicKey {
	t.Helper()
	request := frame[32+1184:]
	var claims struct {
		Keys []struct{ Kid, N string }
	}
	if err := json.Unmarshal(request[20:binary.LittleEndian.Uint32(request)], &claims); err != nil {
		t.Fatal(err)
	}
	for _, k := range claims.Keys {
		if k.Kid == "HCLAkPub" {
			modulus, err := base64.RawURLEncoding.DecodeString(k.N)
			if err != nil {
				t.Fatal(err)
			}
			return &rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: 65537}
		}
	}
	t.Fatal("no attestation key")
	return nil
}

// TestRecordedFrames wants the hardware's reports to carry what the claims bind.
func TestRecordedFrames(t *testing.T) {
	for name, at := range map[string]int{"azure-snp/hcl-report.bin": 0x50, "azure-tdx/hcl-report.bin": 128} {
		frame := vectors.File(t, name)
		r, err := hcl.Decode(frame)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if bound := r.Bound(); !bytes.Equal(r.Hardware[at:at+64], bound[:]) {
			t.Errorf("%s: the report carries something else", name)
		}
	}
	q, err := tdx.Parse(vectors.File(t, "azure-tdx/td-quote.bin"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := hcl.Decode(vectors.File(t, "azure-tdx/hcl-report.bin"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the TD quote is of the same claims: %t; RTMRs zero: %t", q.ReportData == r.Bound(), q.RTMRs == [4][48]byte{})
	if q.RTMRs != [4][48]byte{} {
		t.Error("RTMRs are not zero")
	}
}

// TestRecordedQuotes checks the TPM's quotes under the attestation keys that frames bind. That of tpm-quote.msg is under neither.
func TestRecordedQuotes(t *testing.T) {
	var recorded struct {
		Frame string `json:"hcl_report"`
		Quote struct {
			Message   evidence.Hex `json:"message"`
			Signature evidence.Hex `json:"signature"`
		} `json:"tpm_quote"`
	}
	if err := json.Unmarshal(vectors.File(t, "azure-snp/evidence-v1.json"), &recorded); err != nil {
		t.Fatal(err)
	}
	frame, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(recorded.Frame, "="))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hcl.Decode(frame); err != nil {
		t.Fatal(err)
	}
	signed := func(frame, message, signature []byte) bool {
		digest := sha256.Sum256(message)
		return rsa.VerifyPKCS1v15(akOf(t, frame), crypto.SHA256, digest[:], signature) == nil
	}
	if !signed(frame, recorded.Quote.Message, recorded.Quote.Signature) {
		t.Error("the quote in evidence-v1.json is not under the key that its claims name")
	}
	message, signature := vectors.File(t, "azure-snp/tpm-quote.msg"), vectors.File(t, "azure-snp/tpm-quote.sig")
	if other := vectors.File(t, "azure-snp/hcl-report.bin"); signed(frame, message, signature) || signed(other, message, signature) || signed(other, recorded.Quote.Message, recorded.Quote.Signature) {
		t.Error("a quote is under the key of another machine's claims")
	}
}
