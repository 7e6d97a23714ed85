package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// release is the Debian release that images are made of.
const release = "trixie"

// packagesIndex is the index of packages in a repository's folder.
const packagesIndex = "dists/" + release + "/main/binary-amd64/Packages"

// repositoryFormat changes whenever makeRepository makes another folder of the same packages.
const repositoryFormat = "2"

// makeRepository returns the folder of an APT repository that holds exactly the given packages, all of which are in the store.
// The index is made from the packages themselves, so apt can choose nothing else and needs no network. The packages are links to
// where offer shows the store's, by names that begin with theirs, as mkosi wants.
func makeRepository(ctx context.Context, s cache.Store, l lock.Lock, packages []lock.Package) (string, error) {
	ids := []string{repositoryFormat}
	for _, p := range packages {
		ids = append(ids, p.ID(), p.SHA256)
	}
	dir, _, err := s.Step("repository", cache.Key(ids...), func(dir string) error {
		var index bytes.Buffer
		if err := errors.Join(os.Mkdir(filepath.Join(dir, blobs), 0o755), os.Mkdir(filepath.Join(dir, "pool"), 0o755)); err != nil {
			return err
		}
		for _, p := range packages {
			file := fmt.Sprintf("pool/%s_%s.deb", p.Name, p.SHA256)
			if err := os.Symlink("../"+blobs+"/"+p.SHA256, filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", s.BlobPath(p.SHA256)).Output()
			if err != nil {
				return fmt.Errorf("read control file of %s: %w", p.ID(), withSaid(err))
			}
			fmt.Fprintf(&index, "%s\nFilename: %s\nSize: %d\nSHA256: %s\n\n", bytes.TrimSpace(control), file, p.Size, p.SHA256)
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

// repositoryPlace is where mkosi has the repository in its sandbox, and blobs in it the store's packages.
const (
	repositoryPlace = "/archive"
	blobs           = "blobs"
)

// offer shows a repository, and the store's packages in it.
func offer(dir string, s cache.Store) []toolstree.Bind {
	return []toolstree.Bind{{Host: dir, Tree: repositoryPlace}, {Host: filepath.Dir(s.BlobPath(blobs)), Tree: repositoryPlace + "/" + blobs}}
}
