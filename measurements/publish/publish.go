// Package publish publishes signed measurement documents and their images, and
// fetches them again: from a folder, or from a tree that a web server shows.
// Whoever serves is not trusted: nothing is handed on that the key did not sign.
//
// A tree holds NAME.dsse, the newest document of an image's name, and below
// sha256/ every document and every image by the digest of its content:
// sha256/DIGEST.dsse and sha256/DIGEST.raw.
package publish

import (
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/hullmark/hullmark/measurements"
)

// MaxImage is the largest image that is fetched, in bytes.
const MaxImage = 16 << 30

var (
	digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	nameForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
)

// Release puts a signed document into the tree in folder, and its image if one
// is named. Both have to be what key signed. The name leads to the document only when everything it names is there.
func Release(folder string, signed []byte, key crypto.PublicKey, image string) error {
	document, err := measurements.Open(signed, key)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if !nameForm.MatchString(document.Image.ID) {
		return fmt.Errorf("publish: the image's name %.80q cannot be a file's", document.Image.ID)
	}
	id, err := document.Digest()
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(folder, "sha256"), 0o755); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if image != "" {
		if err := copyImage(folder, image, document); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	for _, name := range []string{documentPath(id.String()), document.Image.ID + ".dsse"} {
		if err := replace(filepath.Join(folder, name), func(w io.Writer) error { _, err := w.Write(signed); return err }); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}

func documentPath(digest string) string { return "sha256/" + digest + ".dsse" }

func imagePath(d measurements.Document) string { return "sha256/" + d.Image.Disk.String() + ".raw" }

// copyImage copies an image while it is hashed; one that is not the document's leaves nothing.
func copyImage(folder, image string, document measurements.Document) error {
	in, err := os.Open(image)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return replace(filepath.Join(folder, imagePath(document)), func(w io.Writer) error {
		h := sha256.New()
		if _, err := io.Copy(io.MultiWriter(w, h), in); err != nil {
			return err
		}
		if got := h.Sum(nil); !document.Image.Disk.Equal(got) {
			return fmt.Errorf("%s: signed is a disk with sha256 %v, this one has %x", image, document.Image.Disk, got)
		}
		return nil
	})
}

// replace writes a file that has its name only when it is whole and on disk.
func replace(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Source is a tree that is fetched from.
type Source interface {
	// open reads a file of the tree from an offset on. It fails with fs.ErrNotExist for a file that is not there.
	open(ctx context.Context, path string, offset int64) (io.ReadCloser, error)
}

// Fetch returns the document that reference names, an image's name or a
// document's digest, with the bytes that were signed. The document is checked as
// measurements.Open does, has to be the one that was asked for, and may not have
// a security version below minimum: a name says nothing of which release it leads to.
func Fetch(ctx context.Context, from Source, reference string, key crypto.PublicKey, minimum uint32) (signed []byte, d measurements.Document, err error) {
	path := reference + ".dsse"
	switch {
	case digestForm.MatchString(reference):
		path = documentPath(reference)
	case !nameForm.MatchString(reference):
		return nil, d, fmt.Errorf("fetch %.80q: want an image's name or a document's digest", reference)
	}
	in, err := from.open(ctx, path, 0)
	if err != nil {
		return nil, d, fmt.Errorf("fetch %s: %w", reference, err)
	}
	signed, err = io.ReadAll(io.LimitReader(in, measurements.MaxEnvelope+1))
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, d, fmt.Errorf("fetch %s: %w", reference, err)
	}
	if d, err = measurements.Open(signed, key); err != nil {
		return nil, measurements.Document{}, fmt.Errorf("fetch %s: %w", reference, err)
	}
	if err := isMeant(d, reference, minimum); err != nil {
		return nil, measurements.Document{}, fmt.Errorf("fetch %s: %w", reference, err)
	}
	return signed, d, nil
}

func isMeant(d measurements.Document, reference string, minimum uint32) error {
	id, err := d.Digest()
	if err != nil {
		return err
	}
	if reference != id.String() && reference != d.Image.ID {
		return fmt.Errorf("the source gave the document %v of image %.80q instead", id, d.Image.ID)
	}
	if d.SVN < minimum {
		return fmt.Errorf("its security version is %d, wanted is at least %d: the source shows an old release", d.SVN, minimum)
	}
	return nil
}

// FetchImage fetches a document's image into the file to, which has its name
// only when its content is what was signed. What an interrupted fetch left in
// to.part is gone on with. Progress is told how many bytes are there; it may be nil.
func FetchImage(ctx context.Context, from Source, d measurements.Document, to string, progress func(done int64)) error {
	if err := fetchImage(ctx, from, d, to, MaxImage, progress); err != nil {
		return fmt.Errorf("fetch image %s: %w", d.Image.ID, err)
	}
	return nil
}

func fetchImage(ctx context.Context, from Source, d measurements.Document, to string, limit int64, progress func(done int64)) error {
	part := to + ".part"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	done, err := io.Copy(h, f)
	if err != nil {
		return err
	}
	if !d.Image.Disk.Equal(h.Sum(nil)) { // all of it may be there already
		in, err := from.open(ctx, imagePath(d), done)
		if err != nil {
			return err
		}
		err = copyOn(io.MultiWriter(f, h), in, done, limit, progress)
		err = errors.Join(err, in.Close())
		if errors.Is(err, errTooLarge) {
			return errors.Join(err, os.Remove(part))
		}
		if err != nil {
			return fmt.Errorf("%w (what came is in %s; the same command goes on with it)", err, part)
		}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != d.Image.Disk.String() {
		return errors.Join(fmt.Errorf("signed is a disk with sha256 %v, the source gave %s; what came was removed", d.Image.Disk, got), os.Remove(part))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(part, to)
}

// errTooLarge says that what comes is no image; what came is of no use.
var errTooLarge = errors.New("larger than any image")

// copyOn copies what follows done bytes, and no more than limit of both.
func copyOn(w io.Writer, r io.Reader, done, limit int64, progress func(done int64)) error {
	buffer := make([]byte, 1<<20)
	for {
		n, err := r.Read(buffer)
		if done += int64(n); done > limit {
			return fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
		}
		if _, err := w.Write(buffer[:n]); err != nil {
			return err
		}
		if progress != nil {
			progress(done)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Folder is a tree on this machine.
func Folder(dir string) Source { return folder(dir) }

type folder string

func (f folder) open(_ context.Context, path string, offset int64) (io.ReadCloser, error) {
	in, err := os.Open(filepath.Join(string(f), filepath.FromSlash(path)))
	if err != nil {
		return nil, err
	}
	if _, err := in.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}
