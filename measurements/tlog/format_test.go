package tlog

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"maps"
	"math/big"
	"strings"
	"testing"

	other "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
)

// A statement that is signed once more by the same key is the same entry, by another key another one.
func TestEntryOf(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	try(t, err)
	first, second := smallDocument(t, 1, p256), smallDocument(t, 1, p256)
	if bytes.Equal(first, second) {
		t.Fatal("two signatures are the same")
	}
	a, err := EntryOf(first, p256.Public())
	try(t, err)
	b, err := EntryOf(second, p256.Public())
	try(t, err)
	encoded, err := a.Encode()
	try(t, err)
	again, err := b.Encode()
	try(t, err)
	if !bytes.Equal(encoded, again) || a.Release != "spring" || a.Image != "node" || a.SVN != 1 {
		t.Errorf("got %s and %s", encoded, again)
	}
	edwards := keyNumber(9)
	c, err := EntryOf(smallDocument(t, 1, edwards), edwards.Public())
	try(t, err)
	if !c.Statement.Equal(a.Statement) || c.Key.Equal(a.Key) {
		t.Errorf("by another key: %+v", c)
	}
	if read, err := ParseEntry(encoded); err != nil || read.Document != a.Document {
		t.Errorf("%+v, %v", read, err)
	}
	_, err = EntryOf(first, edwards.Public())
	wantError(t, "another key", err, "no signature is by a key that is named")
}

