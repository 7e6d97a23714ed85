package place

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/fulldisk"
	"github.com/hullmark/hullmark/measurements/tlog"
)

const origin = "releases.example/log"

// keyNumber makes the same key of the same number.
func keyNumber(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

var (
	logKey  = keyNumber(1)
	trusted = tlog.Trust{Key: public(logKey)}
	noon    = time.Unix(1_800_000_000, 0).UTC()
)

func entryNumber(n int) tlog.Entry {
	digest := sha256.Sum256(fmt.Append(nil, n))
	return tlog.Entry{Schema: tlog.EntrySchema, Statement: digest[:], Key: digest[:], Document: digest, Image: "node", Release: fmt.Sprint("release ", n)}
}

func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want %q", name, err, want)
	}
}

// inMemory is a log's files.
type inMemory map[string][]byte

func (m inMemory) ReadFile(_ context.Context, name string, _ int64) ([]byte, error) {
	if content, ok := m[name]; ok {
		return content, nil
	}
	return nil, fs.ErrNotExist
}

// made are logs that newFolder made, by the first entry's number and how many there are.
var made = map[[2]int]inMemory{}

// newFolder is a log with as many entries of that number on.
func newFolder(t testing.TB, first, entries int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	try(t, Create(dir, origin, logKey))
	which := [2]int{first, entries}
	if made[which] == nil {
		made[which] = makeLog(t, dir, first, entries)
	}
	for name, content := range made[which] {
		path := filepath.Join(dir, filepath.FromSlash(name))
		try(t, os.MkdirAll(filepath.Dir(path), 0o755))
		try(t, os.WriteFile(path, content, 0o644))
	}
	return dir
}

// makeLog lets the log in a folder grow in memory.
func makeLog(t testing.TB, dir string, first, entries int) inMemory {
	t.Helper()
	empty, err := os.ReadFile(filepath.Join(dir, tlog.CheckpointName))
	try(t, err)
	m := inMemory{tlog.CheckpointName: empty}
	for n := range entries {
		r, err := tlog.Read(t.Context(), m, trusted)
		try(t, err)
		files, next, err := r.Next(entryNumber(first + n))
		try(t, err)
		for _, f := range files {
			m[f.Name] = f.Content
		}
		m[tlog.CheckpointName], err = next.Sign(logKey)
		try(t, err)
	}
	return m
}

func read(t testing.TB, dir string) *tlog.Reader {
	t.Helper()
	r, err := tlog.Read(t.Context(), Folder(dir), trusted)
	try(t, err)
	return r
}

// wantEntries wants a log of these entries.
func wantEntries(t *testing.T, what, dir string, numbers ...int) {
	t.Helper()
	var got, want []string
	for _, n := range numbers {
		want = append(want, entryNumber(n).Release)
	}
	if err := read(t, dir).Each(func(_ int64, e tlog.Entry) error {
		got = append(got, e.Release)
		return nil
	}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %d entries, %v; want %d: %q", what, len(got), err, len(want), got[max(0, len(got)-3):])
	}
}

