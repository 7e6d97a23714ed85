package publish

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// tree is a source of files with names. It holds NAME.dsse, the document of an image's name that was published last, and below
// sha256/ every document, image and SBOM of materials by the digest of its content: DIGEST.dsse, DIGEST.raw, DIGEST.spdx.json
// and DIGEST.cdx.json; and by its disk's digest each provenance, DIGEST.provenance.dsse.
type tree struct {
	// open reads a file of the tree: n bytes from an offset on, or all that follow if n is negative.
	open func(ctx context.Context, path string, offset, n int64) (io.ReadCloser, error)
}

func digestPath(digest, ending string) string { return "sha256/" + digest + ending }

func (t tree) document(ctx context.Context, reference string) ([]byte, error) {
	path := reference + ".dsse"
	if digestForm.MatchString(reference) {
		path = digestPath(reference, ".dsse")
	}
	return t.envelope(ctx, path)
}

func (t tree) provenances(ctx context.Context, disk pcrs.Digest) ([][]byte, error) {
	signed, err := t.envelope(ctx, digestPath(disk.String(), provenanceEnding))
	return [][]byte{signed}, err
}

const provenanceEnding = ".provenance.dsse"

func (t tree) envelope(ctx context.Context, path string) ([]byte, error) {
	in, err := t.open(ctx, path, 0, -1)
	if err != nil {
		return nil, err
	}
	signed, err := io.ReadAll(io.LimitReader(in, measurements.MaxEnvelope+1))
	return signed, errors.Join(err, in.Close())
}

func (t tree) content(ctx context.Context, k kind, digest pcrs.Digest, offset, n int64) (io.ReadCloser, error) {
	return t.open(ctx, digestPath(digest.String(), k.ending), offset, n)
}

// Folder is a tree on this machine. Any web server can show it.
func Folder(dir string) Store {
	return folder{tree{func(_ context.Context, path string, offset, n int64) (io.ReadCloser, error) {
		return openAt(filepath.Join(dir, path), offset, n)
	}}, dir}
}

type folder struct {
	tree
	dir string
}

// check is Store's: a folder takes every release.
func (folder) check(release) error { return nil }

func (f folder) put(ctx context.Context, r release) error {
	if err := makeFolder(filepath.Join(f.dir, "sha256")); err != nil {
		return err
	}
	for _, file := range r.files {
		if err := file.putIn(filepath.Join(f.dir, digestPath(file.digest.String(), file.ending))); err != nil {
			return err
		}
	}
	if len(r.provenance) > 0 {
		if err := f.putEnvelope(digestPath(r.document.Image.Disk.String(), provenanceEnding), r.provenance); err != nil {
			return err
		}
	}
	if err := f.putDocument(ctx, digestPath(r.id.String(), ".dsse"), r); err != nil {
		return err
	}
	return f.putDocument(ctx, r.document.Image.ID+".dsse", r)
}

// putDocument writes the document under a name. Nobody else writes that name between the look at what is published and the end (package
// atomicfile), so that of two who publish at once neither loses a signature.
func (f folder) putDocument(ctx context.Context, name string, r release) error {
	return atomicfile.Stream(filepath.Join(f.dir, name), atomicfile.Options{Mode: 0o644}, func(to *os.File) error {
		signed, err := r.withPublished(ctx, f)
		if err != nil {
			return err
		}
		_, err = to.Write(signed)
		return err
	})
}

// makeFolder makes a folder, and those that lead to it. What is made anybody may look into, as into the files, whatever the umask is.
func makeFolder(path string) error {
	if there, err := os.Stat(path); err == nil && there.IsDir() {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := makeFolder(parent); err != nil {
			return err
		}
	}
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return os.MkdirAll(path, 0o755) // Another process was first, or it is no folder.
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

func (f folder) putEnvelope(name string, signed []byte) error {
	return atomicfile.Write(filepath.Join(f.dir, name), signed, 0o644)
}

func openAt(path string, offset, n int64) (io.ReadCloser, error) {
	in, err := os.Open(filepath.FromSlash(path))
	if err != nil {
		return nil, err
	}
	if _, err := in.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	if n < 0 {
		return in, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(in, n), in}, nil
}

func (f file) putIn(path string) error {
	return atomicfile.Stream(path, atomicfile.Options{Mode: 0o644}, func(to *os.File) error {
		if err := f.copyTo(holed{to}); err != nil {
			return err
		}
		end, err := to.Seek(0, io.SeekCurrent)
		return errors.Join(err, to.Truncate(end))
	})
}

// holed leaves a hole in a new file where it is given only zeros: most of a disk is.
type holed struct{ *os.File }

func (h holed) Write(b []byte) (int, error) {
	if len(bytes.Trim(b, "\x00")) > 0 {
		return h.File.Write(b)
	}
	_, err := h.Seek(int64(len(b)), io.SeekCurrent)
	return len(b), err
}
