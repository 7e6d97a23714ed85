package erofs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
)

// Limits of the format and of this package, in bytes.
const (
	maxName   = 255  // of one component
	maxLink   = 4095 // Linux, PATH_MAX
	maxSize   = 1 << 40
	maxXattrs = 1024
)

// inode is one file with all its names.
type inode struct {
	*File
	number  int // from 1 on
	links   int
	entries []entry // of a folder, sorted by name, with . and ..
	content *content
	xattrs  []byte
	// data is what is stored of a folder or symbolic link.
	data []byte
	// at is where the inode lies in the image, and block the first block of data or content.
	at, block int64
}

// entry is a name in a folder.
type entry struct {
	name string
	of   *inode
}

// link makes inodes of names, folders first, each kind sorted by its first name. The first is the root folder.
func link(files []File) ([]*inode, error) {
	sorted := slices.SortedFunc(slices.Values(pointers(files)), func(a, b *File) int { return strings.Compare(a.Name, b.Name) })
	named := make(map[string]*inode, len(files))
	same := map[string]*inode{}
	var folders, others []*inode
	for _, f := range sorted {
		if err := f.check(); err != nil {
			return nil, fmt.Errorf("%q: %w", f.Name, err)
		}
		if named[f.Name] != nil {
			return nil, fmt.Errorf("%q is there twice", f.Name)
		}
		i := same[f.Same]
		switch {
		case i == nil:
			x, err := encodeXattrs(f.Xattrs)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", f.Name, err)
			}
			i = &inode{File: f, xattrs: x}
			if f.Mode.IsDir() {
				folders = append(folders, i)
			} else {
				others = append(others, i)
			}
		case !i.alike(f):
			return nil, fmt.Errorf("%q is to be a hard link to %q, but has another type, mode, owner, size, target or attribute", f.Name, i.Name)
		}
		if f.Same != "" {
			same[f.Same] = i
		}
		i.links++
		named[f.Name] = i
	}
	root := named["."]
	if root == nil || !root.Mode.IsDir() {
		return nil, errors.New(`the root folder "." is missing`)
	}
	for _, f := range sorted {
		if f.Name == "." {
			continue
		}
		parent := named[path.Dir(f.Name)]
		if parent == nil || !parent.Mode.IsDir() {
			return nil, fmt.Errorf("%q: there is no folder %q", f.Name, path.Dir(f.Name))
		}
		parent.entries = append(parent.entries, entry{path.Base(f.Name), named[f.Name]})
	}
	for _, d := range folders {
		d.close(named[path.Dir(d.Name)])
	}
	// No name sorts before "." but such that begin with a byte below it, and the root has to be first: its number has 16 bits.
	i := slices.Index(folders, root)
	folders = slices.Insert(slices.Delete(folders, i, i+1), 0, root)
	inodes := slices.Concat(folders, others)
	for n, i := range inodes {
		i.number = n + 1
	}
	return inodes, nil
}

func pointers(files []File) []*File {
	out := make([]*File, len(files))
	for i := range files {
		out[i] = &files[i]
	}
	return out
}

// close adds a folder's links to itself and to its parent.
func (i *inode) close(parent *inode) {
	i.links = 2
	for _, e := range i.entries {
		if e.of.Mode.IsDir() {
			i.links++
		}
	}
	i.entries = append(i.entries, entry{".", i}, entry{"..", parent})
	slices.SortFunc(i.entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
}

func (i *inode) alike(f *File) bool {
	return i.Mode == f.Mode && i.UID == f.UID && i.GID == f.GID && i.Size == f.Size && i.Link == f.Link && maps.Equal(i.Xattrs, f.Xattrs)
}

// check looks at what can be said of a file by itself.
func (f *File) check() error {
	if f.Name == "" || path.Clean(f.Name) != f.Name || path.IsAbs(f.Name) || f.Name == ".." || strings.HasPrefix(f.Name, "../") || strings.Contains(f.Name, "\x00") {
		return errors.New("want a clean relative path")
	}
	if n := len(path.Base(f.Name)); n > maxName {
		return fmt.Errorf("the name has %d bytes, the format allows %d", n, maxName)
	}
	if f.Same != "" && f.Mode.IsDir() {
		return errors.New("a folder cannot be a hard link")
	}
	switch f.Mode.Type() {
	case 0:
		if f.Size < 0 || f.Size > maxSize {
			return fmt.Errorf("%d bytes long, want at most %d", f.Size, int64(maxSize))
		}
		if f.Open == nil && f.Size > 0 {
			return errors.New("has no content to open")
		}
	case fs.ModeSymlink:
		if len(f.Link) == 0 || len(f.Link) > maxLink || strings.Contains(f.Link, "\x00") {
			return fmt.Errorf("a symbolic link to %d bytes, want 1 to %d without a zero byte", len(f.Link), maxLink)
		}
	case fs.ModeDir:
	default:
		return fmt.Errorf("files of type %v cannot be stored", f.Mode.Type())
	}
	return nil
}

// xattrPrefixes are the names that the format knows by a number (EROFS_XATTR_INDEX_*).
var xattrPrefixes = []struct {
	prefix string
	index  byte
}{
	{"user.", 1}, {"system.posix_acl_access", 2}, {"system.posix_acl_default", 3}, {"trusted.", 4}, {"security.", 6},
}

// encodeXattrs returns the attributes as they follow an inode (struct erofs_xattr_ibody_header and entries), or nothing.
func encodeXattrs(xattrs map[string]string) ([]byte, error) {
	if len(xattrs) == 0 {
		return nil, nil
	}
	out := make([]byte, 12)
	for _, name := range slices.Sorted(maps.Keys(xattrs)) {
		rest, index := "", byte(0)
		for _, p := range xattrPrefixes {
			if r, ok := strings.CutPrefix(name, p.prefix); ok && (r != "") == strings.HasSuffix(p.prefix, ".") {
				rest, index = r, p.index
			}
		}
		value := xattrs[name]
		if index == 0 || len(rest) > maxName || len(value) > math.MaxUint16 {
			return nil, fmt.Errorf("the extended attribute %q cannot be stored: want a user, trusted or security one, or an access list, with a name of at most %d bytes",
				name, maxName)
		}
		out = append(out, byte(len(rest)), index, byte(len(value)), byte(len(value)>>8))
		out = append(append(out, rest...), value...)
		out = append(out, make([]byte, -len(out)&3)...)
	}
	if len(out) > maxXattrs {
		return nil, fmt.Errorf("%d bytes of extended attributes, want at most %d", len(out), maxXattrs)
	}
	return out, nil
}