// numbers are those from 0 to n and more.
func numbers(n int, more ...int) []int {
	var all []int
	for i := range n {
		all = append(all, i)
	}
	return append(all, more...)
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "log")
	try(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

func TestAppend(t *testing.T) {
	dir := newFolder(t, 0, 254)
	for n := 254; n < 258; n++ {
		for range 2 { // The second time it is in there.
			p, err := Append(t.Context(), dir, logKey, entryNumber(n))
			try(t, err)
			if c, err := p.Verify(entryNumber(n), trusted); err != nil || p.Index != int64(n) || c.Size != int64(n)+1 {
				t.Errorf("entry %d is %d of %d: %v", n, p.Index, c.Size, err)
			}
		}
	}
	wantEntries(t, "appended", dir, numbers(258)...)
}

// TestAppendIsCut cuts an append off before and after each file that it stores, and then appends another entry: the log is whole before
// and after, the entry is in it once it was stored and exactly once when it is appended again, and no earlier tree is contradicted.
func TestAppendIsCut(t *testing.T) {
	errCut := errors.New("the power is cut")
	for _, size := range []int{0, 1, 255, 256} {
		base := newFolder(t, 0, size)
		for cut := 0; ; cut++ {
			dir, left := copyOf(t, base), cut
			before := read(t, dir).Checkpoint
			_, err := appendTo(t.Context(), dir, logKey, entryNumber(1000), func(root *os.Root, f tlog.File) error {
				if left--; left < 0 {
					return errCut
				}
				return store(root, f)
			})
			what := fmt.Sprintf("%d entries, cut at file %d", size, cut)
			if err == nil {
				if cut < 3 {
					t.Errorf("%s: only %d files were stored", what, cut)
				}
				break
			}
			if !errors.Is(err, errCut) {
				t.Fatalf("%s: %v", what, err)
			}
			wantEntries(t, what, dir, numbers(size)...)
			_, err = Append(t.Context(), dir, logKey, entryNumber(2000))
			try(t, err)
			want := numbers(size, 1000, 2000)
			if cut == 0 { // Nothing of it was stored.
				want = numbers(size, 2000)
			}
			wantEntries(t, what+", went on", dir, want...)
			_, err = Append(t.Context(), dir, logKey, entryNumber(1000))
			try(t, err)
			if cut == 0 {
				want = numbers(size, 2000, 1000)
			}
			wantEntries(t, what+", again", dir, want...)
			if err := read(t, dir).GoesOnFrom(before); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

// A power cut may take a new checkpoint back that somebody has seen by then. The log goes on with what was seen.
func TestSeenCheckpointIsTakenBack(t *testing.T) {
	dir := newFolder(t, 0, 3)
	file := filepath.Join(dir, tlog.CheckpointName)
	before, err := os.ReadFile(file)
	try(t, err)
	_, err = Append(t.Context(), dir, logKey, entryNumber(3))
	try(t, err)
	seen := read(t, dir).Checkpoint
	try(t, os.WriteFile(file, before, 0o644))
	_, err = Append(t.Context(), dir, logKey, entryNumber(4))
	try(t, err)
	wantEntries(t, "taken back", dir, numbers(5)...)
	if err := read(t, dir).GoesOnFrom(seen); err != nil {
		t.Error(err)
	}
}

// Whoever may read the files of a log may read its folders, whatever the umask is.
func TestFoldersAreForAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	t.Cleanup(func(before int) func() { return func() { syscall.Umask(before) } }(syscall.Umask(0o077)))
	try(t, Create(dir, origin, logKey))
	_, err := Append(t.Context(), dir, logKey, entryNumber(0))
	try(t, err)
	try(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if want := map[bool]fs.FileMode{true: 0o755, false: 0o644}[e.IsDir()]; err == nil && info.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v", path, info.Mode().Perm(), want)
		}
		return err
	}))
}

// Several that append wait for each other.
func TestOneWriterAtATime(t *testing.T) {
	dir := newFolder(t, 0, 0)
	var all sync.WaitGroup
	errs := make([]error, 12)
	for n := range errs {
		all.Go(func() { _, errs[n] = Append(context.Background(), dir, logKey, entryNumber(n)) })
	}
	all.Wait()
	try(t, errors.Join(errs...))
	found := map[string]bool{}
	try(t, read(t, dir).Each(func(_ int64, e tlog.Entry) error {
		found[e.Release] = true
		return nil
	}))
	if r := read(t, dir); r.Size != int64(len(errs)) || len(found) != len(errs) {
		t.Errorf("%d entries, %d of them different", r.Size, len(found))
	}
}

