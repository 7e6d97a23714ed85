// Package cpio writes the archives that the Linux kernel unpacks as its initial
// file system: "newc" without checksums (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst).
package cpio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

const (
	headerSize = 110
	trailer    = "TRAILER!!!"
	// maxFile is the largest length that the header's eight digits hold.
	maxFile = 1<<32 - 1

	typeDir     = 0o040000
	typeRegular = 0o100000
	typeSymlink = 0o120000
)

// Entry is a file of the archive.
type Entry struct {
	// Name is the path, relative and clean, for instance "lib/modules/a.ko".
	Name string
	// Mode holds the permissions and one of no type (a regular file),
	// fs.ModeDir and fs.ModeSymlink.
	Mode fs.FileMode
	// Data is the content, or the target of a symbolic link.
	Data []byte
}

// Write writes the entries to w, sorted by path, so that the result depends
// only on their set. Owner and times are 0, inode numbers count from 1. Parent
// directories that are not given are added with mode 0755, since the kernel
// needs a directory before what is in it.
func Write(w io.Writer, entries []Entry) error {
	sorted, err := complete(entries)
	if err != nil {
		return fmt.Errorf("write cpio: %w", err)
	}
	for i, e := range sorted {
		if err := writeEntry(w, uint64(i+1), e); err != nil {
			return fmt.Errorf("write cpio: %s: %w", e.Name, err)
		}
	}
	if _, err := w.Write(record(0, 0, 1, trailer, nil)); err != nil {
		return fmt.Errorf("write cpio: %w", err)
	}
	return nil
}

// complete checks the names, adds missing parents and sorts. A parent sorts
// before its children because its path is their prefix.
func complete(entries []Entry) ([]Entry, error) {
	byName := map[string]Entry{}
	for _, e := range entries {
		if !fs.ValidPath(e.Name) || e.Name == "." || e.Name == trailer || strings.ContainsRune(e.Name, 0) {
			return nil, fmt.Errorf("name %q: want a clean relative path", e.Name)
		}
		if _, twice := byName[e.Name]; twice {
			return nil, fmt.Errorf("%s: given twice", e.Name)
		}
		byName[e.Name] = e
	}
	for _, e := range entries {
		for dir := path.Dir(e.Name); dir != "."; dir = path.Dir(dir) {
			parent, exists := byName[dir]
			if exists && !parent.Mode.IsDir() {
				return nil, fmt.Errorf("%s: %s is not a directory", e.Name, dir)
			}
			if !exists {
				byName[dir] = Entry{Name: dir, Mode: fs.ModeDir | 0o755}
			}
		}
	}
	sorted := make([]Entry, 0, len(byName))
	for _, e := range byName {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return sorted, nil
}

func writeEntry(w io.Writer, inode uint64, e Entry) error {
	mode, links, err := unixMode(e)
	if err != nil {
		return err
	}
	if len(e.Data) > maxFile {
		return fmt.Errorf("%d bytes, want at most %d", len(e.Data), maxFile)
	}
	_, err = w.Write(record(inode, mode, links, e.Name, e.Data))
	return err
}

func unixMode(e Entry) (mode, links uint64, err error) {
	if e.Mode&^(fs.ModePerm|fs.ModeDir|fs.ModeSymlink) != 0 {
		return 0, 0, fmt.Errorf("mode %v: only regular files, directories and symbolic links can be written", e.Mode)
	}
	mode = uint64(e.Mode.Perm())
	switch e.Mode.Type() {
	case 0:
		return mode | typeRegular, 1, nil
	case fs.ModeSymlink:
		return mode | typeSymlink, 1, nil
	case fs.ModeDir:
		if len(e.Data) > 0 {
			return 0, 0, errors.New("a directory has no data")
		}
		return mode | typeDir, 2, nil
	}
	return 0, 0, fmt.Errorf("mode %v: more than one type", e.Mode)
}

// record returns header, name and data, the latter two padded to 4 bytes. The
// fields are inode, mode, uid, gid, links, mtime, size, device major and minor,
// special major and minor, length of the name with its NUL, checksum.
func record(inode, mode, links uint64, name string, data []byte) []byte {
	var b bytes.Buffer
	b.Grow(headerSize + len(name) + len(data) + 8)
	b.WriteString("070701")
	for _, v := range []uint64{inode, mode, 0, 0, links, 0, uint64(len(data)), 0, 0, 0, 0, uint64(len(name) + 1), 0} {
		fmt.Fprintf(&b, "%08x", v)
	}
	b.WriteString(name)
	b.WriteByte(0)
	pad(&b)
	b.Write(data)
	pad(&b)
	return b.Bytes()
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
