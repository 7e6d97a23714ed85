package update

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"oras.land/oras-go/v2/registry"

	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/internal/remotefile"
)

// show serves one release as a web server or a registry would; handle may do otherwise with a request, and say so.
func show(t *testing.T, raw []byte, handle func(http.ResponseWriter, *http.Request) bool) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if handle == nil || !handle(w, q) {
			http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(raw))
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// open returns the release at a place, with little patience.
func (p published) open(t *testing.T, place string) Source {
	t.Helper()
	source, err := OpenSource(place, p.Disk)
	if err != nil {
		t.Fatal(err)
	}
	client, ok := source.(web).client.(*http.Client)
	if !ok {
		client = source.(web).client.(*anybody).client
	}
	client.Transport = remotefile.Patient{RoundTripper: client.Transport.(remotefile.Patient).RoundTripper, Period: 200 * time.Millisecond}
	return source
}

// stage stages a release on a new node from a source.
func (p published) stage(t *testing.T, s Source) (Fetched, error) {
	t.Helper()
	r := releases(t)
	d, _ := open(t, installed(t, r[0]), slot.A)
	fetched, err := d.Stage(t.Context(), p.Release, from(s), nil)
	if err == nil {
		holds(t, d, slot.B, p, slot.A)
	}
	return fetched, err
}

func TestWeb(t *testing.T) {
	r := releases(t)[1]
	path := "/some/where/sha256/" + hex.EncodeToString(r.Disk[:]) + ".raw"
	for name, c := range map[string]struct {
		handle func(http.ResponseWriter, *http.Request) bool
		want   string // an error, or none
		whole  bool
	}{
		"ranges": {nil, "", false},
		"no ranges": {func(_ http.ResponseWriter, q *http.Request) bool {
			q.Header.Del("Range")
			return false
		}, "", true},
		"no ranges and no length": {func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write(r.raw)
			return true
		}, "", true},
		"more than a disk, without end": {func(w http.ResponseWriter, _ *http.Request) bool {
			_, err := w.Write(r.raw)
			for err == nil {
				_, err = w.Write(make([]byte, 1<<20))
			}
			return true
		}, "", true},
		"another length": {func(w http.ResponseWriter, _ *http.Request) bool {
			http.ServeContent(w, &http.Request{Method: http.MethodGet}, "", time.Time{}, bytes.NewReader(r.raw[:1<<20]))
			return true
		}, "does not give parts", false},
		"not there": {func(w http.ResponseWriter, q *http.Request) bool { http.NotFound(w, q); return true }, "not exist", false},
		"another range": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Range", "bytes 5-9/100")
			w.WriteHeader(http.StatusPartialContent)
			return true
		}, "the server says it gives", false},
		"a part that is short": {func(w http.ResponseWriter, q *http.Request) bool {
			w.Header().Set("Content-Range", strings.Replace(q.Header.Get("Range"), "=", " ", 1)+"/99999999")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, "short")
			return true
		}, "unexpected EOF", false},
		"a shorter file": {func(w http.ResponseWriter, q *http.Request) bool {
			http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(r.raw[:1<<20]))
			return true
		}, "the file ends before that", false},
		"packed": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = gzip.NewWriter(w).Write(r.raw)
			return true
		}, "encodes it", false},
		"elsewhere": {func(w http.ResponseWriter, q *http.Request) bool {
			http.Redirect(w, q, "https://example.invalid/", http.StatusFound)
			return true
		}, "which was not asked for", false},
		"a byte now and then": {func(w http.ResponseWriter, q *http.Request) bool {
			w.Header().Set("Content-Range", strings.Replace(q.Header.Get("Range"), "=", " ", 1)+"/99999999")
			w.WriteHeader(http.StatusPartialContent)
			for q.Context().Err() == nil {
				_, _ = w.Write([]byte{0})
				_ = http.NewResponseController(w).Flush()
				time.Sleep(20 * time.Millisecond)
			}
			return true
		}, "silent, or nearly so", false},
	} {
		server := show(t, r.raw, func(w http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path != path {
				t.Errorf("%s: it was asked for %s", name, q.URL.Path)
			}
			return c.handle != nil && c.handle(w, q)
		})
		fetched, err := r.stage(t, r.open(t, server.URL+"/some/where"))
		if c.want == "" && (err != nil || c.whole != (fetched.Copied == 0)) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %+v, %v", name, fetched, err)
		}
	}
}

