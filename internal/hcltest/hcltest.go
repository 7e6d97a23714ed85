// Package hcltest is a paravisor for tests: it frames a report of the hardware with claims that name a TPM's keys. It imports nothing
// of the verifier, so that one checks the other.
package hcltest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/google/go-tpm/tpm2"
)

// The types of reports.
const (
	SNP = 2
	TDX = 4
)

// Claims returns claims that name an endorsement key, and, if it is not nil, an attestation key; both are TPMT_PUBLICs.
func Claims(t testing.TB, ek, ak []byte) []byte {
	t.Helper()
	keys := []map[string]any{jwk(t, "HCLEkPub", "encrypt", ek)}
	if ak != nil {
		keys = append(keys, jwk(t, "HCLAkPub", "sign", ak))
	}
	text, err := json.Marshal(map[string]any{
		"keys": keys, "vm-configuration": map[string]any{"secure-boot": true, "tpm-enabled": true, "vmUniqueId": "test"}, "user-data": "00",
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func jwk(t testing.TB, name, use string, public []byte) map[string]any {
	t.Helper()
	decoded, err := tpm2.Unmarshal[tpm2.TPMTPublic](public)
	if err != nil {
		t.Fatal(err)
	}
	unique, err := decoded.Unique.RSA()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{"kid": name, "key_ops": []string{use}, "kty": "RSA", "e": "AQAB", "n": base64.RawURLEncoding.EncodeToString(unique.Buffer)}
}

// Bound is what the hardware's report has to carry for claims.
func Bound(claims []byte) (data [64]byte) {
	digest := sha256.Sum256(claims)
	copy(data[:], digest[:])
	return data
}

// Frame returns the content of the NV index. hardware has at most 1,184 bytes.
func Frame(kind uint32, hardware, claims []byte) []byte {
	le := binary.LittleEndian
	frame := append([]byte("HCLA"), 1, 0, 0, 0)
	frame = le.AppendUint32(frame, uint32(32+1184+20+len(claims)))
	frame = append(frame, 2, 0, 0, 0)
	frame = append(frame, make([]byte, 16)...)
	frame = append(frame, hardware...)
	frame = append(frame, make([]byte, 1184-len(hardware))...)
	for _, n := range []uint32{uint32(20 + len(claims)), 1, kind, 1, uint32(len(claims))} {
		frame = le.AppendUint32(frame, n)
	}
	return append(append(frame, claims...), make([]byte, 100)...)
}
