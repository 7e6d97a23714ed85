package powercut

import (
	"io"
	"maps"
)

// blockSize is how much of Memory copies share, in bytes.
const blockSize = 4096

// Memory is a medium that is zero where nothing was written, and cheap to copy.
type Memory struct{ blocks map[int64]*[blockSize]byte }

// NewMemory returns one that is all zero.
func NewMemory() *Memory { return &Memory{blocks: map[int64]*[blockSize]byte{}} }

// Copy returns a medium of the same content, which goes its own way from here.
func (m *Memory) Copy() *Memory { return &Memory{blocks: maps.Clone(m.blocks)} }

// Save writes what is not zero.
func (m *Memory) Save(w io.WriterAt) error {
	for number, block := range m.blocks {
		if _, err := w.WriteAt(block[:], number*blockSize); err != nil {
			return err
		}
	}
	return nil
}

// ReadAt never fails.
func (m *Memory) ReadAt(b []byte, offset int64) (int, error) {
	for at := 0; at < len(b); {
		number, inside := (offset+int64(at))/blockSize, (offset+int64(at))%blockSize
		part := b[at:min(len(b), at+blockSize-int(inside))]
		if block := m.blocks[number]; block != nil {
			copy(part, block[inside:])
		} else {
			clear(part)
		}
		at += len(part)
	}
	return len(b), nil
}

// WriteAt never fails.
func (m *Memory) WriteAt(b []byte, offset int64) (int, error) {
	for at := 0; at < len(b); {
		number, inside := (offset+int64(at))/blockSize, (offset+int64(at))%blockSize
		block := new([blockSize]byte) // A copy may have the old one.
		if old := m.blocks[number]; old != nil {
			*block = *old
		}
		at += copy(block[inside:], b[at:])
		if m.blocks[number] = block; *block == ([blockSize]byte{}) { // Zeros take no room.
			delete(m.blocks, number)
		}
	}
	return len(b), nil
}
