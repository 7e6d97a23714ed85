//go:build vectors

package nitro_test

import (
	"bytes"
	"testing"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/nitro"
	"github.com/hullmark/hullmark/internal/vectors"
)

// TestRecordedDocument verifies the document of a real enclave, at the time that it names, and each byte of it changed. Its recorder
// put it into a frame of its own.
func TestRecordedDocument(t *testing.T) {
	file := vectors.File(t, "nitro/enclave_attestation.bin")
	const length = 4526
	at := bytes.Index(file, []byte{0x84, 0x44, 0xa1, 1, 0x38, 0x22})
	raw := file[at : at+length]
	d, err := nitro.Parse(raw)
	if err != nil || d.TPM || d.Instance() != "i-0827e799ec9232d44" || len(d.UserData) != 64 {
		t.Fatalf("%+v, %v", d, err)
	}
	v := &nitro.Verifier{}
	_, err = v.Verify(raw, nitro.Demands{Enclaves: true}, d.Time)
	wantCode(t, "without a nonce", err, evidence.NotBound)
	if only(err) != 1 {
		t.Errorf("more than the nonce speaks against it: %v", err)
	}
	_, err = v.Verify(raw, nitro.Demands{Enclaves: true}, d.Time.AddDate(0, 1, 0))
	wantCode(t, "a month later", err, evidence.Expired)
	for i := range raw {
		changed := bytes.Clone(raw)
		changed[i] ^= 1
		if _, err := v.Verify(changed, nitro.Demands{Enclaves: true}, d.Time); only(err) == 1 && refusedFor(err, evidence.NotBound) {
			t.Errorf("byte %d: nothing but the nonce speaks against it", i)
		}
	}
}

func only(err error) int {
	refusal, _ := err.(*evidence.Refusal)
	if refusal == nil {
		return 0
	}
	return len(refusal.Reasons)
}

func refusedFor(err error, code evidence.Code) bool {
	refusal, ok := err.(*evidence.Refusal)
	return ok && refusal.Has(code)
}
