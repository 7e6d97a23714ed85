package publish

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

func fetchFile(ctx context.Context, from Source, f file, progress func(done int64)) error {
	if err := f.fetch(ctx, from, progress); err != nil {
		return fmt.Errorf("fetch %s: %w", f.what, err)
	}
	return nil
}

func (f file) fetch(ctx context.Context, from Source, progress func(done int64)) error {
	return atomicfile.Resume(f.path, 0o644, func(part *os.File) error {
		return (&download{file: f, ctx: ctx, from: from, to: part, hash: sha256.New(), progress: progress}).fill()
	})
}

// download is a file that is being fetched.
type download struct {
	file
	ctx      context.Context
	from     Source
	to       *os.File
	hash     hash.Hash // of the first done bytes
	done     int64
	progress func(done int64)
}

// fill has in the file what is signed; what came of it before is there already, and may be all.
func (d *download) fill() (err error) {
	if d.done, err = io.Copy(d.hash, d.to); err != nil || d.right() {
		return err
	}
	if used := d.used(); used != nil {
		if err := d.copyUsed(used); err != nil || d.right() {
			return err
		}
		// What it is to be made of was the source's word. The whole file is not.
		if err := d.restart(); err != nil {
			return err
		}
	}
	if err := d.copy(-1); err != nil {
		return err
	}
	if !d.right() {
		return fmt.Errorf("signed is a %s with sha256 %v, the source gave %x; %w", d.what, d.digest, d.hash.Sum(nil), atomicfile.ErrUseless)
	}
	return nil
}

func (d *download) right() bool { return d.digest.Equal(d.hash.Sum(nil)) }

func (d *download) restart() error {
	d.hash.Reset()
	d.done = 0
	_, err := d.to.Seek(0, io.SeekStart)
	return errors.Join(err, d.to.Truncate(0))
}

// used returns which parts of a disk there are to fetch, or nothing if the source does not say that.
func (d *download) used() []image.Extent {
	if d.kind != imageKind {
		return nil
	}
	used, err := image.Used(&windows{d: d, known: map[int64][]byte{}})
	if err != nil {
		return nil
	}
	return used
}

// copyUsed takes what there is to fetch, and zeros between.
func (d *download) copyUsed(used []image.Extent) error {
	for _, e := range used {
		end := e.Offset + e.Size
		if end > d.limit {
			return nil // and so it is not right
		}
		if gap := e.Offset - d.done; gap > 0 {
			if _, err := io.CopyN(d.hash, zeros{}, gap); err != nil {
				return err
			}
			if _, err := d.to.Seek(gap, io.SeekCurrent); err != nil {
				return err
			}
			d.done = e.Offset
		}
		if end > d.done {
			if err := d.copy(end - d.done); err != nil {
				return err
			}
		}
	}
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// copy fetches the next n bytes, or all that are left if n is negative.
func (d *download) copy(n int64) error {
	in, err := d.from.content(d.ctx, d.kind, d.digest, d.done, n)
	if err != nil {
		return err
	}
	r := io.Reader(in)
	if n >= 0 {
		r = io.LimitReader(in, n)
	}
	err = errors.Join(d.copyOn(r, n), in.Close())
	if errors.Is(err, errTooLarge) {
		return fmt.Errorf("%w; %w", err, atomicfile.ErrUseless)
	}
	if err != nil {
		return fmt.Errorf("%w (what came is in %s; the same command goes on with it)", err, atomicfile.Part(d.path))
	}
	return nil
}

// errTooLarge says that what comes is not what was asked for; what came is of no use.
var errTooLarge = errors.New("too large")

// errWhole is a source that has no parts of files.
var errWhole = errors.New("the source gives whole files alone")

// copyOn writes what follows, at least n bytes and never more than a file of the kind has.
func (d *download) copyOn(r io.Reader, n int64) error {
	buffer, end := make([]byte, 1<<20), d.done+n
	for {
		came, err := r.Read(buffer)
		if d.done += int64(came); d.done > d.limit {
			return fmt.Errorf("%w: more than %d bytes", errTooLarge, d.limit)
		}
		if _, err := io.MultiWriter(d.to, d.hash).Write(buffer[:came]); err != nil {
			return err
		}
		if d.progress != nil {
			d.progress(d.done)
		}
		if errors.Is(err, io.EOF) && end > d.done {
			return io.ErrUnexpectedEOF
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// windows reads a few bytes of a file that is fetched, here and there, in as few requests.
type windows struct {
	d     *download
	known map[int64][]byte
}

const (
	window     = 32 << 10
	maxWindows = 16
)

// ReadAt is io.ReaderAt's.
func (w *windows) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		number := (at + int64(n)) / window
		content, err := w.get(number)
		if err != nil {
			return n, err
		}
		n += copy(b[n:], content[at+int64(n)-number*window:])
	}
	return n, nil
}

func (w *windows) get(number int64) ([]byte, error) {
	if content := w.known[number]; content != nil {
		return content, nil
	}
	if len(w.known) == maxWindows || number < 0 || (number+1)*window > w.d.limit {
		return nil, errTooLarge
	}
	in, err := w.d.from.content(w.d.ctx, w.d.kind, w.d.digest, number*window, window)
	if err != nil {
		return nil, err
	}
	content := make([]byte, window)
	_, err = io.ReadFull(in, content)
	w.known[number] = content
	return content, errors.Join(err, in.Close())
}
