package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// Target is what a disk is installed on: an *os.File.
type Target interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// Installation describes how a disk is written to a target.
type Installation struct {
	// Digest is the SHA-256 of the whole disk, and Size its length in bytes.
	Digest [sha256.Size]byte
	Size   int64
	// Room is the length of the target, which may be larger than the disk.
	Room int64
	// Reread, if set, is called before what was written is read back: it drops what the machine has in memory of it.
	Reread func() error
	// Progress, if set, is told how many bytes are done, of twice Size: each is written and read back.
	Progress func(done int64)
}

// piece is how much is written or read at once, in bytes. The partition table is in the first piece.
const piece = 1 << 20

// Install writes a disk from r, which it reads once, and reads it back. The first piece, with the partition table, is cleared before
// and written last, when all else was found to be what the digest says: a target on which this was interrupted, or failed, has no table
// and starts nowhere.
func (i Installation) Install(ctx context.Context, to Target, r io.Reader) error {
	if i.Size%512 != 0 || i.Size <= 2*piece || i.Size > i.Room {
		return fmt.Errorf("install: a disk of %d bytes on %d", i.Size, i.Room)
	}
	if err := i.clear(to); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	first, err := i.write(ctx, to, r)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if err := i.check(to, first); err != nil {
		return fmt.Errorf("install: read back: %w", err)
	}
	if _, err := to.WriteAt(first, 0); err != nil {
		return fmt.Errorf("install: partition table: %w", err)
	}
	if err := to.Sync(); err != nil {
		return fmt.Errorf("install: partition table: %w", err)
	}
	return nil
}

// clear takes the tables of what was on the target before: a second copy may be at its end, or where this disk ends.
func (i Installation) clear(to Target) error {
	nothing := make([]byte, piece)
	for _, at := range []int64{0, i.Size - piece, i.Room - piece} {
		if _, err := to.WriteAt(nothing, at); err != nil {
			return err
		}
	}
	return to.Sync()
}

// write writes all but the first piece, which it returns, unless ctx ends.
func (i Installation) write(ctx context.Context, to Target, r io.Reader) (first []byte, err error) {
	first, buffer, digest := make([]byte, piece), make([]byte, piece), sha256.New()
	for at := int64(0); at < i.Size; at += piece {
		part := buffer[:min(piece, i.Size-at)]
		if at == 0 {
			part = first
		}
		if err := context.Cause(ctx); err != nil {
			return nil, fmt.Errorf("read the disk at %d: %w", at, err)
		}
		if _, err := io.ReadFull(r, part); err != nil {
			return nil, fmt.Errorf("read the disk at %d: %w", at, err)
		}
		_, _ = digest.Write(part) // A hash never fails.
		if at > 0 {
			if _, err := to.WriteAt(part, at); err != nil {
				return nil, err
			}
		}
		i.tell(at + int64(len(part)))
	}
	if got := digest.Sum(nil); !bytes.Equal(got, i.Digest[:]) {
		return nil, fmt.Errorf("the disk was read with digest %x, want %x: it changed; nothing on the target can start", got, i.Digest)
	}
	return first, to.Sync()
}

// check reads back what was written behind the first piece.
func (i Installation) check(to Target, first []byte) error {
	if i.Reread != nil {
		if err := i.Reread(); err != nil {
			return err
		}
	}
	digest, buffer := sha256.New(), make([]byte, piece)
	_, _ = digest.Write(first)
	for at := int64(piece); at < i.Size; at += piece {
		part := buffer[:min(piece, i.Size-at)]
		if _, err := to.ReadAt(part, at); err != nil {
			return err
		}
		_, _ = digest.Write(part)
		i.tell(i.Size + at + int64(len(part)))
	}
	if !bytes.Equal(digest.Sum(nil), i.Digest[:]) {
		return errors.New("the target does not hold what was written; it is damaged, and nothing on it can start")
	}
	return nil
}

func (i Installation) tell(done int64) {
	if i.Progress != nil {
		i.Progress(done)
	}
}
