package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// snapshotArchive keeps every version that Debian ever published; it is asked for what the mirrors have dropped.
const snapshotArchive = "http://snapshot.debian.org/archive/"

// fetcher gets package files from wherever they still are. Their hash decides, so sources need not be trusted.
type fetcher struct {
	store    cache.Store
	mirrors  map[string]string // archive name → URL without a final slash
	snapshot string            // URL of an archive of archives; empty: none
	client   *http.Client
	progress *Progress
}

func newFetcher(o Options, mirrors map[string]string) fetcher {
	// A source that does not answer is given up soon, one that is slow is not.
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
	}
	return fetcher{
		store: o.Store, mirrors: mirrors, snapshot: snapshotArchive, progress: o.Progress,
		client: &http.Client{Transport: transport, Timeout: 10 * time.Minute},
	}
}

// fetch gets packages from the sources that o names.
func fetch(ctx context.Context, o Options, l lock.Lock, packages []lock.Package) error {
	mirrors, err := o.mirrors()
	if err != nil {
		return err
	}
	return newFetcher(o, mirrors).fetch(ctx, l, packages)
}

// fetch gets every package of a list into the store, several at a time. All packages that no source has any more are in the
// error, each as a lock.MovedError; the first other failure ends the work.
func (f fetcher) fetch(ctx context.Context, l lock.Lock, packages []lock.Package) error {
	var (
		mu    sync.Mutex
		moved []error
		done  int64
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(6)
	for _, p := range packages {
		group.Go(func() error {
			err := f.fetchOne(ctx, l, p)
			mu.Lock()
			defer mu.Unlock()
			var gone *lock.MovedError
			if errors.As(err, &gone) {
				moved = append(moved, err)
				return nil
			}
			done++
			f.progress.Part("packages", done, int64(len(packages)))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return errors.Join(moved...)
}

// fetchOne asks the sources in turn. Only answers that say "not here" or show another content make a package moved; a source that cannot be
// reached is an error of its own, because the package may well be there.
func (f fetcher) fetchOne(ctx context.Context, l lock.Lock, p lock.Package) error {
	var found []string
	var unreachable error
	for _, url := range f.sources(l, p) {
		_, err := f.store.Blob(p.SHA256, func(w io.Writer) error { return f.get(ctx, url, p.Size, w) })
		var status statusError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &status), errors.Is(err, cache.ErrContent):
			found = append(found, fmt.Sprintf("%v at %s", err, url))
		default:
			unreachable = errors.Join(unreachable, fmt.Errorf("fetch %s: %w", p.ID(), err))
		}
	}
	if len(found) > 0 {
		return &lock.MovedError{Package: p, Found: strings.Join(found, "; ")}
	}
	return unreachable
}

func (f fetcher) sources(l lock.Lock, p lock.Package) []string {
	archive, file, _ := strings.Cut(p.Path, "/")
	var urls []string
	if m := f.mirrors[archive]; m != "" {
		urls = append(urls, m+"/"+file)
	}
	if f.snapshot != "" {
		urls = append(urls, f.snapshot+archive+"/"+time.Unix(l.Time, 0).UTC().Format("20060102T150405Z")+"/"+file)
	}
	return urls
}

// statusError is an HTTP answer other than 200.
type statusError string

func (s statusError) Error() string { return "answer " + string(s) }

func (f fetcher) get(ctx context.Context, url string, size int64, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := f.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return statusError(res.Status)
	}
	// One byte more than locked is enough to make the hash differ; a source cannot fill the disk.
	_, err = io.Copy(w, io.LimitReader(res.Body, size+1))
	return err
}
