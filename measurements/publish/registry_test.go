package publish

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocireg "github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/hullmark/hullmark/internal/remotefile"
	"github.com/hullmark/hullmark/measurements"
)

// held is a registry on loopback. Change may do otherwise with a request and say so.
type held struct {
	server *httptest.Server
	change func(http.ResponseWriter, *http.Request) bool
	writes int
	// login makes it demand theLogin before anything else.
	login bool
}

// theLogin is the only one that a registry takes.
func theLogin(context.Context, string) (auth.Credential, error) {
	return auth.Credential{Username: "someone", Password: "something"}, nil
}

func newRegistry(t *testing.T, referrers bool) *held {
	t.Helper()
	h := &held{}
	real := ocireg.New(ocireg.WithReferrersSupport(referrers), ocireg.Logger(log.New(io.Discard, "", 0)))
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); h.login && (user != "someone" || password != "something") {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if h.change != nil && h.change(w, r) {
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.writes++
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(h.server.Close)
	return h
}

func (h *held) place(t *testing.T, name string, credential auth.CredentialFunc) *ociPlace {
	t.Helper()
	place, err := Registry("oci://"+strings.TrimPrefix(h.server.URL, "http://")+"/"+name, credential)
	if err != nil {
		t.Fatal(err)
	}
	return place.(*ociPlace)
}

// registry publishes the shop's release in a registry of its own.
func (s *shop) registry(t *testing.T, referrers bool) Source {
	t.Helper()
	place := newRegistry(t, referrers).place(t, "shop/node:spring", nil)
	s.publish(t, place, s.document)
	return place
}

func TestRegistryTakesTheSameAgain(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	place := h.place(t, "node", nil)
	s.publish(t, place, s.document)
	bodies := 0
	h.change = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost || r.Method == http.MethodPatch {
			bodies++
		}
		return false
	}
	s.publish(t, place, s.document)
	if bodies != 0 {
		t.Errorf("%d blobs were uploaded again", bodies)
	}
	if _, d, err := Fetch(t.Context(), place, "node", s.key.Public(), 3); err != nil || d.SVN != 3 {
		t.Error(err)
	}
}

// Of several documents about an image the name leads to the one that was published last under the tag.
func TestRegistryWithSeveralDocuments(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	place := h.place(t, "node", nil)
	newer := s.describe(t, "node", 4)
	want := func(reference string, from Source, svn uint32) {
		t.Helper()
		if _, d, err := Fetch(t.Context(), from, reference, s.key.Public(), 0); err != nil || d.SVN != svn {
			t.Errorf("%.9s: security version %d, want %d: %v", reference, d.SVN, svn, err)
		}
	}
	s.publish(t, place, s.document)
	s.publish(t, place, newer)
	s.publish(t, h.place(t, "node:another", nil), s.describe(t, "node", 9))
	want("node", place, 4)
	want(s.id, place, 3)
	s.publish(t, place, s.document)
	want("node", place, 3)
	want("node", h.place(t, "node:another", nil), 9)
}

// Who may push to a repository, and write no tags, puts nothing in the place of what is published, and hides no signature: neither files
// about the same document that the key signed, with signatures of no use, nor another document, before or after.
func TestRegistryPassesOverWhatRefers(t *testing.T) {
	s := newShop(t)
	honest := s.otherBuilder(t, s.document)
	for _, before := range []bool{true, false} {
		place := newRegistry(t, true).place(t, "node", nil)
		flood := func() {
			image, err := place.putFile(t.Context(), file{imageKind, s.files.Image, s.document.Image.Disk}, imageArtifact, imageKind.media, "node", nil)
			if err != nil {
				t.Fatal(err)
			}
			full := s.otherBuilder(t, s.document)
			for signatures(t, full) < 16 {
				if full, err = measurements.Merge(full, s.otherBuilder(t, s.document)); err != nil {
					t.Fatal(err)
				}
			}
			envelopes := [][]byte{full, s.sign(t, s.describe(t, "node", 9))}
			for range maxReferrers {
				envelopes = append(envelopes, s.otherBuilder(t, s.document))
			}
			for _, signed := range envelopes {
				if _, err := place.putEnvelope(t.Context(), signed, documentArtifact, measurements.PredicateType, "node.dsse", "", image); err != nil {
					t.Fatal(err)
				}
			}
		}
		if before {
			flood()
		}
		if err := Release(t.Context(), place, honest, s.key.Public(), s.files); err != nil {
			t.Fatal(err)
		}
		if !before {
			flood()
		}
		if got := s.fetchBoth(t, place, s.key.Public()); !bytes.Equal(got, honest) {
			t.Errorf("flooded before: %t: %d signatures came, want those that were published", before, signatures(t, got))
		}
	}
}

