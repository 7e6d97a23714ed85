package publish

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/measurements/tlog/place"
)

// logOf is a log in a folder with these entries, some of them twice, as who has its key can write it.
func logOf(t *testing.T, entries ...tlog.Entry) *tlog.Reader {
	t.Helper()
	dir, key := filepath.Join(t.TempDir(), "log"), ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	if err := place.Create(dir, "releases.example/log", key); err != nil {
		t.Fatal(err)
	}
	read := func() *tlog.Reader {
		r, err := tlog.Read(t.Context(), place.Folder(dir), tlog.Trust{Key: key.Public().(ed25519.PublicKey)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, e := range entries {
		files, next, err := read().Next(e)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := next.Sign(key)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(files, tlog.File{Name: tlog.CheckpointName, Content: signed}) {
			path := filepath.Join(dir, filepath.FromSlash(f.Name))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, f.Content, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return read()
}

// entry is the entry of the shop's release with a security version.
func (s *shop) entry(t *testing.T, svn uint32) tlog.Entry {
	t.Helper()
	e, err := tlog.EntryOf(s.sign(t, s.describe(t, "node", svn)), s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestUnannounced(t *testing.T) {
	s, stranger := newShop(t), newShop(t)
	announced, secret := s.entry(t, 3), s.entry(t, 4)
	lie := secret
	lie.Document = announced.Document
	log := logOf(t, announced, announced, stranger.entry(t, 3), secret, secret, lie)
	want := func(what string, source Source, first int64, others, done int64, found ...string) {
		t.Helper()
		news, err := Unannounced(t.Context(), source, log, first, s.key.Public())
		var got []string
		for _, u := range news.Unannounced {
			got = append(got, fmt.Sprint(u.Index, " ", u.Standing))
		}
		if err != nil || !slices.Equal(got, found) || news.Others != others || news.Done != done {
			t.Errorf("%s, from %d: %q, %d others, %d done, %v", what, first, got, news.Others, news.Done, err)
		}
	}
	hidden, lied := "3 "+string(NotAnnounced), "5 "+string(AnotherStatement)
	for what, source := range map[string]Source{"folder": Folder(s.dir), "web": serve(t, s.dir, nil), "registry": s.registry(t, true)} {
		want(what, source, 0, 1, 3, hidden, lied)
		want(what, source, 3, 0, 3, hidden, lied)
		want(what, source, 5, 0, 5, lied)
		want(what, source, 6, 0, 6)
	}
	s.publish(t, Folder(s.dir), s.describe(t, "node", 4))
	want("announced since", Folder(s.dir), 3, 0, 5, lied)

	asked := 0
	counted := serve(t, s.dir, func(http.ResponseWriter, *http.Request) bool { asked++; return false })
	want("counted", counted, 0, 1, 5, lied)
	if asked != 3 {
		t.Errorf("the place was asked %d times about 3 releases", asked)
	}
	if err := os.WriteFile(filepath.Join(s.dir, digestPath(s.id, ".dsse")), []byte("something"), 0o600); err != nil {
		t.Fatal(err)
	}
	if news, err := Unannounced(t.Context(), Folder(s.dir), log, 0, s.key.Public()); err == nil || !strings.Contains(err.Error(), "entry 0") {
		t.Errorf("a place that gives something else: %v, %v", news, err)
	}
}

// Who floods a log cannot have a place asked without end.
func TestUnannouncedFlood(t *testing.T) {
	s := newShop(t)
	flood := []tlog.Entry{s.entry(t, 3)}
	for n := range MaxUnannounced + 5 {
		e := s.entry(t, 4)
		e.Document[0] ^= byte(n + 1)
		flood = append(flood, e)
	}
	asked := 0
	counted := serve(t, s.dir, func(http.ResponseWriter, *http.Request) bool { asked++; return false })
	news, err := Unannounced(t.Context(), counted, logOf(t, flood...), 0, s.key.Public())
	if err != nil || len(news.Unannounced) != MaxUnannounced || news.Done != 1 || asked != MaxUnannounced+1 {
		t.Errorf("%d are shown, %d are done, %d were asked for: %v", len(news.Unannounced), news.Done, asked, err)
	}
}
