package hullmark

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"
)

func TestKeyRotationReadsBack(t *testing.T) {
	blind, err := NewBlind(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{0, 1, 1<<64 - 1} {
		r := KeyRotation{Number: n, Blind: blind}
		again, err := ParseKeyRotation(r.Encode())
		if err != nil || again.Number != n || !again.Blind.Equal(blind) {
			t.Errorf("%d became %d: %v", n, again.Number, err)
		}
	}
	digits := strings.Repeat("a", 64)
	for _, bad := range []string{"", "1", "1 ", digits, "1" + digits, "1 " + digits[1:], "1 " + digits + "\n", "01 " + digits, "+1 " + digits, "-1 " + digits, "18446744073709551616 " + digits, "1 " + strings.ToUpper(digits), "1  " + digits} {
		if _, err := ParseKeyRotation([]byte(bad)); err == nil || len(bad) > 60 && strings.Contains(err.Error(), digits[:40]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A digest is of the number, the blind and each file: none may change, change places or run into the next.
func TestKeysDigestCommits(t *testing.T) {
	exchanged := exchangedFiles()
	blind := func(b byte) Secret { return NewSecret(bytes.Repeat([]byte{b}, blindSize)) }
	files := func(pairs ...string) func(string) []byte {
		found := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			found[pairs[i]] = pairs[i+1]
		}
		return func(path string) []byte { return []byte(found[path]) }
	}
	seen := map[KeysDigest]int{}
	for i, d := range []KeysDigest{
		DigestKeys(KeyRotation{1, blind(1)}, files(exchanged[0], "ab", exchanged[1], "c")),
		DigestKeys(KeyRotation{2, blind(1)}, files(exchanged[0], "ab", exchanged[1], "c")),
		DigestKeys(KeyRotation{1, blind(2)}, files(exchanged[0], "ab", exchanged[1], "c")),
		DigestKeys(KeyRotation{1, blind(1)}, files(exchanged[0], "a", exchanged[1], "bc")),
		DigestKeys(KeyRotation{1, blind(1)}, files(exchanged[1], "ab", exchanged[0], "c")),
		DigestKeys(KeyRotation{1, blind(1)}, files(exchanged[0], "ab")),
	} {
		if other, ok := seen[d]; ok {
			t.Errorf("%d and %d have one digest", i, other)
		}
		seen[d] = i
	}
	if DigestKeys(KeyRotation{1, blind(1)}, files(exchanged[0], "ab", PolicyFile, "x")) != DigestKeys(KeyRotation{1, blind(1)}, files(exchanged[0], "ab")) {
		t.Error("the policy that holds the digest is in it")
	}
}

// A digest of the Kubernetes CA is of all that nodes hold, and is read as it is written, and in no other spelling.
func TestCADigest(t *testing.T) {
	d := DigestCA([]byte("one\ntwo\n"))
	if d == DigestCA([]byte("one\n")) || d == (CADigest{}) {
		t.Error("a certificate more changes nothing")
	}
	text, err := d.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var again CADigest
	if err := again.UnmarshalText(text); err != nil || again != d {
		t.Errorf("%s is read as %s: %v", text, again, err)
	}
	for _, other := range []string{"", string(text[1:]), strings.ToUpper(string(text)), string(text) + "00"} {
		if err := again.UnmarshalText([]byte(other)); err == nil {
			t.Errorf("%q is read", other)
		}
	}
}

func FuzzParseKeyRotation(f *testing.F) {
	f.Add([]byte("7 " + strings.Repeat("0f", 32)))
	f.Add([]byte("0 "))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseKeyRotation(text)
		if err == nil && !bytes.Equal(r.Encode(), text) {
			t.Error("two spellings of one rotation")
		}
	})
}

func exchangedFiles() (paths []string) {
	for _, f := range NodeFiles() {
		if f.Replaced {
			paths = append(paths, f.Path)
		}
	}
	return paths
}
