package place

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/measurements/tlog"
)

// maxMemory is the largest file that remembers a checkpoint, in bytes: with or without more around it.
const maxMemory = tlog.MaxProof

// memory is the last signed checkpoint that somebody saw of a log, in a file.
type memory struct {
	path string
	// before is what the file held when it was read; nil if there was none.
	before []byte
	// last is the checkpoint in it, or nil.
	last *tlog.Checkpoint
}

// remember reads the file, which may be missing. What is in it was signed by the log, whoever cosigned it.
func remember(path string, t tlog.Trust) (memory, error) {
	m := memory{path: path}
	before, err := atomicfile.Read(path, tlog.MaxCheckpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	t.Threshold = 0
	last, err := t.Open(before)
	if err != nil {
		return m, fmt.Errorf("%s, which holds the checkpoint that was seen last: %w", path, err)
	}
	m.before, m.last = before, &last
	return m, nil
}

// store replaces the file, unless somebody else did meanwhile: two that saw different trees must not both go on.
func (m memory) store(content []byte) error {
	unchanged := func() error {
		if m.before == nil {
			return nil // The file has to be new.
		}
		now, err := atomicfile.Read(m.path, maxMemory)
		if err == nil && !bytes.Equal(now, m.before) {
			err = fmt.Errorf("%s was changed by another process meanwhile; do it again", m.path)
		}
		return err
	}
	return atomicfile.Stream(m.path, atomicfile.Options{Mode: 0o644, New: m.before == nil, Check: unchanged}, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

// Follow checks that a log goes on from what the file at path holds of it, the checkpoint that was seen last, and then keeps in the
// file the one that r is read at. It returns the earlier one, or nil if there was no file.
func Follow(r *tlog.Reader, t tlog.Trust, path string) (*tlog.Checkpoint, error) {
	m, err := remember(path, t)
	if err != nil {
		return nil, err
	}
	if m.last != nil {
		if err := r.GoesOnFrom(*m.last); err != nil {
			return nil, err
		}
	}
	return m.last, m.store(r.Note)
}

// Witness cosigns checkpoints of one log.
type Witness struct {
	// Key is an Ed25519 key.
	Key crypto.Signer
	// State is the file with the checkpoint that it cosigned last.
	State string
	// First begins with a log of which nothing was cosigned: State must not be there. Otherwise it must: a witness that forgot what it
	// saw would cosign anything.
	First bool
}

// Cosign cosigns the log's checkpoint of now, once it was checked that the log goes on from the one before, and returns it. The file has
// it before anybody gets it. A log in a folder gets the cosignature into its checkpoint.
func (w Witness) Cosign(ctx context.Context, from tlog.Files, t tlog.Trust, now time.Time) ([]byte, error) {
	m, err := remember(w.State, t)
	switch {
	case err != nil:
		return nil, fmt.Errorf("witness: %w", err)
	case w.First && m.last != nil:
		return nil, fmt.Errorf("witness: %s: a checkpoint was cosigned before; go on with that", w.State)
	case !w.First && m.last == nil:
		return nil, fmt.Errorf("witness: %s: there is no checkpoint to go on from, and one that forgot what it saw cosigns nothing", w.State)
	}
	r, err := tlog.Read(ctx, from, t)
	if err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	cosigned, err := r.Cosign(m.last, w.Key, now)
	if err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	if err := m.store(cosigned); err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	if dir, ok := from.(Folder); ok {
		if err := addSignatures(string(dir), t, cosigned); err != nil {
			return nil, fmt.Errorf("witness: %w", err)
		}
	}
	return cosigned, nil
}