// Of many provenances of an image the first ones that the registry names are looked at.
func TestRegistryWithManyProvenances(t *testing.T) {
	s := newShop(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p, err := measurements.OpenProvenance(s.provenance, s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, referrers := range map[string]bool{"registry": true, "registry without the referrers API": false} {
		place := newRegistry(t, referrers).place(t, "node", nil)
		s.publish(t, place, s.document)
		image, err := place.repository.Resolve(t.Context(), place.tag)
		if err != nil {
			t.Fatal(err)
		}
		for range maxReferrers + 1 { // Each has another signature by ECDSA.
			signed, err := measurements.SignProvenance(key, p)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := place.putEnvelope(t.Context(), signed, provenanceArtifact, measurements.ProvenanceType, "node"+provenanceEnding, "", image); err != nil {
				t.Fatal(err)
			}
		}
		if found, err := place.provenances(t.Context(), s.document.Image.Disk); err != nil || len(found) != maxReferrers {
			t.Errorf("%s: %d are looked at, want %d: %v", name, len(found), maxReferrers, err)
		}
		if _, err := FetchProvenance(t.Context(), place, s.document, key.Public()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRegistryWantsALogin(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	h.login = true
	err := Release(t.Context(), h.place(t, "node", nil), s.sign(t, s.document), s.key.Public(), s.files)
	if err == nil || h.writes != 0 {
		t.Errorf("published without a login: %v", err)
	}
	place := h.place(t, "node", theLogin)
	s.publish(t, place, s.document)
	if _, _, err := Fetch(t.Context(), place, "node", s.key.Public(), 0); err != nil {
		t.Error(err)
	}
	if err := FetchImage(t.Context(), place, s.document, filepath.Join(t.TempDir(), "image"), nil); err != nil {
		t.Error(err)
	}
}

// only changes the answers to reading requests whose path has a part.
func only(part string, answer http.HandlerFunc) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, part) {
			return false
		}
		answer(w, r)
		return true
	}
}

func endless(w http.ResponseWriter, _ *http.Request) {
	for {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return
		}
	}
}

func elsewhere(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "http://example.invalid"+r.URL.Path, http.StatusTemporaryRedirect)
}

