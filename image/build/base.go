package build

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// baseFormat changes whenever writeBase makes another archive of the same packages.
const baseFormat = "2"

// base is what mkosi starts from: the files of the essential packages, unpacked but not installed, because the scripts of
// packages need them. mkosi would unpack them one after the other, which takes as long as it takes to install them.
type base struct {
	tarFile string
	// packages are the names of those in it.
	packages []string
}

// makeBase returns the base of a root tree whose packages are in the store. repository is theirs.
func makeBase(ctx context.Context, s cache.Store, repository string, packages []lock.Package) (base, error) {
	index, err := os.ReadFile(filepath.Join(repository, packagesIndex))
	if err != nil {
		return base{}, err
	}
	var b base
	var chosen []lock.Package
	key := []string{baseFormat}
	wanted := essential(parseIndex(string(index)))
	for _, p := range packages {
		if wanted[p.Name] {
			chosen, key = append(chosen, p), append(key, p.SHA256)
			b.packages = append(b.packages, p.Name)
		}
	}
	dir, _, err := s.Step("base", cache.Key(key...), func(dir string) error { return writeBase(ctx, s, chosen, filepath.Join(dir, "base.tar")) })
	b.tarFile = filepath.Join(dir, "base.tar")
	return b, err
}

// essential names the packages that are essential, base-files, and whatever these may need of the others.
func essential(index map[string]fields) map[string]bool {
	byName := map[string][]string{}
	var next []string
	for name, said := range index {
		byName[name] = append(byName[name], name)
		for _, r := range parseRelations(said["Provides"]) {
			byName[r.name] = append(byName[r.name], name)
		}
		if said["Essential"] == "yes" || name == "base-files" {
			next = append(next, name)
		}
	}
	chosen := map[string]bool{}
	for len(next) > 0 {
		wanted := next[0]
		next = next[1:]
		for _, name := range byName[wanted] {
			if chosen[name] {
				continue
			}
			chosen[name] = true
			for _, field := range []string{"Depends", "Pre-Depends"} {
				for _, r := range parseRelations(index[name][field]) {
					next = append(next, r.name)
				}
			}
		}
	}
	return chosen
}

// documentation is left out of the base, as mkosi leaves it out of what it unpacks (WithDocs=no).
var documentation = []string{"usr/share/doc/", "usr/share/man/", "usr/share/groff/", "usr/share/gtk-doc/", "usr/share/info/"}

// mergedUsr are the links of a tree whose programs and libraries are all below /usr.
var mergedUsr = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// writeBase writes the files of packages as one archive, unpacking as many at once as there are processors.
func writeBase(ctx context.Context, s cache.Store, packages []lock.Package, file string) (err error) {
	contents := make([]bytes.Buffer, len(packages))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range packages {
		group.Go(func() error {
			cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", s.BlobPath(p.SHA256))
			var stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &contents[i], &stderr
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("unpack %s: %w: %s", p.ID(), err, tail(stderr.Bytes(), 1024))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	out := tar.NewWriter(w)
	folders := []string{"usr"}
	for _, name := range mergedUsr {
		err = errors.Join(err, out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "./" + name, Linkname: "usr/" + name, Mode: 0o777}))
		folders = append(folders, "usr/"+name)
	}
	// As mkosi makes it in each tree.
	err = errors.Join(err, out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./efi/", Mode: 0o500}))
	for _, name := range folders {
		err = errors.Join(err, out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./" + name + "/", Mode: 0o755}))
	}
	for i, p := range packages {
		if e := copyTar(out, &contents[i]); e != nil {
			err = errors.Join(err, fmt.Errorf("unpack %s: %w", p.ID(), e))
		}
	}
	return errors.Join(err, out.Close(), w.Flush(), f.Close())
}

// copyTar appends the members of one archive, but for documentation.
func copyTar(out *tar.Writer, from io.Reader) error {
	in := tar.NewReader(from)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if slices.ContainsFunc(documentation, func(dir string) bool { return strings.HasPrefix(path.Clean(h.Name), dir) }) {
			continue
		}
		h.Format = tar.FormatUnknown
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
