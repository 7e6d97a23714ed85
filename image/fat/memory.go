package fat

import (
	"io"
	iofs "io/fs"
	"os"

	"github.com/diskfs/go-diskfs/backend"
)

// memory is a fixed-size disk in memory, the only kind of storage that
// go-diskfs is given here.
type memory struct{ data []byte }

func (m *memory) ReadAt(b []byte, offset int64) (int, error) {
	if offset < 0 || offset >= int64(len(m.data)) {
		return 0, io.EOF
	}
	n := copy(b, m.data[offset:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) WriteAt(b []byte, offset int64) (int, error) {
	if offset < 0 || offset+int64(len(b)) > int64(len(m.data)) {
		return 0, io.ErrShortWrite
	}
	return copy(m.data[offset:], b), nil
}

// The library wants a whole file but uses offsets only.

func (m *memory) Writable() (backend.WritableFile, error) { return m, nil }
func (m *memory) Sys() (*os.File, error)                  { return nil, errNotUsed }
func (m *memory) Path() string                            { return "" }
func (m *memory) Stat() (iofs.FileInfo, error)            { return nil, errNotUsed }
func (m *memory) Read([]byte) (int, error)                { return 0, errNotUsed }
func (m *memory) Seek(int64, int) (int64, error)          { return 0, errNotUsed }
func (m *memory) Close() error                            { return nil }
