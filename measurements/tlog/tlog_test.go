package tlog

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	merkle "golang.org/x/mod/sumdb/tlog"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

const origin = "releases.example/log"

// memory is a log's files.
type memory map[string][]byte

func (m memory) ReadFile(_ context.Context, name string, limit int64) ([]byte, error) {
	content, ok := m[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%s: too long, want at most %d bytes", name, limit)
	}
	return content, nil
}

// keyNumber makes the same key of the same number.
func keyNumber(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

var (
	logKey  = keyNumber(1)
	trusted = Trust{Key: public(logKey)}
	noon    = time.Unix(1_800_000_000, 0).UTC()
)

// entryNumber is an entry of a release that is none.
func entryNumber(n int) Entry {
	statement, key := sha256.Sum256(fmt.Append(nil, n)), sha256.Sum256([]byte("key"))
	return Entry{Schema: EntrySchema, Statement: statement[:], Key: key[:], Document: statement, Image: "node", Release: fmt.Sprint("release ", n), SVN: uint32(n)}
}

// made are logs that newLog made, by the first entry's number and how many there are.
var made = map[[2]int]memory{}

// newLog is a log with as many entries of that number on.
func newLog(t testing.TB, first, entries int) memory {
	t.Helper()
	which := [2]int{first, entries}
	if made[which] == nil {
		made[which] = makeLog(t, first, entries)
	}
	return maps.Clone(made[which])
}

func makeLog(t testing.TB, first, entries int) memory {
	t.Helper()
	m := memory{}
	c, err := Empty(origin)
	try(t, err)
	m[CheckpointName], err = c.Sign(logKey)
	try(t, err)
	m.grow(t, first, entries)
	return m
}

func (m memory) grow(t testing.TB, first, entries int) {
	t.Helper()
	for n := range entries {
		m.add(t, entryNumber(first+n))
	}
}

func (m memory) add(t testing.TB, e Entry) {
	t.Helper()
	files, next, err := m.read(t).Next(e)
	try(t, err)
	for _, f := range files {
		if before, there := m[f.Name]; there {
			t.Fatalf("%s is written over: %d bytes by %d", f.Name, len(before), len(f.Content))
		}
		m[f.Name] = f.Content
	}
	m[CheckpointName], err = next.Sign(logKey)
	try(t, err)
}

func (m memory) read(t testing.TB) *Reader {
	t.Helper()
	r, err := Read(t.Context(), m, trusted)
	try(t, err)
	return r
}

func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError wants one line that says so.
func wantError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: got %v, want an error of one line with %q", name, err, want)
	}
}

// rootOf is RFC 6962 §2.1, word by word.
func rootOf(leaves [][]byte) merkle.Hash {
	switch n := len(leaves); n {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return sha256.Sum256(append([]byte{0}, leaves[0]...))
	default:
		k := 1 << (bits.Len(uint(n-1)) - 1)
		left, right := rootOf(leaves[:k]), rootOf(leaves[k:])
		return sha256.Sum256(append(append([]byte{1}, left[:]...), right[:]...))
	}
}

// A log grows over the bounds of tiles: each root is RFC 6962's, each entry is there and proven, and each tree goes on from all before.
func TestLogGrows(t *testing.T) {
	m := newLog(t, 0, 0)
	var leaves [][]byte
	var before []Checkpoint
	sizes := []int{0, 1, 2, 3, 7, 8, 255, 256, 257, 511, 512, 513}
	for _, size := range sizes {
		for len(leaves) < size {
			e := entryNumber(len(leaves))
			encoded, err := e.Encode()
			try(t, err)
			leaves = append(leaves, encoded)
			m.add(t, e)
		}
		r := m.read(t)
		if r.Size != int64(size) || r.Origin != origin || r.Root != rootOf(leaves) {
			t.Fatalf("%d entries: %+v", size, r.Checkpoint)
		}
		for _, earlier := range append(before, r.Checkpoint) {
			if err := r.GoesOnFrom(earlier); err != nil {
				t.Errorf("from %d to %d: %v", earlier.Size, size, err)
			}
		}
		before = append(before, r.Checkpoint)
		next := int64(0)
		try(t, r.Each(func(index int64, e Entry) error {
			if want := entryNumber(int(next)); index != next || e.Release != want.Release {
				t.Errorf("entry %d is %d, %v", next, index, e)
			}
			next++
			return nil
		}))
		if next != r.Size {
			t.Errorf("%d entries of %d were listed", next, size)
		}
		for _, index := range []int{0, size / 2, size - 1} {
			if size > 0 {
				wantProof(t, r, index)
			}
		}
		if _, err := r.Find(entryNumber(size)); err == nil {
			t.Errorf("an entry that is not in %d was found", size)
		}
	}
}

