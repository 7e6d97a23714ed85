// Package debfile writes binary packages in Debian's format, deb(5), whose bytes depend on what is in them alone.
package debfile

import (
	"archive/tar"
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// Field is a field of a package's control file, deb-control(5). A value of several lines has a space before each but the first.
type Field struct{ Name, Value string }

// File is a regular file of a package. It belongs to root.
type File struct {
	// Path is where it is installed, absolute and clean.
	Path string
	// Mode are its permissions, such as 0o644.
	Mode    fs.FileMode
	Content []byte
}

// Package is a binary package without scripts. Its folders are made of its files' paths, and have mode 0755.
type Package struct {
	// Control are the fields in their order, but for Installed-Size, which Write adds.
	Control []Field
	// Files are in any order.
	Files []File
	// Time is the date of everything in it, of whole seconds.
	Time time.Time
}

// Write writes the package. It is compressed by gzip, which every dpkg and every program that keeps archives of packages reads; the
// compressor is a module and not Go's own, so that the bytes do not depend on the Go that this is compiled with. What dpkg would not take
// is an error, and so is a name that an ustar header has no room for.
func (p Package) Write(w io.Writer) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("debfile: %w", err)
	}
	files := slices.SortedFunc(slices.Values(p.Files), func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	control, err := p.archive([]File{{Path: "/control", Mode: 0o644, Content: p.control(files)}, {Path: "/md5sums", Mode: 0o644, Content: sums(files)}})
	if err != nil {
		return fmt.Errorf("debfile: control: %w", err)
	}
	data, err := p.archive(files)
	if err != nil {
		return fmt.Errorf("debfile: data: %w", err)
	}
	if _, err := io.WriteString(w, "!<arch>\n"); err != nil {
		return err
	}
	return errors.Join(
		p.member(w, "debian-binary", []byte("2.0\n")),
		p.member(w, "control.tar.gz", control),
		p.member(w, "data.tar.gz", data),
	)
}

// required are the fields that dpkg installs no package without.
var required = []string{"Package", "Version", "Architecture", "Maintainer", "Description"}

func (p Package) check() error {
	seen := map[string]bool{}
	for _, f := range p.Control {
		if f.Name == "" || strings.ContainsAny(f.Name, ": \t\n") || seen[f.Name] || f.Name == "Installed-Size" {
			return fmt.Errorf("field %q: no name of one, or it is there already", f.Name)
		}
		seen[f.Name] = true
		for i, line := range strings.Split(f.Value, "\n") {
			if strings.TrimSpace(line) == "" || i > 0 && line[0] != ' ' {
				return fmt.Errorf("field %s: line %q: want text, and a space before each line but the first", f.Name, line)
			}
		}
	}
	for _, name := range required {
		if !seen[name] {
			return fmt.Errorf("no field %s", name)
		}
	}
	paths := map[string]bool{}
	for _, f := range p.Files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" || strings.Contains(f.Path, "\n") || paths[f.Path] {
			return fmt.Errorf("file %q: no clean absolute path, or it is there already", f.Path)
		}
		if f.Mode != f.Mode.Perm() {
			return fmt.Errorf("file %s: mode %v: only permissions are possible", f.Path, f.Mode)
		}
		paths[f.Path] = true
	}
	for _, f := range p.Files {
		for _, dir := range folders(f.Path) {
			if paths[dir] {
				return fmt.Errorf("%s is a file, and a folder of %s", dir, f.Path)
			}
		}
	}
	return nil
}

// control writes the control file. The size is counted as deb-control(5) says: each file in KiB, rounded up, and one for each folder.
func (p Package) control(files []File) []byte {
	var b bytes.Buffer
	for _, f := range p.Control {
		fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Value)
	}
	size, seen := 0, map[string]bool{}
	for _, f := range files {
		size += (len(f.Content) + 1023) / 1024
		for _, dir := range folders(f.Path) {
			seen[dir] = true
		}
	}
	fmt.Fprintf(&b, "Installed-Size: %d\n", size+len(seen))
	return b.Bytes()
}

// sums writes what dpkg --verify holds files to, which wants MD5.
func sums(files []File) []byte {
	var b bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&b, "%x  %s\n", md5.Sum(f.Content), strings.TrimPrefix(f.Path, "/"))
	}
	return b.Bytes()
}

// archive packs files, each after the folders that it is in.
func (p Package) archive(files []File) ([]byte, error) {
	var b bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(compressed)
	seen := map[string]bool{}
	for _, f := range files {
		for _, dir := range folders(f.Path) {
			if seen[dir] {
				continue
			}
			seen[dir] = true
			if err := t.WriteHeader(p.header(tar.TypeDir, strings.TrimSuffix("."+dir, "/")+"/", 0o755, 0)); err != nil {
				return nil, err
			}
		}
		if err := t.WriteHeader(p.header(tar.TypeReg, "."+f.Path, f.Mode, len(f.Content))); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.Content); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.Close(), compressed.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (p Package) header(kind byte, name string, mode fs.FileMode, size int) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(mode), Size: int64(size), ModTime: p.Time, Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
	}
}

// folders are those that a file is in, the root first.
func folders(file string) []string {
	var all []string
	for dir := path.Dir(file); ; dir = path.Dir(dir) {
		all = append(all, dir)
		if dir == "/" {
			slices.Reverse(all)
			return all
		}
	}
}

// member writes a member of the outer archive, ar(5): a header of 60 bytes, and the content up to an even length.
func (p Package) member(w io.Writer, name string, content []byte) error {
	if _, err := fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", name, p.Time.Unix(), 0, 0, 0o100644, len(content)); err != nil {
		return err
	}
	if len(content)%2 == 1 {
		content = append(slices.Clip(content), '\n')
	}
	_, err := w.Write(content)
	return err
}
