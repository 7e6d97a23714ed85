package attest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
)

func TestSelectionBytes(t *testing.T) {
	want := "00000001" + "000b" + "03" + "fffb00"
	if got := hex.EncodeToString(tpm2.Marshal(attest.Selection())); got != want {
		t.Errorf("selection %s, want %s", got, want)
	}
	mask := make([]byte, 3)
	for _, pcr := range attest.Quoted() {
		mask[pcr/8] |= 1 << (pcr % 8)
	}
	if !bytes.Equal(mask, []byte{0xff, 0xfb, 0}) {
		t.Errorf("Quoted lists other registers than Selection: %x", mask)
	}
}

func TestRegistersRoundTrip(t *testing.T) {
	values := make([]byte, 15*sha256.Size)
	for i := range values {
		values[i] = byte(i / sha256.Size)
	}
	r, err := attest.ParseRegisters(values)
	if err != nil {
		t.Fatal(err)
	}
	if r[9][0] != 9 || r[10] != ([32]byte{}) || r[11][0] != 10 || !bytes.Equal(r.Bytes(), values) {
		t.Error("values are not where their register is")
	}
	for _, n := range []int{0, 479, 481} {
		if _, err := attest.ParseRegisters(make([]byte, n)); err == nil {
			t.Errorf("%d bytes were accepted", n)
		}
	}
}

// TestBindIsTheSpecifiedHash spells out docs/protocol.md.
func TestBindIsTheSpecifiedHash(t *testing.T) {
	key, secret, hello := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32), []byte("hello")
	digest := sha256.Sum256(hello)
	want := sha256.Sum256(bytes.Join([][]byte{[]byte("hullmark/v1/attest\x00"), key, secret, digest[:]}, nil))
	got, err := attest.Bind(key, hullmark.NewSecret(secret), hello)
	if err != nil || got != attest.Binding(want) {
		t.Errorf("got %x, %v, want %x", got, err, want)
	}
	if _, err := attest.Bind(key[:31], hullmark.NewSecret(secret), hello); err == nil {
		t.Error("a short channel key was accepted")
	}
	if _, err := attest.Bind(key, hullmark.NewSecret(secret[:31]), hello); err == nil {
		t.Error("a short secret was accepted")
	}
}
