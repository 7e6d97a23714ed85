package publish

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/measurements/tlog/place"
)

// logged is a log with the shop's document in it, and the document's proof.
func (s *shop) logged(t *testing.T) (entry tlog.Entry, proof []byte) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	logKey := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	if err := place.Create(dir, "releases.example/log", logKey); err != nil {
		t.Fatal(err)
	}
	entry, err := tlog.EntryOf(s.sign(t, s.document), s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	p, err := place.Append(t.Context(), dir, logKey, entry)
	if err != nil {
		t.Fatal(err)
	}
	if proof, err = p.Encode(); err != nil {
		t.Fatal(err)
	}
	return entry, proof
}

func TestLogProofIsPublished(t *testing.T) {
	s := newShop(t)
	signed := s.sign(t, s.document)
	_, proof := s.logged(t)
	if err := PutLogProof(Folder(s.dir), signed, s.key.Public(), proof); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]Source{"folder": Folder(s.dir), "web": serve(t, s.dir, nil)} {
		if got, err := FetchLogProof(t.Context(), source, signed, s.key.Public()); err != nil || !bytes.Equal(got, proof) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	registry := s.registry(t, true)
	if _, err := FetchLogProof(t.Context(), registry, signed, s.key.Public()); !errors.Is(err, ErrNoProofs) {
		t.Errorf("a registry: %v", err)
	}
	if err := PutLogProof(newRegistry(t, true).place(t, "shop/node:spring", nil), signed, s.key.Public(), proof); !errors.Is(err, ErrNoProofs) {
		t.Errorf("a registry: %v", err)
	}
}

func TestLogProofRefused(t *testing.T) {
	s, elsewhere := newShop(t), newShop(t)
	signed := s.sign(t, s.document)
	_, proof := s.logged(t)
	_, other := elsewhere.logged(t)
	if _, err := FetchLogProof(t.Context(), Folder(s.dir), signed, s.key.Public()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none is there: %v", err)
	}
	for name, c := range map[string]struct {
		proof []byte
		want  string
	}{
		"of another document": {other, "not in the log"},
		"torn":                {proof[:100], "cut off"},
		"huge":                {bytes.Repeat([]byte("x"), tlog.MaxProof+1), "at most"},
		"nothing":             {nil, "empty"},
	} {
		if err := PutLogProof(Folder(s.dir), signed, s.key.Public(), c.proof); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, digestPath(s.id, proofEnding)), c.proof, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := FetchLogProof(t.Context(), Folder(s.dir), signed, s.key.Public()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStanding(t *testing.T) {
	s, stranger := newShop(t), newShop(t)
	entry, _ := s.logged(t)
	secret, err := tlog.EntryOf(s.sign(t, s.describe(t, "node", 4)), s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	lie := secret
	lie.Document = entry.Document
	strange, _ := stranger.logged(t)
	keys := []crypto.PublicKey{newShop(t).key.Public(), s.key.Public()}
	for name, source := range map[string]Source{"folder": Folder(s.dir), "web": serve(t, s.dir, nil), "registry": s.registry(t, true)} {
		for what, c := range map[string]struct {
			entry tlog.Entry
			want  Standing
		}{
			"published":                           {entry, Announced},
			"signed, and nowhere published":       {secret, NotAnnounced},
			"signed by somebody else":             {strange, ByAnotherKey},
			"under the name of what is published": {lie, AnotherStatement},
		} {
			if got, err := StandingOf(t.Context(), source, c.entry, keys); got != c.want || err != nil {
				t.Errorf("%s: %s: %q, %v", name, what, got, err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(s.dir, digestPath(s.id, ".dsse")), []byte("something"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := StandingOf(t.Context(), Folder(s.dir), entry, keys); err == nil {
		t.Errorf("what cannot be read is %q", got)
	}
}