func TestFetchFromRegistryRefuses(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	place := h.place(t, "shop/node", nil)
	s.publish(t, place, s.document)
	other := newShop(t)
	for name, c := range map[string]struct {
		change    func(http.ResponseWriter, *http.Request) bool
		reference string
		minimum   uint32
		key       *shop
		want      string
	}{
		"another signer":               {nil, "node", 0, other, "no signature is by a key that is named"},
		"an old release":               {nil, "node", 4, s, "shows an old release"},
		"an old release by its digest": {nil, s.id, 4, s, "shows an old release"},
		"a digest that is not there":   {nil, strings.Repeat("0", 64), 0, s, "not found"},
		"another name":                 {nil, "worker", 0, s, "instead"},
		"another envelope":             {only("/blobs/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }), "node", 0, s, "leads to no document"},
		"an endless envelope":          {only("/blobs/", endless), "node", 0, s, "leads to no document"},
		"a manifest of great size": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
				w.Header().Set("Content-Length", "1099511627776")
				w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
			}
			return r.Method == http.MethodHead
		}, "node", 0, s, "at most 1048576"},
		"a manifest that is another": {only("/manifests/sha256:", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			_, _ = w.Write([]byte("{}"))
		}), "node", 0, s, "leads to no document"},
		"a manifest on another host":       {only("/manifests/", elsewhere), "node", 0, s, "which was not asked for"},
		"a blob on another host, in clear": {only("/blobs/", elsewhere), "node", 0, s, "which was not asked for"},
		"an error of the registry":         {only("/manifests/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }), "node", 0, s, "500"},
		"a login on another host, in clear": {only("/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://example.invalid/token",service="x"`)
			w.WriteHeader(401)
		}), "node", 0, s, "not asked without TLS"},
	} {
		h.change = c.change
		if signed, _, err := Fetch(t.Context(), h.place(t, "shop/node", nil), c.reference, c.key.key.Public(), c.minimum); err == nil || signed != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	for _, address := range []string{"oci://host", "oci:///name", "http://host/name", "oci://host/name@sha256:" + strings.Repeat("0", 64), "oci://host/Name", "oci://user:word@host/name", "oci://host/name:a:b", "oci://host/name:" + strings.Repeat("a", 117)} {
		if _, err := Registry(address, nil); err == nil {
			t.Errorf("%s is taken as a registry", address)
		}
	}
}

// What refers to an image, as a provenance, the registry lists.
func TestFetchProvenanceFromRegistryRefuses(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	place := h.place(t, "shop/node", nil)
	s.publish(t, place, s.document)
	index := func(change func(*ocispec.Descriptor), copies int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			i := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
			for n := range copies {
				d := ocispec.Descriptor{
					MediaType: ocispec.MediaTypeImageManifest, ArtifactType: provenanceArtifact, Size: 5,
					Digest: "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
				}
				if change != nil && n == 0 {
					change(&d)
				}
				i.Manifests = append(i.Manifests, d)
			}
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			if copies == 0 {
				w.Header().Set("Link", fmt.Sprintf("<%s>; rel=\"next\"", r.URL.Path))
			}
			_ = json.NewEncoder(w).Encode(i)
		}
	}
	for name, c := range map[string]struct {
		change func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		"another envelope": {only("/blobs/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }), "leads to no provenance"},
		"an endless list": {only("/referrers/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			endless(w, r)
		}), "decode"},
		"a list of endless pages":  {only("/referrers/", index(nil, 0)), "exceeded 8 pages"},
		"a manifest of great size": {only("/referrers/", index(func(d *ocispec.Descriptor) { d.Size = 1 << 40 }, 1)), "at most 1048576"},
		"many that are none":       {only("/referrers/", index(nil, 33)), "leads to no provenance"},
		"a list on another host":   {only("/referrers/", elsewhere), "which was not asked for"},
		"an error of the registry": {only("/referrers/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }), "500"},
	} {
		h.change = c.change
		if signed, err := FetchProvenance(t.Context(), h.place(t, "shop/node", nil), s.document, s.key.Public()); err == nil || signed != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// An interrupted image goes on where it was, also from another host that the registry keeps its blobs on.
func TestFetchImageFromRegistryGoesOn(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	h.login = true
	place := h.place(t, "node", theLogin)
	s.publish(t, place, s.document)
	var asked []string
	var moved bool
	store := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == firstWindow {
			http.ServeFile(w, r, s.files.Image)
			return
		}
		asked = append(asked, r.Header.Get("Range"))
		if moved && r.Header.Get("Authorization") != "" {
			t.Error("the store was given the registry's login")
		}
		if len(asked) == 1 {
			w.Header().Set("Content-Length", "3000000")
			_, _ = w.Write(s.image[:1_234_567])
			return
		}
		http.ServeFile(w, r, s.files.Image)
	}))
	t.Cleanup(store.Close)
	trust(place, store.Certificate())
	for _, moved = range []bool{false, true} {
		asked = nil
		h.change = only("/blobs/", func(w http.ResponseWriter, r *http.Request) {
			if moved {
				http.Redirect(w, r, store.URL+"/blob", http.StatusTemporaryRedirect)
				return
			}
			store.Config.Handler.ServeHTTP(w, r)
		})
		to := filepath.Join(t.TempDir(), "image")
		if err := FetchImage(t.Context(), place, s.document, to, nil); err == nil || !strings.Contains(err.Error(), "goes on with it") {
			t.Errorf("cut off: %v", err)
		}
		if err := FetchImage(t.Context(), place, s.document, to, nil); err != nil {
			t.Errorf("going on: %v", err)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, s.image) {
			t.Errorf("another image came: %v", err)
		}
		if !slices.Equal(asked, []string{"", "bytes=1234567-2999999"}) {
			t.Errorf("asked for %q", asked)
		}
	}
}

// trust makes a place accept the certificate of a test's server.
func trust(p *ociPlace, certificate *x509.Certificate) {
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	p.client.Client.Transport.(remotefile.Patient).RoundTripper.(remotefile.Private).RoundTripper.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
}

func TestFetchImageFromRegistryRefuses(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	place := h.place(t, "node", nil)
	s.publish(t, place, s.document)
	to := filepath.Join(t.TempDir(), "image")
	wrong := bytes.Clone(s.image)
	wrong[7] ^= 1
	for name, c := range map[string]struct {
		change func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		"another image": {only("/blobs/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wrong) }), "signed is a disk with"},
		"another host, in clear": {only("/blobs/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://example.invalid/", http.StatusTemporaryRedirect)
		}), "which was not asked for"},
		"no image": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusNotFound)
			}
			return r.Method == http.MethodHead
		}, "has no disk"},
	} {
		h.change = c.change
		if err := FetchImage(t.Context(), place, s.document, to, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: an image was written", name)
		}
		_ = os.Remove(to + ".part")
	}
	h.change = only("/blobs/", endless)
	small := file{kind{"disk", ".raw", "", 5 << 20}, to, s.document.Image.Disk}
	if err := small.fetch(t.Context(), place, nil); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("an endless image: %v", err)
	}
}