func wantProof(t *testing.T, r *Reader, number int) {
	t.Helper()
	e := entryNumber(number)
	index, err := r.Find(e)
	if err != nil || index != int64(number) {
		t.Fatalf("entry %d was found as %d: %v", number, index, err)
	}
	p, err := r.Prove(index)
	try(t, err)
	encoded, err := p.Encode()
	try(t, err)
	again, err := ParseProof(encoded)
	try(t, err)
	if c, err := again.Verify(e, trusted); err != nil || c.Size != r.Size {
		t.Errorf("entry %d of %d: %v", number, r.Size, err)
	}
}

// Where a tile is full, the partial ones that it was before may be gone.
func TestLogWithoutPartialTiles(t *testing.T) {
	m := newLog(t, 0, 250)
	old := m[CheckpointName]
	m.grow(t, 250, 10)
	maps.DeleteFunc(m, func(name string, _ []byte) bool {
		return strings.HasPrefix(name, "tile/0/000.p/") || strings.HasPrefix(name, "tile/entries/000.p/")
	})
	r, err := ReadAt(t.Context(), m, trusted, old)
	try(t, err)
	wantProof(t, r, 249)
	wantProof(t, m.read(t), 259)
}

// smallDocument is signed by a key.
func smallDocument(t testing.TB, svn uint32, key crypto.Signer) []byte {
	t.Helper()
	p := pcrs.Prediction{Registers: []pcrs.Register{4}}
	p.Log.Events = []pcrs.Event{{
		Register: 4, Type: pcrs.EvSeparator, Digests: pcrs.DigestsOf([]byte{0}, pcrs.PredictedBanks()...), Source: &pcrs.Source{Kind: pcrs.FromSeparator}, Origin: pcrs.Derived,
	}}
	digest := make(pcrs.Digest, sha256.Size)
	image := measurements.Image{ID: "node", Version: "1", Disk: digest, RootHash: digest, UKI: digest, Stub: "257"}
	d, err := measurements.New(image, measurements.Release{Name: "spring", SVN: svn}, pcrs.Machine{}, p)
	try(t, err)
	signed, err := measurements.Sign(key, d)
	try(t, err)
	return signed
}

// shop is a log with a document in it, cosigned by two witnesses, and its proof.
type shop struct {
	files     memory
	key       ed25519.PrivateKey
	signed    []byte
	trust     Trust
	witnesses []ed25519.PrivateKey
	proof     Proof
}

func newShop(t *testing.T) shop {
	t.Helper()
	s := shop{files: newLog(t, 0, 5), key: keyNumber(9), witnesses: []ed25519.PrivateKey{keyNumber(2), keyNumber(3)}}
	s.signed = smallDocument(t, 1, s.key)
	e, err := EntryOf(s.signed, s.key.Public())
	try(t, err)
	s.files.add(t, e)
	s.files.grow(t, 5, 3)
	for _, w := range s.witnesses {
		s.cosign(t, w)
		s.trust.Witnesses = append(s.trust.Witnesses, public(w))
	}
	s.trust.Origin, s.trust.Key, s.trust.Threshold = origin, public(logKey), 2
	s.proof, err = s.files.read(t).Prove(5)
	try(t, err)
	return s
}

func (s *shop) cosign(t *testing.T, w ed25519.PrivateKey) {
	t.Helper()
	cosigned, err := s.files.read(t).Cosign(nil, w, noon)
	try(t, err)
	s.files[CheckpointName] = cosigned
}

// lines are those of the proof's checkpoint: three of text, an empty one, then signatures.
func (s *shop) lines() []string { return strings.SplitAfter(s.proof.Checkpoint, "\n") }

func TestVerify(t *testing.T) {
	s := newShop(t)
	c, err := Verify(s.proof, s.signed, s.key.Public(), s.trust)
	try(t, err)
	if c.Size != 9 || c.Origin != origin || len(c.Cosignatures) != 2 || !c.Cosignatures[1].Time.Equal(noon) || c.Cosignatures[1].Witness != 1 {
		t.Errorf("got %+v", c)
	}
	later := append(c.Cosignatures, Cosignature{Time: noon.Add(time.Hour)}, Cosignature{Time: noon.Add(time.Minute)})
	if got := (Checkpoint{Cosignatures: later}).CosignedAt(); !got.Equal(noon.Add(time.Hour)) || !(Checkpoint{}).CosignedAt().IsZero() {
		t.Errorf("the newest is of %v", got)
	}
	// Less may be demanded, and no name.
	for _, threshold := range []int{0, 1, 2} {
		trust := s.trust
		trust.Origin, trust.Threshold = "", threshold
		if _, err := Verify(s.proof, s.signed, s.key.Public(), trust); err != nil {
			t.Errorf("threshold %d: %v", threshold, err)
		}
	}
}

