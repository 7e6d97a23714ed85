package shares

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/measurements"
)

// cheap keeps scrypt out of the tests' time; the passphrases here guard nothing.
const cheap = 4

func secret(s string) hullmark.Secret { return hullmark.NewSecret([]byte(s)) }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func split(t testing.TB, key *ecdsa.PrivateKey, threshold, of int) []Share {
	t.Helper()
	all, err := Split(key, threshold, of)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != of {
		t.Fatalf("%d shares, want %d", len(all), of)
	}
	return all
}

// Any two of three make the key, in any order; one makes nothing.
func TestAnyTwoOfThree(t *testing.T) {
	key := newKey(t)
	all := split(t, key, 2, 3)
	for i, a := range all {
		for j, b := range all {
			again, err := Join([]Share{a, b})
			if i == j {
				if err == nil || !strings.Contains(err.Error(), "comes twice") {
					t.Errorf("share %d twice: %v", i+1, err)
				}
				continue
			}
			if err != nil || !again.Equal(key) {
				t.Errorf("shares %d and %d do not make the key: %v", i+1, j+1, err)
			}
		}
		if _, err := Join([]Share{a}); err == nil || !strings.Contains(err.Error(), "2 of the 3 shares make the key, and here are 1") {
			t.Errorf("share %d alone: %v", i+1, err)
		}
	}
	if again, err := Join(all); err != nil || !again.Equal(key) {
		t.Errorf("more than it takes: %v", err)
	}
	large := split(t, key, 5, MaxShares)
	if again, err := Join(large[7:12]); err != nil || !again.Equal(key) {
		t.Errorf("5 of %d: %v", MaxShares, err)
	}
}

// A share is no part of the key: neither it nor the key is found in the other, and the same key's shares differ from split to split.
func TestAShareTellsNothing(t *testing.T) {
	key := newKey(t)
	raw, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 20 {
		for _, s := range split(t, key, 2, 3) {
			value := string(s.value.Expose())
			if seen[value] || value == string(raw) {
				t.Fatal("a share comes twice, or is the key")
			}
			seen[value] = true
		}
	}
}

func TestJoinRefuses(t *testing.T) {
	key := newKey(t)
	all, later, others := split(t, key, 2, 3), split(t, key, 2, 3), split(t, newKey(t), 2, 3)
	changed := func(s Share, change func(*Share)) Share {
		s.value = hullmark.NewSecret(bytes.Clone(s.value.Expose()))
		change(&s)
		return s
	}
	order := elliptic.P256().Params().N.Bytes()
	flip := func(s *Share) { s.value.Expose()[31] ^= 1 }
	for name, c := range map[string]struct {
		some []Share
		says string
	}{
		"none":                 {nil, "there are none"},
		"of another root":      {[]Share{all[0], others[1]}, "of two roots"},
		"of another time":      {[]Share{all[0], later[1]}, "divided more than once"},
		"of another threshold": {[]Share{all[0], changed(all[1], func(s *Share) { s.Threshold = 3 })}, "divided more than once"},
		"a changed value":      {[]Share{all[0], changed(all[1], flip)}, "number 2 is not the share that was made"},
		"in a file":            {[]Share{all[0], changed(all[1], func(s *Share) { s.File = "bob.share"; flip(s) })}, "bob.share is not the share that was made"},
		"the first":            {[]Share{changed(all[0], flip), all[1]}, "number 1 is not the share that was made"},
		"one more than needed": {[]Share{all[0], all[1], changed(all[2], flip)}, "number 3 is not the share that was made"},
		"another number":       {[]Share{all[0], changed(all[1], func(s *Share) { s.Number = 3 })}, "number 3 is not the share that was made"},
		"another split's name": {[]Share{all[0], changed(later[1], func(s *Share) { s.Split, s.File = all[0].Split, "bob.share" })}, "number 1 and bob.share have other commitments"},
		"another root's name": {[]Share{
			changed(all[0], func(s *Share) { s.Root = others[0].Root }), changed(all[1], func(s *Share) { s.Root = others[0].Root }),
		}, "number 1: its commitments are of another root's key"},
		"zero":      {[]Share{changed(all[0], func(s *Share) { clear(s.value.Expose()) }), changed(all[1], func(s *Share) { clear(s.value.Expose()) })}, "number 1 is not the share that was made"},
		"no scalar": {[]Share{all[0], changed(all[1], func(s *Share) { copy(s.value.Expose(), order) })}, "number 2 is no scalar"},
		"a threshold of one": {[]Share{
			changed(all[0], func(s *Share) { s.Threshold = 1 }),
		}, "it has 2 commitments, want 1"},
		"no commitments": {[]Share{changed(all[0], func(s *Share) { s.Threshold, s.commitments = 0, nil })}, "it has 0 commitments"},
	} {
		if _, err := Join(c.some); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.says)
		}
	}
	for _, c := range []struct{ threshold, of int }{{1, 3}, {0, 3}, {-1, 3}, {4, 3}, {2, MaxShares + 1}, {2, 1}, {2, 0}} {
		if _, err := Split(key, c.threshold, c.of); err == nil {
			t.Errorf("%d of %d was split", c.threshold, c.of)
		}
	}
	wide, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Split(wide, 2, 3); err == nil {
		t.Error("a key of another curve was split")
	}
}