// tokens is a registry that gives a token to anybody, which it forgets after so many uses.
type tokens struct {
	t      *testing.T
	uses   int
	given  int
	left   int
	realm  string
	answer string
}

func (k *tokens) handle(w http.ResponseWriter, q *http.Request) bool {
	if q.URL.Path == "/token" {
		query := q.URL.Query()
		if query.Get("scope") != "repository:team/node:pull" || query.Get("service") != `the "registry"` || query.Get("account") != "x" {
			k.t.Errorf("a token was asked for with %s", q.URL.RawQuery)
		}
		k.given++
		k.left = k.uses
		fmt.Fprintf(w, k.answer, k.given)
		return true
	}
	if k.left > 0 && q.Header.Get("Authorization") == fmt.Sprintf("Bearer token%d", k.given) {
		k.left--
		return false
	}
	realm := k.realm
	if realm == "" {
		realm = "http://" + q.Host + "/token?account=x"
	}
	w.Header().Add("WWW-Authenticate", `Basic realm="here"`)
	w.Header().Add("WWW-Authenticate", `Bearer realm="`+realm+`",service="the \"registry\"", scope="repository:another:push"`)
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

func TestRegistry(t *testing.T) {
	r := releases(t)[1]
	const answer = `{"token":"token%d","expires_in":60}`
	for name, c := range map[string]struct {
		tokens tokens
		want   string
		given  int
	}{
		"one token":                {tokens{uses: 100, answer: answer}, "", 1},
		"tokens that end":          {tokens{uses: 3, answer: answer}, "", 3},
		"the other name":           {tokens{uses: 100, answer: `{"access_token":"token%d"}`}, "", 1},
		"a token that is no use":   {tokens{uses: 0, answer: answer}, "401", 1},
		"no token":                 {tokens{answer: `{"x":%d}`}, "a token of 0 bytes", 1},
		"what is no token":         {tokens{answer: `{"token":"a\r\nb%d"}`}, "a token of", 1},
		"an answer without end":    {tokens{answer: strings.Repeat(" ", maxAnswer) + "%d"}, "more than 65536 bytes", 1},
		"a realm elsewhere":        {tokens{realm: "http://example.invalid/token"}, "not asked without TLS", 0},
		"a realm that is none":     {tokens{realm: "token"}, "gives no token to anybody", 0},
		"a realm with a password":  {tokens{realm: "https://a:b@example.invalid/"}, "gives no token to anybody", 0},
		"a challenge without end ": {tokens{realm: "http://example.invalid/" + strings.Repeat("x", maxChallenge)}, "gives no token to anybody", 0},
	} {
		k := c.tokens
		k.t = t
		server := show(t, r.raw, k.handle)
		_, err := r.stage(t, r.open(t, "oci://"+strings.TrimPrefix(server.URL, "http://")+"/team/node:spring"))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || k.given < c.given || c.given <= 1 && k.given > 1 {
			t.Errorf("%s: %d tokens, %v", name, k.given, err)
		}
	}
	login := show(t, r.raw, func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	if _, err := r.stage(t, r.open(t, "oci://"+strings.TrimPrefix(login.URL, "http://")+"/team/node")); err == nil || !strings.Contains(err.Error(), "publish where no login is needed") {
		t.Errorf("a registry that wants a login: %v", err)
	}
}

// TestRegistryKeepsBlobsElsewhere has a registry send on to a store, which asks for a token that is none of its business.
func TestRegistryKeepsBlobsElsewhere(t *testing.T) {
	r := releases(t)[1]
	blob, asks := "/v2/team/node/blobs/sha256:"+hex.EncodeToString(r.Disk[:]), false
	store := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "" {
			t.Error("the store was given the registry's token")
		}
		if asks {
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://example.invalid/token"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(r.raw))
	}))
	t.Cleanup(store.Close)
	k := &tokens{t: t, uses: 100, answer: `{"token":"token%d"}`}
	registry := show(t, r.raw, func(w http.ResponseWriter, q *http.Request) bool {
		if !k.handle(w, q) {
			if q.URL.Path != blob {
				t.Errorf("it was asked for %s", q.URL.Path)
			}
			http.Redirect(w, q, store.URL+"/somewhere", http.StatusTemporaryRedirect)
		}
		return true
	})
	source := r.open(t, "oci://"+strings.TrimPrefix(registry.URL, "http://")+"/team/node:spring")
	private := source.(web).client.(*anybody).client.Transport.(remotefile.Patient).RoundTripper.(remotefile.Private)
	private.RoundTripper.(*http.Transport).TLSClientConfig = store.Client().Transport.(*http.Transport).TLSClientConfig
	if fetched, err := r.stage(t, source); err != nil || fetched.Copied == 0 {
		t.Errorf("%+v, %v", fetched, err)
	}
	asks = true
	if _, err := r.stage(t, source); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("the store wants a token: %v", err)
	}
}

