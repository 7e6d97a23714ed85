package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// release is the Debian release that images are made of.
const release = "trixie"

// packagesIndex is the index of packages in a repository's folder.
const packagesIndex = "dists/" + release + "/main/binary-amd64/Packages"

// makeRepository returns the folder of an APT repository that holds exactly the given packages, all of which are in the store.
// The index is made from the packages themselves, so apt can choose nothing else and needs no network.
func makeRepository(ctx context.Context, s cache.Store, l lock.Lock, packages []lock.Package) (string, error) {
	var ids []string
	for _, p := range packages {
		ids = append(ids, p.ID(), p.SHA256)
	}
	dir, _, err := s.Step("repository", cache.Key(ids...), func(dir string) error {
		var index bytes.Buffer
		for _, p := range packages {
			control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", s.BlobPath(p.SHA256)).Output()
			if err != nil {
				return fmt.Errorf("read control file of %s: %w", p.ID(), withSaid(err))
			}
			fmt.Fprintf(&index, "%s\nFilename: pool/%s.deb\nSize: %d\nSHA256: %s\n\n", bytes.TrimSpace(control), p.SHA256, p.Size, p.SHA256)
		}
		return writeIndex(dir, l.Time, index.Bytes())
	})
	return dir, err
}

// withSaid adds to the error of a program what it said.
func withSaid(err error) error {
	var ended *exec.ExitError
	if errors.As(err, &ended) && len(ended.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, tail(ended.Stderr, 4096))
	}
	return err
}

func writeIndex(dir string, at int64, index []byte) error {
	file := filepath.Join(dir, packagesIndex)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	about := fmt.Sprintf("Suite: %s\nCodename: %s\nArchitectures: amd64\nComponents: main\nDate: %s\nSHA256:\n %x %d main/binary-amd64/Packages\n",
		release, release, time.Unix(at, 0).UTC().Format(time.RFC1123Z), sha256.Sum256(index), len(index))
	return errors.Join(
		os.WriteFile(file, index, 0o644),
		os.WriteFile(filepath.Join(dir, "dists", release, "Release"), []byte(about), 0o644),
	)
}

// serveRepository offers a repository's index and the store's packages on a loopback port until stop is called.
func serveRepository(dir string, s cache.Store) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("offer packages to mkosi: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/dists/", http.FileServer(http.Dir(dir)))
	mux.HandleFunc("/pool/{file}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, s.BlobPath(strings.TrimSuffix(filepath.Base(r.PathValue("file")), ".deb")))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}
