//go:build long

package registry

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// measured counts the bytes of answers.
type measured struct {
	http.RoundTripper
	bytes *atomic.Int64
}

func (c measured) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = measuredBody{answer.Body, c.bytes}
	}
	return answer, err
}

type measuredBody struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (c measuredBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// Of a policy that was read before, the API sends no content: each ticket asks, and a policy may have 768 KiB. Another one is read, also
// where it has the length of the one before, and so is one that is held no more.
func TestNewestPolicyIsReadOnce(t *testing.T) {
	config, err := api.Config(User)
	if err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return measured{next, &sent} })
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	const size = 500_000
	newest := func(held string) (string, int64) {
		t.Helper()
		sent.Store(0)
		envelope, _, err := r.Newest(t.Context(), []byte(held))
		if err != nil {
			t.Fatal(err)
		}
		return string(envelope), sent.Load()
	}
	for _, text := range []string{strings.Repeat("a", size), strings.Repeat("b", size)} {
		if err := admin.PushPolicy(t.Context(), "", AnyVersion, []byte(text), documents("d")); err != nil {
			t.Fatal(err)
		}
		if got, _ := newest("another"); got != text {
			t.Errorf("got %d bytes of %.1q, want %.1q", len(got), got, text)
		}
		for range 2 {
			if got, bytes := newest(text); got != "" || bytes == 0 || bytes > 4096 {
				t.Errorf("what is held was read again: %d bytes of policy, %d of answers", len(got), bytes)
			}
		}
		if got, _ := newest("another"); got != text {
			t.Error("a replica that holds another one did not get it")
		}
	}
	if err := admin.configMaps.delete(t.Context(), policyObject); err != nil {
		t.Fatal(err)
	}
	if got, _ := newest(strings.Repeat("b", size)); got != "" {
		t.Error("there is none, and it was got")
	}
}
