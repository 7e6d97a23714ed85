package tlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	merkle "golang.org/x/mod/sumdb/tlog"
)

// File is one file of a log.
type File struct {
	Name    string
	Content []byte
}

// Next returns what one more entry adds to a log: files, in the order in which they have to be stored, and the checkpoint that comes
// after them. Until a checkpoint is signed they are nothing that a reader looks at; the first one holds the entry, so whoever writes
// can go on with it after a cut (Begun).
func (r *Reader) Next(e Entry) ([]File, Checkpoint, error) {
	encoded, err := e.Encode()
	if err != nil {
		return nil, Checkpoint{}, err
	}
	return r.next(encoded)
}

// next is Next for an entry's bytes.
func (r *Reader) next(encoded []byte) ([]File, Checkpoint, error) {
	var none Checkpoint
	if r.Size == MaxSize {
		return nil, none, fmt.Errorf("log %s: it is full: it has %d entries; begin another one", r.Origin, r.Size)
	}
	entries, err := r.last()
	if err != nil {
		return nil, none, err
	}
	grown := growing{before: r.hashes(), from: merkle.StoredHashIndex(0, r.Size)}
	if grown.added, err = merkle.StoredHashes(r.Size, encoded, r.hashes()); err != nil {
		return nil, none, err
	}
	next := Checkpoint{Origin: r.Origin, Size: r.Size + 1}
	if next.Root, err = merkle.TreeHash(next.Size, grown); err != nil {
		return nil, none, err
	}
	files := []File{{tileName(r.nextEntries()), formatBundle(append(entries, encoded))}}
	for _, t := range merkle.NewTiles(tileHeight, r.Size, next.Size) {
		content, err := merkle.ReadTileData(t, grown)
		if err != nil {
			return nil, none, err
		}
		files = append(files, File{tileName(t), content})
	}
	return files, next, nil
}

// nextEntries is the tile that holds the last entries and one more.
func (r *Reader) nextEntries() merkle.Tile {
	return entriesTile(r.Size/tileWidth, int(r.Size%tileWidth)+1)
}

// last are the entries of the last tile of them, as long as that is partial.
func (r *Reader) last() ([][]byte, error) {
	if r.Size%tileWidth == 0 {
		return nil, nil
	}
	return r.bundle(r.Size / tileWidth)
}

// Begun returns the entry that a writer stored after the last one before it was cut off, and whether there is one. Its checkpoint may
// have been seen by somebody before the cut took it back, so it has to be the next one.
func (r *Reader) Begun() (Entry, bool, error) {
	t := r.nextEntries()
	content, err := r.files.ReadFile(r.ctx, tileName(t), int64(t.W*(lengthSize+MaxEntry)))
	if errors.Is(err, fs.ErrNotExist) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, err
	}
	e, err := r.begun(content)
	if err != nil {
		return Entry{}, false, fmt.Errorf("log %s: %s, which no checkpoint covers yet: %w", r.Origin, tileName(t), err)
	}
	return e, true, nil
}

func (r *Reader) begun(content []byte) (Entry, error) {
	entries, err := parseBundle(content)
	if err != nil {
		return Entry{}, err
	}
	before, err := r.last()
	if err != nil {
		return Entry{}, err
	}
	if len(entries) != len(before)+1 {
		return Entry{}, fmt.Errorf("%d entries, want %d", len(entries), len(before)+1)
	}
	for i, e := range before {
		if !bytes.Equal(e, entries[i]) {
			return Entry{}, errors.New("it does not begin with the entries of the log")
		}
	}
	return ParseEntry(entries[len(before)])
}

// growing are the hashes of a tree and those that one more entry adds to it, which follow them.
type growing struct {
	before merkle.HashReader
	from   int64
	added  []merkle.Hash
}

// ReadHashes is merkle.HashReader's.
func (g growing) ReadHashes(indexes []int64) ([]merkle.Hash, error) {
	var old []int64
	for _, i := range indexes {
		if i < g.from {
			old = append(old, i)
		}
	}
	found, err := g.before.ReadHashes(old)
	if err != nil {
		return nil, err
	}
	var all []merkle.Hash
	for _, i := range indexes {
		if i < g.from {
			all, found = append(all, found[0]), found[1:]
			continue
		}
		if i-g.from >= int64(len(g.added)) {
			return nil, fmt.Errorf("hash %d is not in the tree", i)
		}
		all = append(all, g.added[i-g.from])
	}
	return all, nil
}