func TestKeyDigest(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	try(t, err)
	for _, key := range []crypto.PublicKey{p256.Public(), keyNumber(1).Public()} {
		der, err := x509.MarshalPKIXPublicKey(key)
		try(t, err)
		want := sha256.Sum256(der)
		if got, err := KeyDigest(key); err != nil || !got.Equal(want[:]) {
			t.Errorf("%T: %v, want %x: %v", key, got, want, err)
		}
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	try(t, err)
	for _, key := range []crypto.PublicKey{p384.Public(), &rsa.PublicKey{N: big.NewInt(3), E: 3}, nil} {
		if _, err := KeyDigest(key); err == nil {
			t.Errorf("%T has a digest", key)
		}
	}
}

func TestParseEntryRefuses(t *testing.T) {
	encoded, err := entryNumber(1).Encode()
	try(t, err)
	good := string(encoded)
	for name, c := range map[string]struct{ text, want string }{
		"nothing":          {"", "empty"},
		"cut":              {good[:50], "cut off"},
		"trailing":         {good + "{}", "after the end"},
		"reformatted":      {strings.ReplaceAll(good, "  ", " "), "canonical"},
		"another schema":   {strings.Replace(good, "entry/v1", "entry/v2", 1), "schema"},
		"an unknown field": {strings.Replace(good, `"svn"`, `"x": 1, "svn"`, 1), "unknown field"},
		"a doubled field":  {strings.Replace(good, `"svn"`, `"svn": 1, "svn"`, 1), "canonical"},
		"a short digest":   {strings.Replace(good, good[strings.Index(good, `"key": "`)+8:][:2], "", 1), "digest"},
		"too long":         {strings.Replace(good, "release 1", strings.Repeat("x", MaxEntry), 1), "at most"},
	} {
		_, err := ParseEntry([]byte(c.text))
		wantError(t, name, err, c.want)
	}
	long := entryNumber(1)
	long.Release = strings.Repeat("x", MaxEntry)
	_, err = long.Encode()
	wantError(t, "too long to encode", err, "at most")
}

func TestParseProofRefuses(t *testing.T) {
	proof, err := newLog(t, 0, 3).read(t).Prove(1)
	try(t, err)
	encoded, err := proof.Encode()
	try(t, err)
	good := string(encoded)
	first := good[strings.Index(good, `    "`)+5:][:44]
	for name, c := range map[string]struct{ text, want string }{
		"nothing":            {"", "empty"},
		"cut":                {good[:len(good)-3], "cut off"},
		"trailing":           {good + "1", "after the end"},
		"reformatted":        {strings.ReplaceAll(good, "\n", "\r\n"), "canonical"},
		"another schema":     {strings.Replace(good, "proof/v1", "proof/v2", 1), "schema"},
		"an unknown field":   {strings.Replace(good, `"index"`, `"x": 1, "index"`, 1), "unknown field"},
		"a doubled field":    {strings.Replace(good, `"index"`, `"index": 1, "index"`, 1), "canonical"},
		"no list":            {strings.Replace(good, good[strings.Index(good, "["):strings.Index(good, "]")+1], "null", 1), "no list"},
		"a short hash":       {strings.Replace(good, first, first[4:], 1), "hash"},
		"a hash spelt other": {strings.Replace(good, first, first[:42]+string(first[42]+1)+"=", 1), ""},
		"escaped":            {strings.Replace(good, "—", `\u2014`, 1), "canonical"},
		"no UTF-8":           {strings.Replace(good, "—", "\xff", 1), "canonical"},
		"a number as text":   {strings.Replace(good, `"index": 1`, `"index": "1"`, 1), "another type"},
		"too long":           {strings.Replace(good, "releases.example", strings.Repeat("x", MaxProof), 1), "at most"},
		"a long checkpoint":  {strings.Replace(good, "releases.example", strings.Repeat("x", MaxCheckpoint), 1), "at most"},
	} {
		p, err := ParseProof([]byte(c.text))
		if name == "a hash spelt other" && err == nil { // The last character's low bits may be anything where they are ignored.
			t.Errorf("%s: %v", name, p.Hashes)
			continue
		}
		wantError(t, name, err, c.want)
	}
}

// signText signs whatever text as a checkpoint.
func signText(t testing.TB, text string) string {
	t.Helper()
	name, _, _ := strings.Cut(text, "\n")
	signer, err := newSigner(name, plainSignature, logKey)
	try(t, err)
	signed, err := note.Sign(&note.Note{Text: text}, signer)
	if err != nil {
		return text + "\n— " + err.Error() + "\n"
	}
	return string(signed)
}

func TestCheckpointRefuses(t *testing.T) {
	c := newLog(t, 0, 3).read(t).Checkpoint
	root := c.Root.String()
	text := func(size, root string) string { return signText(t, origin+"\n"+size+"\n"+root+"\n") }
	good := text("3", root)
	if got, err := trusted.Open([]byte(good)); err != nil || got.Root != c.Root {
		t.Fatalf("%+v, %v", got, err)
	}
	unknown := "— somebody.example " + base64.StdEncoding.EncodeToString(make([]byte, 68)) + "\n"
	if _, err := trusted.Open([]byte(good + unknown)); err != nil {
		t.Errorf("a signature by somebody else: %v", err)
	}
	last := good[len(good)-4:]
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                 {"", "malformed note"},
		"cut in the text":         {good[:30], "malformed note"},
		"cut in a signature":      {good[:len(good)-20], "malformed note"},
		"no signature":            {origin + "\n3\n" + root + "\n", "malformed note"},
		"an extension line":       {signText(t, origin+"\n3\n"+root+"\nmore\n"), "4 lines"},
		"a line less":             {signText(t, origin+"\n3\n"), "2 lines"},
		"a size with a zero":      {text("03", root), "canonical"},
		"a size with a plus":      {text("+3", root), "canonical"},
		"a size below zero":       {text("-3", root), "size"},
		"a size that is huge":     {text("9223372036854775807", root), "size"},
		"a size over all numbers": {text("99999999999999999999", root), "size"},
		"a size in words":         {text("three", root), "size"},
		"a short root":            {text("3", root[4:]), "root hash"},
		"a root spelt otherwise":  {text("3", root[:42]+string(root[42]+1)+"="), ""},
		"no entries, and a root":  {text("0", root), "another root"},
		"an origin of two words":  {signText(t, "two words\n3\n"+root+"\n"), "malformed note"},
		"an origin with a scheme": {signText(t, "https+x\n3\n"+root+"\n"), "malformed note"},
		"an origin of signs":      {signText(t, "«»\n3\n"+root+"\n"), "canonical"},
		"a control character":     {good + "\x00", "malformed note"},
		"no UTF-8":                {"\xff" + good, "malformed note"},
		"another's signature":     {origin + "\n3\n" + root + "\n\n" + unknown, "by the log's key"},
		"a signature spelt other": {good[:len(good)-4] + string(last[0]) + string(last[1]+1) + last[2:], ""},
		"too long":                {good + strings.Repeat(unknown, MaxCheckpoint/len(unknown)+1), "at most"},
		"too many signatures":     {good + strings.Repeat("— a AAAAAAA=\n", 101), "malformed note"},
	} {
		_, err := trusted.Open([]byte(c.text))
		wantError(t, name, err, c.want)
	}
	for _, name := range []string{"", "two words", "a+b", "https://x/" + strings.Repeat("y", 128), "ä", "/x", "a\nb"} {
		if _, err := Empty(name); err == nil {
			t.Errorf("a log may be called %q", name)
		}
	}
}