func TestSealedShares(t *testing.T) {
	key := newKey(t)
	all := split(t, key, 2, 3)
	var some []Share
	for i, s := range all[:2] {
		sealed, err := s.Seal(secret("of holder"), cheap)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(sealed, secret("of another")); !errors.Is(err, cluster.ErrPassphrase) {
			t.Errorf("another passphrase: %v", err)
		}
		if bytes.Contains(sealed, s.value.Expose()) || bytes.Contains(sealed, []byte("value")) {
			t.Error("the share is in clear")
		}
		for cut := range len(sealed) {
			if cut%37 != 0 {
				continue
			}
			if _, err := Open(sealed[:cut], secret("of holder")); err == nil {
				t.Errorf("%d of %d bytes were opened", cut, len(sealed))
			}
		}
		changed := bytes.Clone(sealed)
		changed[len(changed)-1] ^= 1
		if _, err := Open(changed, secret("of holder")); err == nil {
			t.Error("a changed share was opened")
		}
		opened, err := Open(sealed, secret("of holder"))
		if err != nil || opened.Number != i+1 || opened.Root != s.Root || opened.Of != 3 || opened.Threshold != 2 {
			t.Fatalf("share %d came back as %+v, %v", i+1, opened, err)
		}
		some = append(some, opened)
	}
	if again, err := Join(some); err != nil || !again.Equal(key) {
		t.Errorf("the shares that were sealed do not make the key: %v", err)
	}
	if _, err := all[0].Seal(hullmark.Secret{}, cheap); err == nil {
		t.Error("a share was sealed under no passphrase")
	}
	if _, err := Open(make([]byte, MaxFile+1), secret("of holder")); err == nil {
		t.Error("a file that is too long was opened")
	}
	// What is no share is none under the right passphrase either.
	file, err := cluster.EncryptUnder(secret("of holder"), cheap, []byte(`{"version":2}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, secret("of holder")); err == nil {
		t.Error("something else was opened as a share")
	}
}

// plain is a share as it is encrypted.
func plain(t testing.TB, s Share) []byte {
	t.Helper()
	text, err := json.Marshal(document{
		Schema: Schema, Root: s.Root, Split: s.Split, Number: s.Number, Threshold: s.Threshold, Of: s.Of, Commitments: s.commitments, Value: s.value.Expose(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParseRefuses(t *testing.T) {
	all, others := split(t, newKey(t), 2, 3), split(t, newKey(t), 2, 3)
	good := plain(t, all[0])
	if s, err := parse(good); err != nil || !s.Equal(all[0]) {
		t.Fatal(err)
	}
	commitments := func(change func([][]byte) [][]byte) []byte {
		s := all[0]
		s.commitments = change([][]byte{bytes.Clone(s.commitments[0]), bytes.Clone(s.commitments[1])})
		return plain(t, s)
	}
	replace := func(was, is string) []byte {
		if !bytes.Contains(good, []byte(was)) {
			t.Fatalf("there is no %s in %s", was, good)
		}
		return bytes.Replace(good, []byte(was), []byte(is), 1)
	}
	for name, text := range map[string][]byte{
		"another schema":     replace(Schema, "hullmark.root-share/v2"),
		"an unknown field":   replace(`"number":1`, `"number":1,"more":1`),
		"number 0":           replace(`"number":1`, `"number":0`),
		"a number too high":  replace(`"number":1`, `"number":4`),
		"a threshold of one": replace(`"threshold":2`, `"threshold":1`),
		"a threshold of all": replace(`"threshold":2`, `"threshold":4`),
		"too many":           replace(`"of":3`, `"of":17`),
		"a short split":      replace(`"split":"`, `"split":"0`),
		"no value":           replace(`"value":"`, `"value":"AAAA","x":"`),
		"a short value":      bytes.Replace(good, good[bytes.Index(good, []byte(`"value":`)):], []byte(`"value":"AAAA"}`), 1),
		"another value":      plain(t, Share{Root: all[0].Root, Split: all[0].Split, Number: 1, Threshold: 2, Of: 3, value: all[1].value, commitments: all[0].commitments}),
		"another number":     replace(`"number":1`, `"number":2`),
		"another root":       replace(all[0].Root.String(), others[0].Root.String()),
		"no commitments":     commitments(func([][]byte) [][]byte { return nil }),
		"one commitment":     commitments(func(c [][]byte) [][]byte { return c[:1] }),
		"one more":           commitments(func(c [][]byte) [][]byte { return append(c, c[1]) }),
		"the other way":      commitments(func(c [][]byte) [][]byte { c[0], c[1] = c[1], c[0]; return c }),
		"no point":           commitments(func(c [][]byte) [][]byte { c[1] = []byte{0}; return c }),
		"another sign":       commitments(func(c [][]byte) [][]byte { c[1][0] ^= 1; return c }),
		"data behind":        append(bytes.Clone(good), '1'),
		"nothing":            nil,
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(plain(f, split(f, newKey(f), 2, 3)[0]))
	f.Add([]byte(`{"schema":"` + Schema + `"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parse(text)
		if err != nil {
			return
		}
		again, err := parse(plain(t, s))
		if err != nil || !again.Equal(s) {
			t.Errorf("%+v came back as %+v, %v", s, again, err)
		}
		_, _ = Join([]Share{s, again}) // It does not panic.
	})
}

