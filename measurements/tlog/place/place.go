// Package place has the files of a transparency log: in a folder, to which one process at a time writes and which any web server can
// show, or on the web. It keeps what viewers and witnesses remember of a log, too.
package place

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/remotefile"
	"github.com/hullmark/hullmark/measurements/tlog"
)

// headerTimeout is how long a web server may think before it answers.
const headerTimeout = 30 * time.Second

// Folder is the folder of a log.
type Folder string

// ReadFile is tlog.Files's.
func (f Folder) ReadFile(_ context.Context, name string, limit int64) ([]byte, error) {
	return atomicfile.Read(f.path(name), limit)
}

func (f Folder) path(name string) string { return filepath.Join(string(f), filepath.FromSlash(name)) }

// web are the files below an address.
type web struct {
	base   *url.URL
	client remotefile.Doer
}

// Web is a log that a web server shows below an http or https address. The server is not trusted, and cannot hold its readers up.
func Web(address string) (tlog.Files, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fmt.Errorf("log %.200q: want a folder, or an address http://HOST/PATH or https://HOST/PATH", address)
	}
	client := &http.Client{Transport: remotefile.Patient{RoundTripper: remotefile.NewTransport(headerTimeout)}, CheckRedirect: remotefile.StayThere}
	return web{base, client}, nil
}

// ReadFile is tlog.Files's.
func (w web) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	part, err := remotefile.Open(ctx, w.client, w.base.JoinPath(name).String(), 0, -1)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(part, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("too long, want at most %d bytes", limit)
	}
	if err := errors.Join(err, part.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", w.base.JoinPath(name).Redacted(), err)
	}
	return content, nil
}
