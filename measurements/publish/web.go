package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Limits of a server's patience with us, and ours with it.
const (
	headerTimeout = 30 * time.Second
	// silence is how long a transfer may stand still.
	silence      = time.Minute
	maxRedirects = 3
)

// Web is a tree that a web server shows below an http or https address.
func Web(address string) (Source, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fmt.Errorf("source %.200q: want an address http://HOST/PATH or https://HOST/PATH", address)
	}
	client := &http.Client{Transport: patient{newTransport()}, CheckRedirect: stayThere}
	return tree{func(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
		return get(ctx, client, base.JoinPath(path).String(), offset, "")
	}}, nil
}

func newTransport() *http.Transport {
	return &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: headerTimeout, TLSHandshakeTimeout: headerTimeout, DisableCompression: true}
}

// stayThere refuses to be sent to another host, or from https to http: the person chose whom to ask.
func stayThere(next *http.Request, before []*http.Request) error {
	if len(before) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	if first := before[0].URL; next.URL.Host != first.Host || next.URL.Scheme != first.Scheme {
		return fmt.Errorf("the server redirects to %s://%s, which was not asked for", next.URL.Scheme, next.URL.Host)
	}
	return nil
}

// doer is an HTTP client, which may know how to log in.
type doer interface {
	Do(request *http.Request) (*http.Response, error)
}

// get reads what lies at an address, from an offset on and up to the byte last, in decimal digits; nothing means all.
func get(ctx context.Context, client doer, address string, offset int64, last string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%s", offset, last))
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if err := checkResponse(response, offset); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", request.URL.Redacted(), err), response.Body.Close())
	}
	if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return http.NoBody, response.Body.Close() // nothing is left after what is there
	}
	if response.StatusCode == http.StatusOK && offset > 0 {
		// The server does not know ranges: what is there already is read over.
		_, err := io.CopyN(io.Discard, response.Body, offset)
		if errors.Is(err, io.EOF) {
			return http.NoBody, response.Body.Close() // nothing is left after what is there
		}
		if err != nil {
			return nil, errors.Join(err, response.Body.Close())
		}
	}
	return response.Body, nil
}

func checkResponse(r *http.Response, offset int64) error {
	switch {
	case r.StatusCode == http.StatusNotFound:
		return fs.ErrNotExist
	case r.StatusCode == http.StatusOK:
		return nil
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable && offset > 0:
		return nil
	case r.StatusCode == http.StatusPartialContent && offset > 0 && strings.HasPrefix(r.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)):
		return nil
	}
	return fmt.Errorf("the server answers %.80q", r.Status)
}

// patient ends transfers that stand still.
type patient struct{ http.RoundTripper }

// RoundTrip is http.RoundTripper's.
func (p patient) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	response, err := p.RoundTripper.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	response.Body = &body{ReadCloser: response.Body, cancel: cancel, watch: time.AfterFunc(silence, cancel)}
	return response, nil
}

type body struct {
	io.ReadCloser
	cancel context.CancelFunc
	watch  *time.Timer
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.watch.Reset(silence)
	}
	return n, err
}

func (b *body) Close() error {
	b.watch.Stop()
	b.cancel()
	return b.ReadCloser.Close()
}