// Another implementation of C2SP tlog-cosignature verifies our cosignatures, and ours its.
func TestCosignaturesOfOthers(t *testing.T) {
	r := newLog(t, 0, 3).read(t)
	w := keyNumber(2)
	cosigned, err := r.Cosign(nil, w, noon)
	try(t, err)
	vkey, err := note.NewEd25519VerifierKey(witnessName(origin, public(w)), public(w))
	try(t, err)
	verifier, err := other.NewVerifierForCosignatureV1(vkey)
	try(t, err)
	logVkey, err := note.NewEd25519VerifierKey(origin, public(logKey))
	try(t, err)
	logVerifier, err := note.NewVerifier(logVkey)
	try(t, err)
	n, err := note.Open(cosigned, note.VerifierList(verifier, logVerifier))
	if err != nil || len(n.Sigs) != 2 || len(n.UnverifiedSigs) != 0 {
		t.Fatalf("%+v, %v\n%s", n, err, cosigned)
	}
	if at, err := other.CoSigV1Timestamp(n.Sigs[1]); err != nil || !at.Equal(noon) {
		t.Errorf("cosigned at %v, %v", at, err)
	}
	secret, theirs, err := note.GenerateKey(nil, "witness.example/w1")
	try(t, err)
	signer, err := other.NewSignerForCosignatureV1(secret)
	try(t, err)
	both, err := note.Sign(n, signer)
	try(t, err)
	raw, err := base64.StdEncoding.DecodeString(strings.SplitN(theirs, "+", 3)[2])
	try(t, err)
	trust := trusted
	trust.Witnesses, trust.Threshold = []ed25519.PublicKey{public(w), raw[1:]}, 2
	if c, err := trust.Open(both); err != nil || c.Cosignatures[1].Witness != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestMerge(t *testing.T) {
	m := newLog(t, 0, 3)
	r := m.read(t)
	var all [][]byte
	trust := trusted
	for n := range byte(3) {
		cosigned, err := r.Cosign(nil, keyNumber(2+n), noon)
		try(t, err)
		all = append(all, cosigned)
		trust.Witnesses = append(trust.Witnesses, public(keyNumber(2+n)))
	}
	merged, err := trusted.Merge(all[0], append(all[1:], all[0])...)
	try(t, err)
	trust.Threshold = 3
	if _, err := trust.Open(merged); err != nil || bytes.Count(merged, []byte("\n— ")) != 4 {
		t.Errorf("%v\n%s", err, merged)
	}
	m.grow(t, 3, 1)
	_, err = trusted.Merge(all[0], m[CheckpointName])
	wantError(t, "a checkpoint of another size", err, "one is of 3 entries, the other of 4")
	_, err = trusted.Merge(all[0], newLog(t, 7, 3)[CheckpointName])
	wantError(t, "a checkpoint of another tree", err, ErrContradiction.Error())
	_, err = trusted.Merge(all[0], []byte("torn"))
	wantError(t, "a torn checkpoint", err, "malformed note")
	many := all[0]
	for n := 0; len(many) < MaxCheckpoint-200; n++ {
		many = fmt.Appendf(many, "— w%d.example %s\n", n, base64.StdEncoding.EncodeToString(make([]byte, 2000)))
	}
	_, err = trusted.Merge(many, all[1:]...)
	wantError(t, "more than fit", err, "at most")
}

// TestMergeLargest has witnesses that looked at a log at different times.
func TestMergeLargest(t *testing.T) {
	m := newLog(t, 0, 3)
	cosigned := func(m memory, witnesses ...byte) []byte {
		for _, w := range witnesses {
			signed, err := m.read(t).Cosign(nil, keyNumber(w), noon)
			try(t, err)
			m[CheckpointName] = signed
		}
		return m[CheckpointName]
	}
	old := maps.Clone(m)
	m.grow(t, 3, 2)
	first, second, third := cosigned(maps.Clone(old), 2), cosigned(maps.Clone(old), 3), cosigned(maps.Clone(m), 4)
	again, forked := cosigned(maps.Clone(m), 2), cosigned(newLog(t, 7, 3), 3)
	trust := trusted
	for w := range byte(3) {
		trust.Witnesses = append(trust.Witnesses, public(keyNumber(2+w)))
	}
	for name, c := range map[string]struct {
		threshold int
		signed    [][]byte
		size      int64
		want      string
	}{
		"one size":                     {2, [][]byte{first, second}, 3, ""},
		"the larger by too few":        {2, [][]byte{third, first, second}, 3, ""},
		"both by enough":               {2, [][]byte{first, third, second, again}, 5, ""},
		"nobody has to":                {0, [][]byte{first, third}, 5, ""},
		"one has to":                   {1, [][]byte{first, third}, 5, ""},
		"no size by enough":            {3, [][]byte{first, third, second}, 0, "of 3 witnesses 3 have to have cosigned the same, and cosigned are one of 5 entries by 1, one of 3 entries by 2: take"},
		"one witness twice":            {2, [][]byte{first, first}, 0, "one of 3 entries by 1"},
		"two trees of one size":        {2, [][]byte{first, forked}, 0, ErrContradiction.Error()},
		"two trees below another size": {2, [][]byte{third, first, forked}, 0, ErrContradiction.Error()},
		"a torn one":                   {1, [][]byte{first, []byte("torn")}, 0, "malformed note"},
	} {
		trust.Threshold = c.threshold
		merged, err := trust.MergeLargest(c.signed...)
		if c.want != "" {
			wantError(t, name, err, c.want)
			continue
		}
		if opened, failed := trust.Open(merged); err != nil || failed != nil || opened.Size != c.size {
			t.Errorf("%s: %d entries, want %d: %v, %v", name, opened.Size, c.size, err, failed)
		}
	}
}

// TestSuffice has as many witnesses help as Suffice says, and the other halves begin with different logs: both are trusted. With one
// less, one is not.
func TestSuffice(t *testing.T) {
	one, other := newLog(t, 0, 3), newLog(t, 7, 3)
	for _, c := range []struct{ witnesses, threshold, want int }{{1, 1, 1}, {2, 1, 0}, {2, 2, 2}, {3, 1, 0}, {3, 2, 1}, {4, 2, 0}, {4, 3, 2}, {5, 3, 1}} {
		trust := trusted
		trust.Threshold = c.threshold
		for w := range byte(c.witnesses) {
			trust.Witnesses = append(trust.Witnesses, public(keyNumber(2+w)))
		}
		if got := Suffice(c.threshold, c.witnesses); got != c.want {
			t.Errorf("%d of %d: %d suffice, want %d", c.threshold, c.witnesses, got, c.want)
			continue
		}
		trustedBoth := func(help int) bool {
			logs := []memory{maps.Clone(one), maps.Clone(other)}
			for w := range c.witnesses {
				for i, m := range logs {
					if w < help || w%2 == i {
						signed, err := m.read(t).Cosign(nil, keyNumber(byte(2+w)), noon)
						try(t, err)
						m[CheckpointName] = signed
					}
				}
			}
			_, first := trust.Open(logs[0][CheckpointName])
			_, second := trust.Open(logs[1][CheckpointName])
			return first == nil && second == nil
		}
		if !trustedBoth(c.want) || c.want > 0 && trustedBoth(c.want-1) {
			t.Errorf("%d of %d: with %d that help both logs are trusted: %t, with one less: %t",
				c.threshold, c.witnesses, c.want, trustedBoth(c.want), c.want > 0 && trustedBoth(c.want-1))
		}
	}
}

func FuzzEntry(f *testing.F) {
	encoded, err := entryNumber(1).Encode()
	try(f, err)
	f.Add(encoded)
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseEntry(b)
		if err != nil {
			return
		}
		if again, err := e.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q is read as %q: %v", b, again, err)
		}
	})
}