// Two of three holders begin and change a cluster whose file has no root's key any more, and one does not.
func TestDividedRoot(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cluster.age")
	file, err := cluster.Create(path, secret("correct"), c, cheap)
	if err != nil {
		t.Fatal(err)
	}
	// What is not kept is not divided.
	full := errors.New("the disk is full")
	if err := Divide(file, 2, 3, func([]Share) error { return full }); !errors.Is(err, full) || file.Cluster.Root.Key == nil {
		t.Fatalf("shares that were not kept: %v", err)
	}
	if err := Divide(file, 1, 3, func([]Share) error { return nil }); err == nil || file.Cluster.Root.Key == nil {
		t.Fatalf("one of three: %v", err)
	}
	var sealed [][]byte
	if err := Divide(file, 2, 3, func(all []Share) error {
		for _, s := range all {
			one, err := s.Seal(secret("of holder"), cheap)
			if err != nil {
				return err
			}
			sealed = append(sealed, one)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	again, err := cluster.Open(path, secret("correct"))
	if err != nil || !again.Cluster.RootElsewhere() || again.Cluster.Root.Key != nil || again.Cluster.ID() != c.ID() {
		t.Fatalf("the file after it: %v", err)
	}
	if err := Divide(again, 2, 3, func([]Share) error { return nil }); err == nil {
		t.Error("a key that is not in the file was divided")
	}
	by := func(numbers ...int) func([]byte) ([]byte, error) {
		return func(message []byte) ([]byte, error) {
			if _, err := cluster.Asked(message); err != nil {
				return nil, err
			}
			var some []Share
			for _, n := range numbers {
				s, err := Open(sealed[n-1], secret("of holder"))
				if err != nil {
					return nil, err
				}
				some = append(some, s)
			}
			return Sign(message, some)
		}
	}
	sign := func(version uint64) error {
		return again.Update(func(c *cluster.Cluster) error { return c.SetPolicy(measurements.Policy{Version: version}) })
	}
	if err := again.Cluster.SignBy(by(2)); err != nil {
		t.Fatal(err)
	}
	if err := sign(1); err == nil || !strings.Contains(err.Error(), "2 of the 3 shares") {
		t.Errorf("one holder: %v", err)
	}
	for i, numbers := range [][]int{{1, 2}, {3, 1}, {2, 3}} {
		if err := again.Cluster.SignBy(by(numbers...)); err != nil {
			t.Fatal(err)
		}
		if err := sign(uint64(i + 1)); err != nil {
			t.Errorf("holders %v: %v", numbers, err)
		}
	}
	if _, err := again.Cluster.Operator(channel.VerbRecover, hullmark.EKID{1}); err != nil {
		t.Error(err)
	}
	// One who left keeps his share of the old key: the root is exchanged, and divided anew.
	if err := again.Update((*cluster.Cluster).RotateRoot); err != nil {
		t.Fatal(err)
	}
	if err := Divide(again, 2, 2, func(all []Share) error {
		old, err := Open(sealed[0], secret("of holder"))
		if err != nil {
			return err
		}
		if _, err := Join([]Share{old, all[1]}); err == nil {
			t.Error("a share of the old key goes with one of the new")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A signature is over the message itself.
func TestSign(t *testing.T) {
	key := newKey(t)
	all := split(t, key, 2, 2)
	signature, err := Sign([]byte("message"), all)
	digest := sha256.Sum256([]byte("message"))
	if err != nil || !ecdsa.VerifyASN1(&key.PublicKey, digest[:], signature) {
		t.Errorf("no signature of the key: %v", err)
	}
	if !bytes.Equal(all[0].value.Expose(), make([]byte, scalarSize)) {
		t.Error("the shares were not wiped")
	}
}
