package attest_test

import (
	"bytes"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark/attest"
)

// A key of the template is read by comparing; with any other byte before its point, between its coordinates or behind, it is not.
func TestParseAK(t *testing.T) {
	x, y := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	encoded := tpm2.Marshal(attest.AKOf(x, y))
	public, ok := attest.ParseAK(encoded)
	if !ok || !bytes.Equal(tpm2.Marshal(public), encoded) {
		t.Fatalf("got %+v, %t", public, ok)
	}
	for i := range encoded {
		changed := bytes.Clone(encoded)
		changed[i] ^= 0x40
		public, ok := attest.ParseAK(changed)
		fromEnd := len(encoded) - 1 - i
		if point := fromEnd < 32 || fromEnd >= 34 && fromEnd < 66; ok != point {
			t.Errorf("byte %d changed: taken: %t", i, ok)
		}
		if ok && !bytes.Equal(tpm2.Marshal(public), changed) {
			t.Errorf("byte %d changed: another key was read", i)
		}
	}
	for n := range encoded {
		if _, ok := attest.ParseAK(encoded[:n]); ok {
			t.Errorf("%d bytes are taken", n)
		}
	}
	for what, other := range map[string][]byte{
		"a byte more":        append(bytes.Clone(encoded), 0),
		"a short coordinate": tpm2.Marshal(attest.AKOf(x[1:], y)),
		"a long coordinate":  tpm2.Marshal(attest.AKOf(x, append(y, 0))),
		"moved coordinates":  tpm2.Marshal(attest.AKOf(x[1:], append(y, 0))),
	} {
		if _, ok := attest.ParseAK(other); ok {
			t.Errorf("%s: taken", what)
		}
	}
}
