package update

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Limits of our patience with a server.
const (
	headerTimeout = 30 * time.Second
	// silence is how long a transfer may stand still.
	silence      = time.Minute
	maxRedirects = 3
)

// web is a raw disk at an address.
type web struct {
	address string
	client  *http.Client
}

// Web is the raw disk that lies at an http or https address. A registry's blob, which is what it calls the layer of a published image,
// is such a disk: https://HOST/v2/NAME/blobs/sha256:DIGEST.
func Web(address string) (Source, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" || parsed.User != nil || parsed.Fragment != "" {
		return nil, fmt.Errorf("source %.200q: want an address http://HOST/PATH or https://HOST/PATH", address)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: headerTimeout, TLSHandshakeTimeout: headerTimeout, DisableCompression: true}
	return &web{address, &http.Client{Transport: transport, CheckRedirect: fewRedirects}}, nil
}

// fewRedirects lets a registry send us to where it keeps its blobs; the bytes are checked wherever they come from.
func fewRedirects(next *http.Request, before []*http.Request) error {
	if len(before) > maxRedirects || next.URL.Scheme != "https" && before[0].URL.Scheme == "https" {
		return fmt.Errorf("redirect to %s://%s: too many, or without TLS", next.URL.Scheme, next.URL.Host)
	}
	return nil
}

// Range implements Source.
func (w *web) Range(ctx context.Context, offset, n int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.address, nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+n-1))
	response, err := w.client.Do(request)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if err := checkRange(response, offset, n); err != nil {
		cancel(nil)
		return nil, errors.Join(fmt.Errorf("%s: %w", request.URL.Redacted(), err), response.Body.Close())
	}
	b := &body{ReadCloser: response.Body, left: n, cancel: cancel}
	b.timer = time.AfterFunc(silence, func() { cancel(fmt.Errorf("the server was silent for %v", silence)) })
	b.cause = func() error { return context.Cause(ctx) }
	return b, nil
}

// checkRange takes the part that was asked for, or a whole file where that was asked for.
func checkRange(response *http.Response, offset, n int64) error {
	switch response.StatusCode {
	case http.StatusPartialContent:
		var first, last, all int64
		text := response.Header.Get("Content-Range")
		if _, err := fmt.Sscanf(text, "bytes %d-%d/%d", &first, &last, &all); err != nil || first != offset || last != offset+n-1 {
			return fmt.Errorf("bytes %d to %d were asked for, the server says it gives %.60q", offset, offset+n-1, text)
		}
		return nil
	case http.StatusOK:
		if offset == 0 && response.ContentLength == n {
			return nil
		}
		return ErrNoRanges
	}
	return fmt.Errorf("the server says %s", response.Status)
}

// body is a part of a disk: no more than was asked for, and not for longer than the server says something.
type body struct {
	io.ReadCloser
	left   int64
	timer  *time.Timer
	cancel context.CancelCauseFunc
	cause  func() error
}

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.timer.Reset(silence)
	if err != nil && !errors.Is(err, io.EOF) && b.cause() != nil {
		err = b.cause()
	}
	return n, err
}

func (b *body) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}
