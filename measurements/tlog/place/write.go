package place

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/tlog"
)

// Create makes the folder of a new log: a signed checkpoint of no entries. The folder must not be there: what is left of another log
// could be taken for its own. The key is an Ed25519 key that signs no other log.
func Create(dir, origin string, key crypto.Signer) error {
	empty, err := tlog.Empty(origin)
	if err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	signed, err := empty.Sign(key)
	if err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	if err := atomicfile.Folder(dir, 0o755, func(made string) error {
		return atomicfile.Create(filepath.Join(made, tlog.CheckpointName), signed, 0o644)
	}); err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	return nil
}

// Append puts an entry into the log of a folder, unless it is in there, and returns the proof of it. Of several that write, one waits for
// the other. After a cut at any time the next call goes on: an entry that was stored is in the log from then on, and what was
// signed stays.
func Append(ctx context.Context, dir string, key crypto.Signer, e tlog.Entry) (tlog.Proof, error) {
	return appendTo(ctx, dir, key, e, store)
}

// appendTo is Append, by a function that stores a file. Tests cut it off.
func appendTo(ctx context.Context, dir string, key crypto.Signer, e tlog.Entry, store storer) (tlog.Proof, error) {
	w, err := open(dir, key, store)
	if err != nil {
		return tlog.Proof{}, fmt.Errorf("append to log: %w", err)
	}
	defer w.close()
	r, err := w.recover(ctx)
	if err != nil {
		return tlog.Proof{}, fmt.Errorf("append to log: %w", err)
	}
	index, err := r.Find(e)
	if errors.Is(err, tlog.ErrNotInLog) {
		index = r.Size
		r, err = w.grow(ctx, r, e)
	}
	if err != nil {
		return tlog.Proof{}, fmt.Errorf("append to log: %w", err)
	}
	return r.Prove(index)
}

// storer stores a file of a log.
type storer func(root *os.Root, f tlog.File) error

// writer is who writes to a log's folder: nobody else does until it is closed.
type writer struct {
	root  *os.Root
	dir   string
	lock  *os.File
	key   crypto.Signer
	store storer
}

// open waits until nobody else writes to the folder.
func open(dir string, key crypto.Signer, store storer) (writer, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return writer{}, fmt.Errorf("%w (hullmark log create makes a log)", err)
	}
	if err != nil {
		return writer{}, err
	}
	lock, err := root.Open(".")
	if err != nil {
		return writer{}, errors.Join(err, root.Close())
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	w := writer{root, dir, lock, key, store}
	if err != nil {
		w.close()
		return writer{}, fmt.Errorf("lock %s: %w", dir, err)
	}
	return w, nil
}

func (w writer) close() { _ = errors.Join(w.lock.Close(), w.root.Close()) }

// trust is in nobody but the writer.
func (w writer) trust() (tlog.Trust, error) {
	public, ok := w.key.Public().(ed25519.PublicKey)
	if !ok {
		return tlog.Trust{}, fmt.Errorf("the log's key is %s, want Ed25519", measurements.KeyKind(w.key.Public()))
	}
	return tlog.Trust{Key: public}, nil
}

// recover opens the log, with the entry that an earlier writer was cut off at.
func (w writer) recover(ctx context.Context) (*tlog.Reader, error) {
	r, err := w.read(ctx)
	if err != nil {
		return nil, err
	}
	e, begun, err := r.Begun()
	if err != nil || !begun {
		return r, err
	}
	return w.grow(ctx, r, e)
}

func (w writer) read(ctx context.Context) (*tlog.Reader, error) {
	trust, err := w.trust()
	if err != nil {
		return nil, err
	}
	return tlog.Read(ctx, Folder(w.dir), trust)
}

// grow adds an entry. The checkpoint comes last: it leads to all else.
func (w writer) grow(ctx context.Context, r *tlog.Reader, e tlog.Entry) (*tlog.Reader, error) {
	files, next, err := r.Next(e)
	if err != nil {
		return nil, err
	}
	signed, err := next.Sign(w.key)
	if err != nil {
		return nil, err
	}
	for _, f := range append(files, tlog.File{Name: tlog.CheckpointName, Content: signed}) {
		if err := w.store(w.root, f); err != nil {
			return nil, err
		}
	}
	return w.read(ctx)
}

// store stores a file, and the folders that lead to it.
func store(root *os.Root, f tlog.File) error {
	at := "."
	if dir := path.Dir(f.Name); dir != at {
		for name := range strings.SplitSeq(dir, "/") {
			next := path.Join(at, name)
			err := root.Mkdir(next, 0o755)
			if err == nil {
				err = root.Chmod(next, 0o755) // whatever the umask is
			}
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := syncFolder(root, at); err != nil {
				return err
			}
			at = next
		}
	}
	return atomicfile.WriteIn(root, f.Name, f.Content, 0o644)
}

// syncFolder stores which names are in a folder.
func syncFolder(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// addSignatures puts the cosignatures of a checkpoint into the folder's, which is of the same tree unless the log has grown meanwhile.
func addSignatures(dir string, t tlog.Trust, cosigned []byte) error {
	w, err := open(dir, nil, store)
	if err != nil {
		return err
	}
	defer w.close()
	now, err := Folder(dir).ReadFile(context.Background(), tlog.CheckpointName, tlog.MaxCheckpoint)
	if err != nil {
		return err
	}
	merged, err := t.Merge(cosigned, now)
	if err != nil {
		return fmt.Errorf("the log's folder: %w (it has grown, perhaps; do it again)", err)
	}
	return w.store(w.root, tlog.File{Name: tlog.CheckpointName, Content: merged})
}