func FuzzProof(f *testing.F) {
	r := newLog(f, 0, 9).read(f)
	for _, index := range []int64{0, 5, 8} {
		p, err := r.Prove(index)
		try(f, err)
		encoded, err := p.Encode()
		try(f, err)
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseProof(b)
		if err != nil {
			return
		}
		if again, err := p.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q is read as %q: %v", b, again, err)
		}
		if _, err := p.Verify(entryNumber(100), trusted); err == nil {
			t.Errorf("%q proves what is not in the log", b)
		}
		_ = p.LeadsFrom(entryNumber(5))
	})
}

func FuzzCheckpoint(f *testing.F) {
	f.Add(origin + "\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n")
	f.Add(origin + "\n3\n" + newLog(f, 0, 3).read(f).Root.String() + "\n")
	f.Add(string(newLog(f, 0, 2)[CheckpointName]))
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = trusted.Open([]byte(text))
		c, err := parseCheckpoint(text)
		if err == nil && (c.text() != text || c.Size > MaxSize) {
			t.Errorf("%q is read as %q", text, c.text())
		}
	})
}

func FuzzBundle(f *testing.F) {
	f.Add(formatBundle([][]byte{[]byte("first"), []byte("second")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := parseBundle(b)
		if err == nil && (!bytes.Equal(formatBundle(entries), b) || len(entries) > tileWidth) {
			t.Errorf("%q is read as %q", b, entries)
		}
	})
}