// TestVerifyRefuses changes one thing of what is right, and counts cosignatures as who shows a checkpoint would like them counted.
func TestVerifyRefuses(t *testing.T) {
	cosignedAs := func(s *shop, name string, w ed25519.PrivateKey) string {
		n := &note.Note{Text: strings.Join(s.lines()[:3], "")}
		signer, err := newSigner(name, cosignature, w)
		try(t, err)
		signer.at = noon.Unix()
		signed, err := note.Sign(n, signer)
		try(t, err)
		return strings.SplitAfter(string(signed), "\n")[4]
	}
	for name, c := range map[string]struct {
		change func(s *shop)
		want   string
	}{
		"a proof for another document":     {func(s *shop) { s.signed = smallDocument(t, 2, s.key) }, "not in the log"},
		"a document of another key's":      {func(s *shop) { s.key = keyNumber(8); s.signed = smallDocument(t, 1, s.key) }, "not in the log"},
		"no signature by the key":          {func(s *shop) { s.key = keyNumber(8) }, "no signature is by a key that is named"},
		"another number":                   {func(s *shop) { s.proof.Index-- }, "not in the log"},
		"a number after the end":           {func(s *shop) { s.proof.Index = 9 }, "not in the log"},
		"a number before the start":        {func(s *shop) { s.proof.Index = -1 }, "not in the log"},
		"another hash":                     {func(s *shop) { s.proof.Hashes[0][0]++ }, "not in the log"},
		"a hash less":                      {func(s *shop) { s.proof.Hashes = s.proof.Hashes[1:] }, "not in the log"},
		"a hash more":                      {func(s *shop) { s.proof.Hashes = append(s.proof.Hashes, merkle.Hash{}) }, "not in the log"},
		"another origin":                   {func(s *shop) { s.trust.Origin = "releases.example/other" }, "it is of the log"},
		"another log's key":                {func(s *shop) { s.trust.Key = public(keyNumber(7)) }, "by the log's key"},
		"a checkpoint of the witness only": {func(s *shop) { l := s.lines(); s.proof.Checkpoint = strings.Join(slices.Delete(l, 4, 5), "") }, "by the log's key"},
		"another size":                     {func(s *shop) { s.proof.Checkpoint = strings.Replace(s.proof.Checkpoint, "\n9\n", "\n8\n", 1) }, "invalid signature"},
		"too few cosignatures":             {func(s *shop) { s.proof.Checkpoint = strings.Join(s.lines()[:6], "") }, "1 of 2 witnesses cosigned it, want 2"},
		"cosignatures by unknown witnesses": {func(s *shop) {
			s.trust.Witnesses = []ed25519.PublicKey{public(keyNumber(4)), public(keyNumber(5))}
		}, "0 of 2 witnesses"},
		"one witness under two names": {func(s *shop) {
			s.proof.Checkpoint = strings.Join(s.lines()[:6], "") + cosignedAs(s, "other.example/w", s.witnesses[0])
		}, "1 of 2 witnesses"},
		"one witness twice under one name": {func(s *shop) {
			l := s.lines()
			s.proof.Checkpoint = strings.Join(l[:6], "") + l[5]
		}, "1 of 2 witnesses"},
		"one witness named twice":     {func(s *shop) { s.trust.Witnesses[1] = s.trust.Witnesses[0] }, "one witness counts once"},
		"the log as its own witness":  {func(s *shop) { s.trust.Witnesses[1] = s.trust.Key }, "no witness of itself"},
		"more cosignatures than keys": {func(s *shop) { s.trust.Threshold = 3 }, "3 cosignatures are demanded of 2"},
		"a key that is none":          {func(s *shop) { s.trust.Witnesses[1] = []byte("short") }, "want an Ed25519 public key"},
		"a log's key that is none":    {func(s *shop) { s.trust.Key = nil }, "want an Ed25519 public key"},
		"a cosignature of another tree": {func(s *shop) {
			other := newLog(t, 0, 9).read(t)
			cosigned, err := other.Cosign(nil, s.witnesses[1], noon)
			try(t, err)
			s.proof.Checkpoint = strings.Join(s.lines()[:6], "") + strings.SplitAfter(string(cosigned), "\n")[5]
		}, "invalid signature"},
		"a plain signature by a witness": {func(s *shop) {
			signer, err := newSigner(origin, plainSignature, s.witnesses[1])
			try(t, err)
			signed, err := note.Sign(&note.Note{Text: strings.Join(s.lines()[:3], "")}, signer)
			try(t, err)
			s.proof.Checkpoint = strings.Join(s.lines()[:6], "") + strings.SplitAfter(string(signed), "\n")[4]
		}, "1 of 2 witnesses"},
	} {
		s := newShop(t)
		c.change(&s)
		_, err := Verify(s.proof, s.signed, s.key.Public(), s.trust)
		wantError(t, name, err, c.want)
	}
}
