// Package endorsetest signs launch endorsements by the keys that Google publishes for tests.
package endorsetest

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	epb "github.com/google/gce-tcb-verifier/proto/endorsement"
	"github.com/google/gce-tcb-verifier/testing/devkeys"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// DER returns what a PEM block holds, or the bytes themselves.
func DER(text []byte) []byte {
	if block, _ := pem.Decode(text); block != nil {
		return block.Bytes
	}
	return text
}

// Signed is an endorsement by the keys that Google publishes for tests.
func Signed(t testing.TB, change func(*epb.VMGoldenMeasurement)) []byte {
	t.Helper()
	golden := &epb.VMGoldenMeasurement{
		Timestamp: timestamppb.New(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)), ClSpec: 7, Digest: bytes.Repeat([]byte{1}, 48), Cert: DER(devkeys.PrimarySigningKeyCert),
		SevSnp: &epb.VMSevSnp{Svn: 3, Measurements: map[uint32][]byte{2: bytes.Repeat([]byte{2}, 48)}},
		Tdx:    &epb.VMTdx{Measurements: []*epb.VMTdx_Measurement{{RamGib: 16, Mrtd: bytes.Repeat([]byte{3}, 48)}}},
	}
	if change != nil {
		change(golden)
	}
	content, err := proto.Marshal(golden)
	if err != nil {
		t.Fatal(err)
	}
	raw := DER(devkeys.PrimarySigningKeyPEM)
	key, err := x509.ParsePKCS1PrivateKey(raw)
	if err != nil {
		parsed, wrong := x509.ParsePKCS8PrivateKey(raw)
		if wrong != nil {
			t.Fatal(err, wrong)
		}
		key = parsed.(*rsa.PrivateKey)
	}
	digest := sha256.Sum256(content)
	signature, err := rsa.SignPSS(rand.Reader, key, crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	if err != nil {
		t.Fatal(err)
	}
	out, err := proto.Marshal(&epb.VMLaunchEndorsement{SerializedUefiGolden: content, Signature: signature})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
