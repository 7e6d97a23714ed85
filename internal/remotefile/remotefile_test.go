package remotefile

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var content = bytes.Repeat([]byte("0123456789"), 1000)

// client is one with short patience.
func client() *http.Client {
	return &http.Client{Transport: Patient{NewTransport(200 * time.Millisecond), 200 * time.Millisecond}, CheckRedirect: StayThere}
}

func serve(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server.URL
}

func file(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, "file", time.Time{}, bytes.NewReader(content))
}

// says answers with a status and headers, and then what body writes.
func says(status int, headers string, body func(io.Writer)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for header := range strings.SplitSeq(headers, "\n") {
			name, value, _ := strings.Cut(header, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		if body != nil {
			_ = http.NewResponseController(w).Flush()
			body(w)
		}
	}
}

func TestOpen(t *testing.T) {
	whole := func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Range")
		file(w, r)
	}
	for name, c := range map[string]struct {
		handle    http.HandlerFunc
		offset, n int64
		want      []byte
		whole     bool
	}{
		"all":                         {file, 0, -1, content, true},
		"a part":                      {file, 15, 20, content[15:35], false},
		"the first part":              {file, 0, 20, content[:20], false},
		"the rest":                    {file, 15, -1, content[15:], false},
		"a part, of a whole file":     {whole, 15, 20, content, true},
		"the rest, of a whole file":   {whole, 15, -1, content, true},
		"a part of nobody knows what": {says(206, "Content-Range: bytes 15-34/*", func(w io.Writer) { _, _ = w.Write(content[15:35]) }), 15, 20, content[15:35], false},
		"more than was asked for":     {says(206, "Content-Range: bytes 15-34/10000", func(w io.Writer) { _, _ = w.Write(content[15:]) }), 15, 20, content[15:35], false},
		"what does not end":           {says(206, "Content-Range: bytes 15-34/10000", endless(content[15:35])), 15, 20, content[15:35], false},
		"what is said to be as it is": {says(206, "Content-Range: bytes 0-4/5\nContent-Encoding: identity", func(w io.Writer) { _, _ = w.Write([]byte("01234")) }), 0, 5, content[:5], false},
	} {
		part, err := Open(t.Context(), client(), serve(t, c.handle), c.offset, c.n)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(part)
		if err != nil || !bytes.Equal(got, c.want) || part.Whole != c.whole {
			t.Errorf("%s: %d bytes of a whole file: %t, %v", name, len(got), part.Whole, err)
		}
		if err := part.Close(); err != nil {
			t.Error(err)
		}
	}
}

func endless(first []byte) func(io.Writer) {
	return func(w io.Writer) {
		_, err := w.Write(first)
		for err == nil {
			_, err = w.Write(make([]byte, 1<<16))
		}
	}
}

// TestHostileServers reads what servers give that mean us ill, or are broken.
func TestHostileServers(t *testing.T) {
	packed := func(w io.Writer) {
		z := gzip.NewWriter(w)
		_, _ = z.Write(content)
		_ = z.Close()
	}
	drip := func(w io.Writer) {
		for range 100 {
			_, _ = io.WriteString(w, "0")
			_ = http.NewResponseController(w.(http.ResponseWriter)).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	}
	short := func(w io.Writer) { _, _ = w.Write([]byte("01")) }
	for name, c := range map[string]struct {
		handle    http.HandlerFunc
		want      string
		temporary bool
	}{
		"not there":             {http.NotFound, fs.ErrNotExist.Error(), false},
		"forbidden":             {says(403, "", nil), "403", false},
		"broken":                {says(503, "", nil), "503", true},
		"busy":                  {says(429, "", nil), "429", true},
		"nothing":               {says(204, "", nil), "204", false},
		"past the end":          {says(416, "Content-Range: bytes */5", nil), ErrPastEnd.Error(), false},
		"another range":         {says(206, "Content-Range: bytes 5-9/100", nil), "bytes=10-19 were asked for", false},
		"a shorter range":       {says(206, "Content-Range: bytes 10-18/19", nil), "bytes=10-19 were asked for", false},
		"a longer range":        {says(206, "Content-Range: bytes 10-20/100", nil), "bytes=10-19 were asked for", false},
		"no range":              {says(206, "", nil), "Content-Range is", false},
		"several ranges":        {says(206, "Content-Type: multipart/byteranges; boundary=x", nil), "Content-Range is", false},
		"a body that is short":  {says(206, "Content-Range: bytes 10-19/100", short), io.ErrUnexpectedEOF.Error(), true},
		"a file that is short":  {says(200, "Content-Length: 100", short), io.ErrUnexpectedEOF.Error(), true},
		"packed":                {says(206, "Content-Range: bytes 10-19/100\nContent-Encoding: gzip", packed), "encodes it as", false},
		"a header without end":  {says(206, "X: "+strings.Repeat("x", 1<<20), nil), "header", true},
		"no answer":             {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "timeout awaiting response headers", true},
		"a body without a word": {says(200, "Content-Length: 100", func(io.Writer) { time.Sleep(400 * time.Millisecond) }), "silent, or nearly so", true},
		"a byte now and then":   {says(200, "Content-Length: 100", drip), "silent, or nearly so", true},
		"another host": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
		}, "which was not asked for", false},
		"from here to here":      {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, "more than 3 redirects", false},
		"what is no HTTP at all": {hijack("SSH-2.0\r\n"), "malformed", true},
	} {
		part, err := Open(t.Context(), client(), serve(t, c.handle), 10, 10)
		if err == nil {
			_, err = io.ReadAll(part)
			_ = part.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || Temporary(err) != c.temporary {
			t.Errorf("%s: %v, temporary: %t", name, err, Temporary(err))
		}
	}
}

