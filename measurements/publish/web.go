package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hullmark/hullmark/internal/remotefile"
)

// headerTimeout is how long a web server may think before it answers.
const headerTimeout = 30 * time.Second

// Web is a tree that a web server shows below an http or https address.
func Web(address string) (Source, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fmt.Errorf("source %.200q: want an address http://HOST/PATH or https://HOST/PATH", address)
	}
	client := &http.Client{Transport: remotefile.Patient{RoundTripper: remotefile.NewTransport(headerTimeout)}, CheckRedirect: remotefile.StayThere}
	return tree{func(ctx context.Context, path string, offset, n int64) (io.ReadCloser, error) {
		return get(ctx, client, base.JoinPath(path).String(), offset, n, n < 0)
	}}, nil
}

// get reads what lies at an address: n bytes from an offset on, or all that follow if n is negative. Where the server gives whole files
// alone, what is before the offset is read over, or it is errWhole.
func get(ctx context.Context, client remotefile.Doer, address string, offset, n int64, over bool) (io.ReadCloser, error) {
	part, err := remotefile.Open(ctx, client, address, offset, n)
	switch {
	case errors.Is(err, remotefile.ErrPastEnd):
		return http.NoBody, nil // nothing is left after what is there
	case err != nil:
		return nil, err
	case part.Whole && !over:
		return nil, errors.Join(errWhole, part.Close())
	case part.Whole:
		_, err := io.CopyN(io.Discard, part, offset)
		if errors.Is(err, io.EOF) {
			return http.NoBody, part.Close()
		}
		if err != nil {
			return nil, errors.Join(err, part.Close())
		}
	}
	return part, nil
}
