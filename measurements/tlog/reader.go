package tlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	merkle "golang.org/x/mod/sumdb/tlog"
)

// Files are those of a log, which nobody has to trust. Package place has them in a folder and on the web.
type Files interface {
	// ReadFile returns a file by its name below the log's place, with slashes, of at most limit bytes. One that is not there is
	// fs.ErrNotExist.
	ReadFile(ctx context.Context, name string, limit int64) ([]byte, error)
}

// Reader reads a log as one checkpoint has it: whatever it returns is proven to be in that tree.
type Reader struct {
	Checkpoint
	// Note is the signed checkpoint, as it was read.
	Note []byte

	ctx   context.Context
	trust Trust
	files Files
	known map[merkle.Tile][]byte // tiles that were checked
}

// Read opens the log as it is now. Requests for more of it end with ctx.
func Read(ctx context.Context, files Files, t Trust) (*Reader, error) {
	signed, err := files.ReadFile(ctx, CheckpointName, MaxCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("log: checkpoint: %w", err)
	}
	return ReadAt(ctx, files, t, signed)
}

// ReadAt opens the log as it was at a signed checkpoint that came in another way.
func ReadAt(ctx context.Context, files Files, t Trust, signed []byte) (*Reader, error) {
	c, err := t.Open(signed)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return &Reader{Checkpoint: c, Note: signed, ctx: ctx, trust: t, files: files, known: map[merkle.Tile][]byte{}}, nil
}

// hashes are those of the tree, each checked up to its root.
func (r *Reader) hashes() merkle.HashReader {
	return merkle.HashReaderFunc(func(indexes []int64) ([]merkle.Hash, error) {
		if len(indexes) == 0 {
			return nil, nil
		}
		found, err := merkle.TileHashReader(merkle.Tree{N: r.Size, Hash: r.Root}, tiles{r}).ReadHashes(indexes)
		var unread unreadError
		if err != nil && !errors.As(err, &unread) {
			err = fmt.Errorf("its tiles do not hash up to its checkpoint: %w", err)
		}
		if err != nil {
			return nil, fmt.Errorf("log %s: %w", r.Origin, err)
		}
		return found, nil
	})
}

// bundle returns the entries of one tile of them, which hash to the tree's leaves.
func (r *Reader) bundle(n int64) ([][]byte, error) {
	width := int(min(tileWidth, r.Size-n*tileWidth))
	t := entriesTile(n, width)
	content, isFull, err := r.readTile(t, lengthSize+MaxEntry)
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", r.Origin, err)
	}
	entries, err := parseBundle(content)
	if err != nil {
		return nil, fmt.Errorf("log %s: %s: %w", r.Origin, tileName(t), err)
	}
	if len(entries) < width || len(entries) > width && !isFull {
		return nil, fmt.Errorf("log %s: %s has %d entries, want %d", r.Origin, tileName(t), len(entries), width)
	}
	entries = entries[:width]
	var indexes []int64
	for i := range entries {
		indexes = append(indexes, merkle.StoredHashIndex(0, n*tileWidth+int64(i)))
	}
	leaves, err := r.hashes().ReadHashes(indexes)
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		if merkle.RecordHash(e) != leaves[i] {
			return nil, fmt.Errorf("log %s: %s: entry %d is another than the one in the tree", r.Origin, tileName(t), n*tileWidth+int64(i))
		}
	}
	return entries, nil
}

// Each hands on all entries in their order, and ends with the first error, its own or do's.
func (r *Reader) Each(do func(index int64, e Entry) error) error { return r.EachFrom(0, do) }

// EachFrom is Each from the entry with that number on. Of those before, none is read but in the tile that has it, too.
func (r *Reader) EachFrom(first int64, do func(index int64, e Entry) error) error {
	for next := max(first, 0); next < r.Size; {
		n := next / tileWidth
		entries, err := r.bundle(n)
		if err != nil {
			return err
		}
		for _, encoded := range entries[next-n*tileWidth:] {
			e, err := ParseEntry(encoded)
			if err != nil {
				return fmt.Errorf("log %s: entry %d: %w", r.Origin, next, err)
			}
			if err := do(next, e); err != nil {
				return err
			}
			next++
		}
	}
	return nil
}

// Find returns the number of an entry, or ErrNotInLog. It begins with the last tile of entries, since most who look for one look for a
// new one.
func (r *Reader) Find(e Entry) (int64, error) {
	wanted, err := e.Encode()
	if err != nil {
		return 0, err
	}
	for n := (r.Size+tileWidth-1)/tileWidth - 1; n >= 0; n-- {
		entries, err := r.bundle(n)
		if err != nil {
			return 0, err
		}
		for i, encoded := range entries {
			if bytes.Equal(encoded, wanted) {
				return n*tileWidth + int64(i), nil
			}
		}
	}
	return 0, fmt.Errorf("log %s: %w: document %v", r.Origin, ErrNotInLog, e.Document)
}

// Prove returns the proof that the entry with that number is in the log.
func (r *Reader) Prove(index int64) (Proof, error) {
	hashes, err := merkle.ProveRecord(r.Size, index, r.hashes())
	if err != nil {
		return Proof{}, fmt.Errorf("prove entry %d: %w", index, err)
	}
	return Proof{Schema: ProofSchema, Index: index, Hashes: hashes, Checkpoint: string(r.Note)}, nil
}

// GoesOnFrom checks that the log only grew since an earlier checkpoint of it, which somebody saw: all entries of that time are the first
// ones of this tree (RFC 6962 §2.1.2). What is otherwise is ErrContradiction.
func (r *Reader) GoesOnFrom(earlier Checkpoint) error {
	if err := r.follows(earlier); err != nil {
		return fmt.Errorf("log %s: %w", r.Origin, err)
	}
	if earlier.Size == 0 || earlier.Size == r.Size {
		return nil
	}
	proof, err := merkle.ProveTree(r.Size, earlier.Size, r.hashes())
	if err != nil {
		return err
	}
	if merkle.CheckTree(proof, r.Size, r.Root, earlier.Size, earlier.Root) != nil {
		return fmt.Errorf("log %s: %w: its first %d entries are others than before: it forked", r.Origin, ErrContradiction, earlier.Size)
	}
	return nil
}