func hijack(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
}

func TestOpenEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	part, err := Open(ctx, client(), serve(t, says(200, "Content-Length: 100", func(io.Writer) { time.Sleep(400 * time.Millisecond) })), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	enough := errors.New("enough")
	cancel(enough)
	if _, err := part.Read(make([]byte, 1)); !errors.Is(err, enough) {
		t.Errorf("it ended with %v", err)
	}
}

// TestConnectionsAreKept reads parts one after the other over one connection.
func TestConnectionsAreKept(t *testing.T) {
	from := map[string]bool{}
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		from[r.RemoteAddr] = true
		file(w, r)
	})
	c := client()
	for n := range int64(5) {
		part, err := Open(t.Context(), c, address, n*10, 10)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(part, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if err := part.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(from) != 1 {
		t.Errorf("%d connections", len(from))
	}
}

// TestBlobsMayMove has a registry send on, for a blob and for something else, with a login.
func TestBlobsMayMove(t *testing.T) {
	var login string
	store := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		login = r.Header.Get("Authorization")
		file(w, r)
	}))
	t.Cleanup(store.Close)
	c := store.Client()
	c.CheckRedirect = BlobsMayMove
	c.Transport = Private{c.Transport, true}
	elsewhere := "http://example.invalid/"
	registry := serve(t, func(w http.ResponseWriter, r *http.Request) {
		to := store.URL
		if strings.HasSuffix(r.URL.Path, "clear") {
			to = elsewhere
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	})
	get := func(path string) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, registry+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer secret")
		request.Header.Set("Range", "bytes=0-9")
		response, err := c.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusPartialContent {
			return fmt.Errorf("status %s: the range did not come along", response.Status)
		}
		return nil
	}
	if err := get("/v2/a/blobs/sha256:00"); err != nil || login != "" {
		t.Errorf("a blob with login %q: %v", login, err)
	}
	for path, want := range map[string]string{
		"/v2/a/manifests/b": "which was not asked for", "/v2/a/blobs/sha256:00clear": "which was not asked for",
	} {
		if err := get(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := c.Get(elsewhere); err == nil || !strings.Contains(err.Error(), "not asked without TLS") {
		t.Errorf("in clear to another machine: %v", err)
	}
	c.Transport = Private{c.Transport.(Private).RoundTripper, false}
	if _, err := c.Get(registry); err == nil || !strings.Contains(err.Error(), "not asked without TLS") {
		t.Errorf("another machine sent us to this one, in clear: %v", err)
	}
	for host, want := range map[string]bool{"localhost:5000": true, "127.0.0.1": true, "[::1]:5": true, "[::1]": true, "example.invalid": false, "localhost.example.invalid": false, "10.0.0.1:80": false} {
		if IsHere(host) != want {
			t.Errorf("%s is this machine: %t", host, !want)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	for _, text := range []string{"bytes 0-9/10", "bytes 0-9/*", "bytes */10", "bytes 9-0/10", "bytes 0-10/10", "bytes 0-9223372036854775808/*", "bytes -1-2/3", "bytes +0-9/10", "octets 0-9/10", "bytes 0-9/10,5-6/10", "bytes  0-9/10"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, last, size, err := parseContentRange(text)
		if err != nil {
			return
		}
		if first < 0 || last < first || size >= 0 && last >= size || size < -1 {
			t.Errorf("%q: %d to %d of %d", text, first, last, size)
		}
		all := "*"
		if size >= 0 {
			all = fmt.Sprint(size)
		}
		if again := fmt.Sprintf("bytes %d-%d/%s", first, last, all); len(again) > len(text) {
			t.Errorf("%q is read as %q", text, again)
		}
	})
}
