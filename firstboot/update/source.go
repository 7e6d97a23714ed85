package update

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hullmark/hullmark/internal/remotefile"
)

// Source has the raw disk of a release. It may say anything: nothing that it says is used before it hashes to the release.
type Source interface {
	// Range reads n bytes of the disk from an offset on. ErrNoRanges is the error of one that gives whole disks alone: from 0 on. An
	// error may pass, and the same be asked for again, unless remotefile.Temporary says that it does not.
	Range(ctx context.Context, offset, n int64) (io.ReadCloser, error)
}

// ErrNoRanges is a source that has no parts of a disk.
var ErrNoRanges = errors.New("it does not give parts of a file")

// answerTimeout is how long a server may think.
const answerTimeout = 30 * time.Second

// OpenSource returns a release's raw disk, of which that is the digest, at the place where the release was published: a folder that a
// web server shows, http://HOST/PATH or https://HOST/PATH; or a repository of a registry that needs no login, oci://HOST/NAME:TAG. In
// a registry the digest finds the disk, whatever the tag leads to by now. Nothing is asked before Range is called.
func OpenSource(place string, disk [sha256.Size]byte) (Source, error) {
	digest := hex.EncodeToString(disk[:])
	if strings.HasPrefix(place, registryScheme) {
		return openRegistry(place, digest)
	}
	base, err := url.Parse(place)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fmt.Errorf("source %.200q: want http://HOST/PATH, https://HOST/PATH or oci://HOST/NAME:TAG", place)
	}
	client := &http.Client{Transport: remotefile.Patient{RoundTripper: remotefile.NewTransport(answerTimeout)}, CheckRedirect: remotefile.StayThere}
	return web{base.JoinPath("sha256", digest+".raw").String(), client}, nil
}

// OpenSources opens several places, which are to be tried in this order.
func OpenSources(places []string, disk [sha256.Size]byte) ([]Source, error) {
	var sources []Source
	for _, place := range places {
		source, err := OpenSource(place, disk)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	return sources, nil
}

// web is a raw disk at an address.
type web struct {
	address string
	client  remotefile.Doer
}

// Range implements Source.
func (w web) Range(ctx context.Context, offset, n int64) (io.ReadCloser, error) {
	part, err := remotefile.Open(ctx, w.client, w.address, offset, n)
	if err != nil {
		return nil, err
	}
	if part.Whole && (offset != 0 || part.Size >= 0 && part.Size != n) {
		return nil, errors.Join(fmt.Errorf("%s: %w", w.address, ErrNoRanges), part.Close())
	}
	return part, nil
}
