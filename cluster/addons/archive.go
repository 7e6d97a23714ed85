package addons

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Limits of a chart, with those in it that are archives themselves.
const (
	// maxUnpacked bounds what comes of all its archives, in bytes. Helm takes 100 MiB of each, however many there are.
	maxUnpacked = 256 << 20
	// maxNested is how deep archives may lie in archives.
	maxNested = 8
	// archiveEnding is what Helm knows an archive in a chart by.
	archiveEnding = ".tgz"
)

// unpacking counts what a chart's archives unpack to, before Helm unpacks them into memory.
type unpacking struct {
	ctx  context.Context
	left int64
}

func newUnpacking(ctx context.Context) *unpacking { return &unpacking{ctx, maxUnpacked} }

// through lets what comes of an archive pass as long as it is not too much.
func (u *unpacking) through(r io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		n, err := r.Read(b)
		if u.left -= int64(n); u.left < 0 {
			return 0, fmt.Errorf("its archives unpack to more than %d MiB", maxUnpacked>>20)
		}
		if u.ctx.Err() != nil {
			return 0, context.Cause(u.ctx)
		}
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

// Read is io.Reader's.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// archive looks through one, and through those that lie in it.
func (u *unpacking) archive(r io.Reader, depth int) error {
	if depth > maxNested {
		return fmt.Errorf("archives lie in archives more than %d deep", maxNested)
	}
	zip, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	for files := tar.NewReader(u.through(zip)); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && path.Ext(file.Name) == archiveEnding && file.Size > 0 {
			err = u.archive(files, depth+1)
		}
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
	}
}

// folder looks through one. It may have no links: Helm follows them, wherever they lead, and a template puts what it finds there into an
// object.
func (u *unpacking) folder(name string) error {
	return filepath.WalkDir(name, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file != name && entry.Type()&fs.ModeSymlink != 0:
			return fmt.Errorf("%s is a symbolic link, which may lead to any of your files; next: put what it stands for in its place, or pack the chart (helm package) and name the archive", file)
		case entry.Type().IsRegular() && filepath.Ext(file) == archiveEnding:
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			return errors.Join(u.archive(f, 1), f.Close())
		}
		return context.Cause(u.ctx)
	})
}
