package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// member is one file of the root tree: its header, and where its bytes are.
type member struct {
	header tar.Header
	open   func() (io.ReadCloser, error)
	// same is the name of the file that this one shares its inode with in its archive; empty if it has its own.
	same string
}

// members is a root tree that is put together. Keys are clean relative paths without a leading dot.
type members map[string]member

// addTar adds all files of an uncompressed tar archive. The archive must stay unchanged until write is done.
func (m members) addTar(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := tar.NewReader(f)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return m.settleLinks()
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		name := path.Clean(h.Name)
		if name == "." {
			continue
		}
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		open := section(file, at, h.Size)
		if isSparse(h) {
			content, err := io.ReadAll(in)
			if err != nil {
				return fmt.Errorf("read %s: %s: %w", file, name, err)
			}
			open = inMemory(content)
		}
		m[name] = member{header: *h, open: open}
	}
}

// isSparse tells whether the archive holds less than the file's bytes (tar(5), GNU and PAX sparse files), so they cannot be read in place.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// addFolder adds all files below dir as root's, with mode 0755 if they are folders or executable and 0644 if not.
func (m members) addFolder(dir string) error {
	return filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		return m.addPath(filepath.ToSlash(rel), p, e)
	})
}

func (m members) addPath(name, file string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	h := tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: info.Size()}
	switch {
	case e.IsDir():
		if _, there := m[name]; there {
			return nil // a folder of the tree keeps its mode
		}
		h.Typeflag, h.Mode, h.Size = tar.TypeDir, 0o755, 0
	case e.Type()&fs.ModeSymlink != 0:
		h.Typeflag, h.Mode, h.Size = tar.TypeSymlink, 0o777, 0
		if h.Linkname, err = os.Readlink(file); err != nil {
			return err
		}
	case info.Mode()&0o100 != 0:
		h.Mode = 0o755
	}
	m[name] = member{header: h, open: section(file, 0, h.Size)}
	return nil
}

// addBytes adds one file of root's.
func (m members) addBytes(name string, mode int64, content []byte) {
	m[name] = member{header: tar.Header{Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}, open: inMemory(content)}
}

// read returns the content of one file; symbolic links are not followed.
func (m members) read(name string) ([]byte, error) {
	f, ok := m[name]
	if !ok || f.header.Typeflag != tar.TypeReg {
		return nil, fmt.Errorf("root tree: no file %s", name)
	}
	r, err := f.open()
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(r)
	return content, errors.Join(err, r.Close())
}

// remove takes away everything below dir, and dir itself unless keep is set.
func (m members) remove(dir string, keep bool) {
	maps.DeleteFunc(m, func(name string, _ member) bool {
		return strings.HasPrefix(name, dir+"/") || name == dir && !keep
	})
}

// ownByRoot gives every file to root and takes away set-user-ID and set-group-ID bits. Nothing is ever written to the tree and
// no one logs in, so other owners and borrowed rights serve nobody; and mkosi, run by an ordinary user, records no other owners
// anyway.
func (m members) ownByRoot() {
	for name, f := range m {
		f.header.Uid, f.header.Gid, f.header.Mode = 0, 0, f.header.Mode&0o1777
		m[name] = f
	}
}

// addParents adds folders that only exist by their content.
func (m members) addParents() {
	for name := range maps.Clone(m) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, there := m[dir]; !there {
				m[dir] = member{header: tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}}
			}
		}
	}
}

// settleLinks gives the names of a hard-linked file equal standing: the original may later be removed, or sort after a link to it.
func (m members) settleLinks() error {
	for name, f := range m {
		if f.header.Typeflag != tar.TypeLink {
			continue
		}
		target := path.Clean(f.header.Linkname)
		original, ok := m[target]
		if !ok || original.header.Typeflag == tar.TypeLink {
			return fmt.Errorf("root tree: %s is a link to %s, which is not there", name, target)
		}
		original.same = target
		m[name], m[target] = original, original
	}
	return nil
}

func section(file string, at, size int64) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{io.NewSectionReader(f, at, size), f}, nil
	}
}

func inMemory(content []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
}
