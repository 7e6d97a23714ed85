package publish

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// otherSBOM stands for the SBOM in its other form.
var otherSBOM = []byte("the same SBOM")

// shop is a tree with one release in it, and the files that it was published from.
type shop struct {
	dir      string
	files    Files
	key      ed25519.PrivateKey
	image    []byte
	sbom     []byte
	document measurements.Document
	id       string
	// provenance is signed.
	provenance []byte
}

func newShop(t *testing.T) *shop {
	t.Helper()
	return newShopOf(t, bytes.Repeat([]byte("image "), 500_000))
}

func newShopOf(t *testing.T, image []byte) *shop {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{dir: t.TempDir(), key: key, image: image, sbom: []byte("an SBOM")}
	from := t.TempDir()
	s.files = Files{
		Image: filepath.Join(from, "image"), SBOM: filepath.Join(from, "sbom"), CycloneDX: filepath.Join(from, "other SBOM"), Provenance: filepath.Join(from, "provenance"),
	}
	for path, content := range map[string][]byte{s.files.Image: s.image, s.files.SBOM: s.sbom, s.files.CycloneDX: otherSBOM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.document = s.describe(t, "node", 3)
	s.provenance = s.prove(t, s.document.Image.Disk)
	if err := os.WriteFile(s.files.Provenance, s.provenance, 0o600); err != nil {
		t.Fatal(err)
	}
	s.publish(t, Folder(s.dir), s.document)
	digest, err := s.document.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.id = digest.String()
	return s
}

func (s *shop) describe(t *testing.T, name string, svn uint32) measurements.Document {
	t.Helper()
	p := pcrs.Prediction{Registers: []pcrs.Register{4, 12}}
	p.Log.Events = []pcrs.Event{{
		Register: 4, Type: pcrs.EvSeparator, Digests: pcrs.DigestsOf([]byte{0}, pcrs.PredictedBanks()...), Source: &pcrs.Source{Kind: pcrs.FromSeparator}, Origin: pcrs.Derived,
	}}
	disk, sbom, cycloneDX := sha256.Sum256(s.image), sha256.Sum256(s.sbom), sha256.Sum256(otherSBOM)
	other := make(pcrs.Digest, 32)
	d, err := measurements.New(measurements.Image{ID: name, Version: "1", Disk: disk[:], RootHash: other, UKI: other, Stub: "257"}, measurements.Release{SVN: svn, SBOM: sbom[:], CycloneDX: cycloneDX[:]}, pcrs.Machine{}, p)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// prove signs a provenance of a disk.
func (s *shop) prove(t *testing.T, disk pcrs.Digest) []byte {
	t.Helper()
	p, err := measurements.NewProvenance(measurements.BuildDefinition{}, measurements.RunDetails{Builder: measurements.ProvenanceBuilder{ID: measurements.LocalBuilder}}, []string{"node.raw"}, []pcrs.Digest{disk})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := measurements.SignProvenance(s.key, p)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func (s *shop) sign(t *testing.T, d measurements.Document) []byte {
	t.Helper()
	signed, err := measurements.Sign(s.key, d)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func (s *shop) publish(t *testing.T, to Store, d measurements.Document) {
	t.Helper()
	if err := Release(t.Context(), to, s.sign(t, d), s.key.Public(), s.files); err != nil {
		t.Fatal(err)
	}
}

// serve shows a tree on loopback; change may do otherwise with a request and say so.
func serve(t *testing.T, dir string, change func(http.ResponseWriter, *http.Request) bool) Source {
	t.Helper()
	files := http.FileServer(http.Dir(dir))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if change == nil || !change(w, r) {
			files.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	source, err := Web(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func TestFetchWhatWasPublished(t *testing.T) {
	s := newShop(t)
	for name, source := range map[string]Source{
		"folder": Folder(s.dir), "web": serve(t, s.dir, nil), "registry": s.registry(t, true), "registry without the referrers API": s.registry(t, false),
	} {
		for _, reference := range []string{"node", s.id} {
			signed, d, err := Fetch(t.Context(), source, reference, s.key.Public(), 3)
			if err != nil || !bytes.Equal(signed, s.sign(t, s.document)) {
				t.Errorf("%s: %s: %v", name, reference, err)
				continue
			}
			to := filepath.Join(t.TempDir(), "image")
			if err := FetchImage(t.Context(), source, d, to, nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, s.image) {
				t.Errorf("%s: another image came: %v", name, err)
			}
			if err := FetchSBOM(t.Context(), source, d, to); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, s.sbom) {
				t.Errorf("%s: another SBOM came: %v", name, err)
			}
			if err := FetchCycloneDX(t.Context(), source, d, to); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, otherSBOM) {
				t.Errorf("%s: another CycloneDX SBOM came: %v", name, err)
			}
			if got, err := FetchProvenance(t.Context(), source, d, s.key.Public()); err != nil || !bytes.Equal(got, s.provenance) {
				t.Errorf("%s: another provenance came: %v", name, err)
			}
			if _, err := FetchProvenance(t.Context(), source, d, newShop(t).key.Public()); err == nil || !strings.Contains(err.Error(), "no signature is by a key that is named") {
				t.Errorf("%s: a stranger's provenance: %v", name, err)
			}
		}
	}
}

func TestFetchRefuses(t *testing.T) {
	s := newShop(t)
	elsewhere := newShop(t)
	document := s.sign(t, s.document)
	body := func(content []byte) Source {
		return serve(t, s.dir, func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write(content)
			return true
		})
	}
	endless := serve(t, s.dir, func(w http.ResponseWriter, _ *http.Request) bool {
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return true
			}
		}
	})
	away := serve(t, s.dir, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, "http://example.invalid/node.dsse", http.StatusFound)
		return true
	})
	round := serve(t, s.dir, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
		return true
	})
	for name, c := range map[string]struct {
		source    Source
		reference string
		minimum   uint32
		want      string
	}{
		"a release that is not there": {Folder(s.dir), "other", 0, "no such file"},
		"not there on the web":        {serve(t, s.dir, nil), "other", 0, "file does not exist"},
		"no reference":                {Folder(s.dir), "../node", 0, "want an image's name"},
		"another signer":              {Folder(elsewhere.dir), "node", 0, "no signature is by a key that is named"},
		"another digest":              {body(document), strings.Repeat("0", 64), 0, "instead"},
		"another name":                {body(s.sign(t, s.describe(t, "worker", 3))), "node", 0, `of image "worker" instead`},
		"an old release":              {Folder(s.dir), "node", 4, "shows an old release"},
		"an endless body":             {endless, "node", 0, "at most"},
		"a redirect to another host":  {away, "node", 0, "which was not asked for"},
		"a redirect in a circle":      {round, "node", 0, "redirects"},
		"an error of the server":      {serve(t, s.dir, func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true }), "node", 0, "500"},
	} {
		signed, _, err := Fetch(t.Context(), c.source, c.reference, s.key.Public(), c.minimum)
		if err == nil || !strings.Contains(err.Error(), c.want) || signed != nil && err == nil {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	for _, address := range []string{"ftp://host/", "host", "https://", "https://user:word@host/", "https://host/?q"} {
		if _, err := Web(address); err == nil {
			t.Errorf("%s is taken as a source", address)
		}
	}
}

// firstWindow is what is asked for first, for what a disk says of itself. This image says nothing.
const firstWindow = "bytes=0-32767"

// otherBuilder signs a document, too.
func (s *shop) otherBuilder(t *testing.T, d measurements.Document) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := measurements.Sign(key, d)
	if err != nil {
		t.Fatal(err)
	}
	both, err := measurements.Merge(s.sign(t, d), signed)
	if err != nil {
		t.Fatal(err)
	}
	return both
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// signatures counts those of an envelope.
func signatures(t *testing.T, signed []byte) int {
	t.Helper()
	var e struct{ Signatures []any }
	if err := json.Unmarshal(signed, &e); err != nil {
		t.Fatal(err)
	}
	return len(e.Signatures)
}

// What others signed of a document stays when it is published once more, without that; what is there and cannot be read does not.
func TestPublishKeepsSignatures(t *testing.T) {
	s := newShop(t)
	for name, to := range map[string]Store{"folder": Folder(s.dir), "registry": newRegistry(t, true).place(t, "node:1", nil)} {
		t.Run(name, func(t *testing.T) {
			fetched := func() []byte {
				signed, _, err := Fetch(t.Context(), to, s.id, s.key.Public(), 3)
				if err != nil {
					t.Fatal(err)
				}
				return signed
			}
			s.publish(t, to, s.document)
			for range 2 { // another builder each time
				if err := Release(t.Context(), to, s.otherBuilder(t, s.document), s.key.Public(), s.files); err != nil {
					t.Fatal(err)
				}
			}
			s.publish(t, to, s.document)
			if got := signatures(t, fetched()); got != 3 {
				t.Errorf("%d signatures are published, want 3", got)
			}
		})
	}
	there := filepath.Join(s.dir, "sha256", s.id+".dsse")
	if err := os.WriteFile(there, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.publish(t, Folder(s.dir), s.document)
	if got := signatures(t, readFile(t, there)); got != 1 {
		t.Errorf("over rubbish %d signatures are published, want 1", got)
	}
	for range 15 {
		if err := Release(t.Context(), Folder(s.dir), s.otherBuilder(t, s.document), s.key.Public(), s.files); err != nil {
			t.Fatal(err)
		}
	}
	if err := Release(t.Context(), Folder(s.dir), s.otherBuilder(t, s.document), s.key.Public(), s.files); !errors.Is(err, measurements.ErrTooMuchSigned) {
		t.Errorf("a seventeenth signature: %v", err)
	}
}

// fetchBoth fetches by the image's name and by the document's digest, and wants the same signatures, in whatever order.
func (s *shop) fetchBoth(t *testing.T, from Source, key crypto.PublicKey) []byte {
	t.Helper()
	byName, _, err := Fetch(t.Context(), from, "node", key, 3)
	if err != nil {
		t.Fatal(err)
	}
	byDigest, _, err := Fetch(t.Context(), from, s.id, key, 3)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := measurements.Merge(byName, byDigest)
	if err != nil {
		t.Fatal(err)
	}
	if name, digest, all := signatures(t, byName), signatures(t, byDigest), signatures(t, merged); name != all || digest != all {
		t.Errorf("of %d signatures %d come by name, and %d by digest", all, name, digest)
	}
	return byName
}

// ECDSA signs otherwise each time. What is published anew by one key has one signature by it.
func TestPublishAnewByECDSA(t *testing.T) {
	s := newShop(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]Store{"folder": Folder(t.TempDir()), "registry": newRegistry(t, true).place(t, "node:1", nil)} {
		for range 17 {
			signed, err := measurements.Sign(key, s.document)
			if err != nil {
				t.Fatal(err)
			}
			if err := Release(t.Context(), to, signed, key.Public(), Files{Image: s.files.Image}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if got := signatures(t, s.fetchBoth(t, to, key.Public())); got != 1 {
			t.Errorf("%s: %d signatures are published, want 1", name, got)
		}
		s.publish(t, to, s.document)
		if got := signatures(t, s.fetchBoth(t, to, key.Public())); got != 2 {
			t.Errorf("%s: %d signatures are published after another key's, want 2", name, got)
		}
	}
}

// Of two that publish one document at once, of which one ends within the other, both signatures are published.
func TestPublishWithinAnother(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	publish := func(to Store) {
		if err := Release(t.Context(), to, s.otherBuilder(t, s.document), s.key.Public(), s.files); err != nil {
			t.Error(err)
		}
	}
	for name, to := range map[string]Store{"folder": Folder(t.TempDir()), "registry": h.place(t, "node:1", nil)} {
		outer, err := Prepare(t.Context(), to, s.otherBuilder(t, s.document), s.key.Public(), s.files)
		if err != nil {
			t.Fatal(err)
		}
		var began atomic.Bool
		h.change = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost && began.CompareAndSwap(false, true) { // the first upload of the outer one
				publish(to)
			}
			return false
		}
		if name == "folder" {
			publish(to)
		}
		if err := outer.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := signatures(t, s.fetchBoth(t, to, s.key.Public())); got != 3 {
			t.Errorf("%s: %d signatures are published, want 3", name, got)
		}
	}
}

// Of many that publish one document in a folder at once, the signatures of all are published.
func TestPublishManyAtOnce(t *testing.T) {
	s := newShop(t)
	to := Folder(filepath.Join(t.TempDir(), "releases"))
	errs := make([]error, 12)
	var all sync.WaitGroup
	for n := range errs {
		signed := s.otherBuilder(t, s.document)
		all.Go(func() { errs[n] = Release(t.Context(), to, signed, s.key.Public(), Files{SBOM: s.files.SBOM}) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if got := signatures(t, s.fetchBoth(t, to, s.key.Public())); got != 1+len(errs) {
		t.Errorf("%d signatures are published, want %d", got, 1+len(errs))
	}
}

// What is prepared is checked, and nothing of it is published.
func TestPrepareWritesNothing(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	dir := filepath.Join(t.TempDir(), "releases")
	for name, to := range map[string]Store{"folder": Folder(dir), "registry": h.place(t, "node:1", nil)} {
		p, err := Prepare(t.Context(), to, s.sign(t, s.document), s.key.Public(), s.files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); err == nil || h.writes != 0 {
			t.Errorf("%s: something was written, %d things into the registry", name, h.writes)
		}
		if err := p.Publish(t.Context()); err != nil {
			t.Error(err)
		}
		s.fetchBoth(t, to, s.key.Public())
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		h.writes = 0
	}
}

// Whoever may read the files that were published may read the folders that were made for them, whatever the umask is.
func TestFoldersAreForAll(t *testing.T) {
	s := newShop(t)
	_, proof := s.logged(t)
	kept := t.TempDir()
	if err := os.Chmod(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func(before int) func() { return func() { syscall.Umask(before) } }(syscall.Umask(0o077)))
	published, proven := filepath.Join(kept, "www", "releases"), filepath.Join(kept, "proven")
	s.publish(t, Folder(published), s.document)
	if err := PutLogProof(Folder(proven), s.sign(t, s.document), s.key.Public(), proof); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(kept, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o644)
		if e.IsDir() {
			want = 0o755
		}
		if path == kept {
			want = 0o700 // as it was
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v", path, info.Mode().Perm(), want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := makeFolder(filepath.Join(published, "node.dsse", "sha256")); err == nil {
		t.Error("a file is taken for a folder")
	}
}

// An interrupted fetch goes on where it was, from servers that know ranges and from others.
func TestFetchImageGoesOn(t *testing.T) {
	s := newShop(t)
	for name, ranges := range map[string]bool{"a server with ranges": true, "a server without": false} {
		var asked []string
		cut := true
		source := serve(t, s.dir, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Range") == firstWindow {
				return false
			}
			asked = append(asked, r.Header.Get("Range"))
			if cut {
				cut = false
				w.Header().Set("Content-Length", "3000000")
				_, _ = w.Write(s.image[:1_234_567])
				return true
			}
			if !ranges {
				_, _ = w.Write(s.image)
			}
			return !ranges
		})
		to := filepath.Join(t.TempDir(), "image")
		if err := FetchImage(t.Context(), source, s.document, to, nil); err == nil || !strings.Contains(err.Error(), "goes on with it") {
			t.Errorf("%s: cut off: %v", name, err)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: half an image has its name", name)
		}
		last := int64(0)
		if err := FetchImage(t.Context(), source, s.document, to, func(done int64) { last = done }); err != nil {
			t.Errorf("%s: going on: %v", name, err)
		}
		got, err := os.ReadFile(to)
		if err != nil || !bytes.Equal(got, s.image) || last != int64(len(s.image)) {
			t.Errorf("%s: another image came, %d bytes: %v", name, last, err)
		}
		if !slices.Equal(asked, []string{"", "bytes=1234567-"}) {
			t.Errorf("%s: asked for %q", name, asked)
		}
	}
}

func TestFetchImageRefuses(t *testing.T) {
	s := newShop(t)
	to := filepath.Join(t.TempDir(), "image")
	left := func() []string {
		found, _ := filepath.Glob(to + "*")
		return found
	}
	wrong := bytes.Clone(s.image)
	wrong[7] ^= 1
	source := serve(t, s.dir, func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write(wrong); return true })
	if err := FetchImage(t.Context(), source, s.document, to, nil); err == nil || !strings.Contains(err.Error(), "signed is a disk with") || len(left()) != 0 {
		t.Errorf("another image: %v; left are %v", err, left())
	}
	small := file{kind{"disk", ".raw", "", 1000}, to, s.document.Image.Disk}
	if err := small.fetch(t.Context(), Folder(s.dir), nil); err == nil || !strings.Contains(err.Error(), "more than 1000 bytes") {
		t.Errorf("more than an image can have: %v", err)
	}
	if len(left()) != 0 {
		t.Errorf("left are %v", left())
	}
	endless := serve(t, s.dir, func(w http.ResponseWriter, _ *http.Request) bool {
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return true
			}
		}
	})
	bounded := file{kind{"disk", ".raw", "", 5 << 20}, to, s.document.Image.Disk}
	if err := bounded.fetch(t.Context(), endless, nil); err == nil || !strings.Contains(err.Error(), "more than 5242880 bytes") || len(left()) != 0 {
		t.Errorf("an endless body: %v; left are %v", err, left())
	}
	away := serve(t, s.dir, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, "http://example.invalid/image", http.StatusFound)
		return true
	})
	if err := FetchImage(t.Context(), away, s.document, to, nil); err == nil || !strings.Contains(err.Error(), "which was not asked for") || len(left()) != 0 {
		t.Errorf("a redirect to another host: %v; left are %v", err, left())
	}
	// What lies there is of the right length, and wrong: asked for the rest, the server has none.
	if err := os.WriteFile(to+".part", wrong, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := FetchImage(t.Context(), serve(t, s.dir, nil), s.document, to, nil); err == nil || len(left()) != 0 {
		t.Errorf("a wrong part: %v; left are %v", err, left())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := FetchImage(ctx, serve(t, s.dir, nil), s.document, to, nil); err == nil {
		t.Error("fetched after it was called off")
	}
}

func TestPublishRefuses(t *testing.T) {
	s := newShop(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("another image"), 0o600); err != nil {
		t.Fatal(err)
	}
	proved := filepath.Join(t.TempDir(), "provenance")
	dir := t.TempDir()
	held := newRegistry(t, true)
	for name, to := range map[string]Store{"folder": Folder(dir), "registry": held.place(t, "shop/node", nil)} {
		signed := s.sign(t, s.document)
		if err := Release(t.Context(), to, signed, s.key.Public(), Files{Image: other}); err == nil || !strings.Contains(err.Error(), "signed is a disk with") {
			t.Errorf("%s: another image: %v", name, err)
		}
		if err := Release(t.Context(), to, signed, newShop(t).key.Public(), Files{}); err == nil {
			t.Errorf("%s: published what another key signed", name)
		}
		if err := Release(t.Context(), to, signed, s.key.Public(), Files{SBOM: other}); err == nil {
			t.Errorf("%s: published another SBOM", name)
		}
		if err := Release(t.Context(), to, signed, s.key.Public(), Files{CycloneDX: other}); err == nil {
			t.Errorf("%s: published another CycloneDX SBOM", name)
		}
		unnamed := s.document
		unnamed.CycloneDX = nil
		if err := Release(t.Context(), to, s.sign(t, unnamed), s.key.Public(), s.files); err == nil || !strings.Contains(err.Error(), "names no CycloneDX SBOM") {
			t.Errorf("%s: an SBOM that the document does not name: %v", name, err)
		}
		if err := os.WriteFile(proved, s.prove(t, make(pcrs.Digest, 32)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Release(t.Context(), to, signed, s.key.Public(), Files{Provenance: proved}); err == nil || !strings.Contains(err.Error(), "about a disk with") {
			t.Errorf("%s: the provenance of another image: %v", name, err)
		}
	}
	if held.writes != 0 {
		t.Errorf("the registry was sent %d things", held.writes)
	}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			t.Errorf("%s was left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
