// Package remotefile reads files, and parts of them, from HTTP servers that nobody trusts. What comes is for the reader to verify; this
// package sees to it that a server cannot hold the reader up, send it anywhere, or give it more than was asked for.
package remotefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Limits of our patience with a server.
const (
	connectTimeout = 30 * time.Second
	// period is how long leastBytes of a body, or what is left of it, may take.
	period     = time.Minute
	leastBytes = 512 << 10
	// maxHeader is how long the header of an answer may be, in bytes.
	maxHeader = 64 << 10
	// maxRedirects is how often one request may be sent on.
	maxRedirects = 3
)

// NewTransport is a transport whose servers have so long to answer, and only so much room for an answer's header.
func NewTransport(answer time.Duration) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: connectTimeout, ResponseHeaderTimeout: answer, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
	}
}

// Patient ends a transfer that stands still, or nearly so: half a MiB of it, or what is left, has to come in each minute.
type Patient struct {
	http.RoundTripper
	// Period is another time than a minute, if it is not zero.
	Period time.Duration
}

// RoundTrip is http.RoundTripper's.
func (p Patient) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(request.Context())
	response, err := p.RoundTripper.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	b := &watched{ReadCloser: response.Body, ctx: ctx, cancel: cancel, period: cmp.Or(p.Period, period)}
	b.timer = time.AfterFunc(b.period, func() { cancel(fmt.Errorf("the server was silent, or nearly so, for %v", b.period)) })
	response.Body = b
	return response, nil
}

// watched is a body under a timer.
type watched struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	period time.Duration
	came   int // bytes since the timer was set
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.came += n; b.came >= leastBytes {
		b.came = 0
		b.timer.Reset(b.period)
	}
	if cause := context.Cause(b.ctx); cause != nil && err != nil && !errors.Is(err, io.EOF) {
		err = cause
	}
	return n, err
}

func (b *watched) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// errElsewhere is a server that sends us where nobody asked us to go.
var errElsewhere = errors.New("which was not asked for")

// StayThere is the http.Client's CheckRedirect that refuses to be sent to another host, or from https to http: the person chose whom to
// ask.
func StayThere(next *http.Request, before []*http.Request) error {
	first := before[0].URL
	if len(before) > maxRedirects {
		return permanent{fmt.Errorf("more than %d redirects", maxRedirects)}
	}
	if next.URL.Host != first.Host || next.URL.Scheme != first.Scheme {
		return permanent{fmt.Errorf("the server redirects to %s://%s, %w", next.URL.Scheme, next.URL.Host, errElsewhere)}
	}
	return nil
}

// BlobsMayMove is StayThere, but for the blobs of a registry: they may move to another host that speaks https, because registries keep
// them in object stores. Nothing is lost by that: a blob is held by its digest, and the login stays behind.
func BlobsMayMove(next *http.Request, before []*http.Request) error {
	err, first := StayThere(next, before), before[0]
	isBlob := strings.Contains(first.URL.Path, "/blobs/sha256:") && (first.Method == http.MethodGet || first.Method == http.MethodHead)
	if !errors.Is(err, errElsewhere) || !isBlob || next.URL.Scheme != "https" {
		return err
	}
	next.Header.Del("Authorization")
	return nil
}

// Private refuses to speak without TLS, whatever sent us there, but to this machine if Here is set.
type Private struct {
	http.RoundTripper
	Here bool
}

// RoundTrip is http.RoundTripper's.
func (p Private) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" && !(p.Here && IsHere(request.URL.Host)) {
		return nil, permanent{fmt.Errorf("%s://%s is not asked without TLS", request.URL.Scheme, request.URL.Host)}
	}
	return p.RoundTripper.RoundTrip(request)
}

// IsHere tells whether a host, with or without a port, is this machine.
func IsHere(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
