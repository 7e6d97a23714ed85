package tlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	merkle "golang.org/x/mod/sumdb/tlog"
)

// CheckpointName is the file with the signed checkpoint (C2SP tlog-tiles, "Checkpoints").
const CheckpointName = "checkpoint"

// Tiles are 256 hashes wide (C2SP tlog-tiles, "Merkle Tree").
const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
	// entriesLevel is the level under which tiles hold entries.
	entriesLevel = -1
	// lengthSize is how many bytes say an entry's length.
	lengthSize = 2
)

// tileName is the file of a tile.
func tileName(t merkle.Tile) string {
	path := strings.TrimPrefix(t.Path(), fmt.Sprintf("tile/%d/", tileHeight)) // The height is no part of it there.
	if entries, ok := strings.CutPrefix(path, "data/"); ok {
		path = "entries/" + entries
	}
	return "tile/" + path
}

// entriesTile holds the entries from a multiple of 256 on, up to the width-th.
func entriesTile(n int64, width int) merkle.Tile {
	return merkle.Tile{H: tileHeight, L: entriesLevel, N: n, W: width}
}

// formatBundle writes entries as a tile has them (C2SP tlog-tiles, "Log entries"). None is longer than MaxEntry.
func formatBundle(entries [][]byte) []byte {
	var b []byte
	for _, e := range entries {
		b = binary.BigEndian.AppendUint16(b, uint16(len(e)))
		b = append(b, e...)
	}
	return b
}

// parseBundle reads what formatBundle wrote, of at most 256 entries of at most MaxEntry bytes.
func parseBundle(b []byte) ([][]byte, error) {
	var entries [][]byte
	for len(b) > 0 {
		if len(b) < lengthSize {
			return nil, errors.New("it was cut off")
		}
		n := int(binary.BigEndian.Uint16(b))
		switch {
		case n == 0 || n > MaxEntry:
			return nil, fmt.Errorf("an entry of %d bytes, want 1 to %d", n, MaxEntry)
		case len(b) < lengthSize+n:
			return nil, errors.New("it was cut off")
		case len(entries) == tileWidth:
			return nil, fmt.Errorf("more than %d entries", tileWidth)
		}
		entries = append(entries, b[lengthSize:lengthSize+n])
		b = b[lengthSize+n:]
	}
	return entries, nil
}

// readTile reads a tile, each of whose parts has at most so many bytes. Where a partial tile is no more, the full one that it became
// part of is read (C2SP tlog-tiles, "Partial Tiles"); what is more in it is the caller's to leave out.
func (r *Reader) readTile(t merkle.Tile, each int) (content []byte, isFull bool, err error) {
	content, err = r.files.ReadFile(r.ctx, tileName(t), int64(t.W*each))
	if t.W == tileWidth || !errors.Is(err, fs.ErrNotExist) {
		return content, t.W == tileWidth, err
	}
	full := t
	full.W = tileWidth
	if content, fullErr := r.files.ReadFile(r.ctx, tileName(full), int64(full.W*each)); fullErr == nil {
		return content, true, nil
	}
	return nil, false, err
}

// tiles reads tiles of hashes for the functions that check them. It is a merkle.TileReader, and keeps what was checked.
type tiles struct{ *Reader }

// Height is merkle.TileReader's.
func (tiles) Height() int { return tileHeight }

// ReadTiles is merkle.TileReader's.
func (r tiles) ReadTiles(wanted []merkle.Tile) ([][]byte, error) {
	var all [][]byte
	for _, t := range wanted {
		content := r.known[t]
		if content == nil {
			read, isFull, err := r.readTile(t, merkle.HashSize)
			if err != nil {
				return nil, unreadError{err}
			}
			content = read[:min(len(read), t.W*merkle.HashSize)]
			if len(content) != t.W*merkle.HashSize || !isFull && len(read) != len(content) {
				return nil, fmt.Errorf("%s has %d bytes, want %d", tileName(t), len(read), t.W*merkle.HashSize)
			}
		}
		all = append(all, content)
	}
	return all, nil
}

// unreadError is a tile that did not come, which says nothing of what is in it.
type unreadError struct{ error }

func (e unreadError) Unwrap() error { return e.error }

// SaveTiles is merkle.TileReader's.
func (r tiles) SaveTiles(checked []merkle.Tile, content [][]byte) {
	for i, t := range checked {
		r.known[t] = bytes.Clone(content[i])
	}
}