func TestAppendRefuses(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	try(t, err)
	damage := func(name string, content []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) { try(t, os.WriteFile(filepath.Join(dir, name), content, 0o644)) }
	}
	for name, c := range map[string]struct {
		key    crypto.Signer
		change func(t *testing.T, dir string)
		want   string
	}{
		"another key":                  {keyNumber(2), nil, "by the log's key"},
		"an ECDSA key":                 {p256, nil, "want Ed25519"},
		"no log":                       {logKey, func(t *testing.T, dir string) { try(t, os.RemoveAll(dir)) }, "hullmark log create"},
		"a folder without a log":       {logKey, func(t *testing.T, dir string) { try(t, os.Remove(filepath.Join(dir, "checkpoint"))) }, "no such file"},
		"a torn checkpoint":            {logKey, damage("checkpoint", []byte("releases")), "malformed note"},
		"a tile of something else":     {logKey, damage("tile/0/000.p/3", make([]byte, 96)), "do not hash up"},
		"entries of something else":    {logKey, damage("tile/entries/000.p/3", []byte("\x00\x01x\x00\x01x\x00\x01x")), "another than the one in the tree"},
		"begun with something else":    {logKey, damage("tile/entries/000.p/4", []byte("\x00\x01x\x00\x01x\x00\x01x\x00\x01x")), "does not begin with"},
		"begun, and torn in its place": {logKey, damage("tile/entries/000.p/4", []byte("\x00\x05x")), "no checkpoint covers yet"},
	} {
		dir := newFolder(t, 0, 3)
		if c.change != nil {
			c.change(t, dir)
		}
		_, err := Append(t.Context(), dir, c.key, entryNumber(4))
		wantError(t, name, err, c.want)
	}
}

func TestCreateRefuses(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	try(t, err)
	there := newFolder(t, 0, 1)
	for name, c := range map[string]struct {
		dir, origin string
		key         crypto.Signer
		want        string
	}{
		"a log is there":   {there, origin, logKey, "exists"},
		"a folder":         {t.TempDir(), origin, logKey, "exists"},
		"no name":          {filepath.Join(t.TempDir(), "log"), "", logKey, "origin"},
		"a name of words":  {filepath.Join(t.TempDir(), "log"), "two words", logKey, "origin"},
		"an ECDSA key":     {filepath.Join(t.TempDir(), "log"), origin, p256, "want Ed25519"},
		"no parent folder": {filepath.Join(t.TempDir(), "none", "log"), origin, logKey, "make the folder"},
	} {
		wantError(t, name, Create(c.dir, c.origin, c.key), c.want)
	}
	wantEntries(t, "what was there", there, 0)
}

func TestWritesWithoutRoom(t *testing.T) {
	fulldisk.Check(t, fulldisk.Writer{Name: "log", Write: func(dir string) error { return Create(filepath.Join(dir, "log"), origin, logKey) }})
}

// serve shows a folder on loopback; change may do otherwise with a request and say so.
func serve(t *testing.T, dir string, change func(http.ResponseWriter, *http.Request) bool) tlog.Files {
	t.Helper()
	files := http.FileServer(http.Dir(dir))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if change == nil || !change(w, r) {
			files.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	found, err := Web(server.URL + "/")
	try(t, err)
	return found
}

func TestWeb(t *testing.T) {
	dir := newFolder(t, 0, 260)
	r, err := tlog.Read(t.Context(), serve(t, dir, nil), trusted)
	try(t, err)
	n := 0
	try(t, r.Each(func(int64, tlog.Entry) error { n++; return nil }))
	if n != 260 {
		t.Errorf("%d entries", n)
	}
	for _, address := range []string{"ftp://host/", "http://", "http://user@host/", "https://host/?a", "https://host/#a", "://"} {
		if _, err := Web(address); err == nil {
			t.Errorf("%s is an address", address)
		}
	}
}

func TestHostileServer(t *testing.T) {
	dir := newFolder(t, 0, 3)
	for name, c := range map[string]struct {
		change func(http.ResponseWriter, *http.Request)
		want   string
	}{
		"without end": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "too long"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://example.invalid/checkpoint", http.StatusFound)
		}, "not asked for"},
		"in a circle": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, "redirects"},
		"an error":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "500"},
		"short":       {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "100") }, "EOF"},
		"something":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }, "malformed note"},
	} {
		_, err := tlog.Read(t.Context(), serve(t, dir, func(w http.ResponseWriter, r *http.Request) bool {
			c.change(w, r)
			return true
		}), trusted)
		wantError(t, name, err, c.want)
	}
}
