package publish

import (
	"bytes"
	"context"
	"crypto/ed25519"
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

// An interrupted fetch goes on where it was, from servers that know ranges and from others.
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

// Of several files about one document, the signatures of all are taken; older documents and rubbish among them change nothing.
func TestChooseTakesAllSignatures(t *testing.T) {
	s := newShop(t)
	candidates := [][]byte{s.sign(t, s.document), s.otherBuilder(t, s.document), s.sign(t, s.describe(t, "node", 2)), s.otherBuilder(t, s.document), []byte("rubbish")}
	signed, d, err := choose(candidates, "node", s.key.Public(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := signatures(t, signed); got != 3 || d.SVN != 3 {
		t.Errorf("%d signatures of security version %d, want 3 of 3", got, d.SVN)
	}
}

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