func TestOpenSourcesRefuses(t *testing.T) {
	for _, place := range []string{
		"", "ftp://host/x", "https://", "https://user:word@host/x", "https://host/x#y", "https://host/x?y", "disk.raw", "oci://host", "oci:///name", "oci://host/Name",
		"oci://user:word@host/name", "oci://host/name@sha256:" + strings.Repeat("0", 64), "oci://host/name:a:b", "oci://host/a/../b", "oci://host/name:", "oci://host?x/name", "oci://host/" + strings.Repeat("a", 256),
	} {
		if _, err := OpenSources([]string{"https://host", place}, [32]byte{}); err == nil {
			t.Errorf("%q is taken for a place", place)
		}
	}
	sources, err := OpenSources([]string{"oci://docker.io/team/node:spring", "oci://registry.example:5000/a", "oci://localhost/a", "http://host"}, [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	zeros := "01" + strings.Repeat("00", 31)
	for i, want := range []string{
		"https://registry-1.docker.io/v2/team/node/blobs/sha256:" + zeros, "https://registry.example:5000/v2/a/blobs/sha256:" + zeros,
		"http://localhost/v2/a/blobs/sha256:" + zeros, "http://host/sha256/" + zeros + ".raw",
	} {
		if got := sources[i].(web).address; got != want {
			t.Errorf("source %d is %s, want %s", i, got, want)
		}
	}
}

// FuzzPlace takes as places in registries only what the field's library does, and for the same.
func FuzzPlace(f *testing.F) {
	for _, place := range []string{"host/name:tag", "docker.io/a/b", "host:5000/a__b-c/d.e", "h/a@sha256:00", "h/a:b:c", "[::1]:5/a", "a b/c", "host/a---b"} {
		f.Add(place)
	}
	f.Fuzz(func(t *testing.T, name string) {
		host, repository, err := parsePlace(registryScheme + name)
		if err != nil {
			return
		}
		if reference, err := registry.ParseReference(name); err != nil || reference.Host() != host || reference.Repository != repository {
			t.Errorf("%q is %q on %q; the library says %+v, %v", name, repository, host, reference, err)
		}
	})
}

func FuzzChallenge(f *testing.F) {
	for _, header := range []string{
		`Bearer realm="https://host/token",service="a b",scope="c"`, `bearer realm=https://host`, `Bearer realm="https://host/\"x\""`, `Bearer realm="https://host", realm="https://other"`,
		`Basic realm="x"`, `Bearer realm="https://host`, `Bearer realm="https://host" service=x`, `Bearer `,
	} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		realm, _, err := parseChallenge(header)
		if err == nil && (realm.Host == "" || realm.User != nil || realm.Scheme != "http" && realm.Scheme != "https") {
			t.Errorf("%q: %v", header, realm)
		}
	})
}

func FuzzToken(f *testing.F) {
	for _, answer := range []string{`{"token":"a.b-c_d~e+f/g=="}`, `{"access_token":"x"}`, `{"token":""}`, `{"token":"a b"}`, `{"token":7}`, `[]`} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		token, err := parseToken(answer)
		if err == nil && (token == "" || len(token) > maxToken || strings.ContainsAny(token, " \r\n\x00\"")) {
			t.Errorf("%q: %q", answer, token)
		}
	})
}
