package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// ErrImagesDiffer says that two builds of the same input are not byte-equal.
var ErrImagesDiffer = errors.New("images differ")

// ErrDocumentsDiffer says that what lies beside two images is not byte-equal.
var ErrDocumentsDiffer = errors.New("documents differ")

// compareImages says where two images first differ. What comes first is not what stands first on the disk but what the rest
// follows from: the root file system, then the kernel image's sections (the command line holds the root hash), then the table
// and the file system around them.
func compareImages(ctx context.Context, tools, fileA, fileB string) error {
	a, closeA, err := openImage(fileA)
	if err != nil {
		return err
	}
	defer closeA()
	b, closeB, err := openImage(fileB)
	if err != nil {
		return err
	}
	defer closeB()
	at, err := firstDifference(a.disk.Root, b.disk.Root)
	if err != nil {
		return err
	}
	if at >= 0 {
		return errors.Join(fmt.Errorf("%w: partition root, offset %d", ErrImagesDiffer, at), compareRoots(ctx, tools, a.disk.Root, b.disk.Root))
	}
	for _, name := range []string{".linux", ".osrel", ".uname", ".initrd", ".cmdline"} {
		x, _ := a.disk.UKI.Section(name)
		y, _ := b.disk.UKI.Section(name)
		if at, _ := firstDifference(bytes.NewReader(x), bytes.NewReader(y)); at >= 0 {
			return fmt.Errorf("%w: partition esp, file %s, section %s, offset %d", ErrImagesDiffer, uki.Path, name, at)
		}
	}
	if at, err = firstDifference(io.NewSectionReader(a.file, 0, a.size), io.NewSectionReader(b.file, 0, b.size)); err != nil || at < 0 {
		return err
	}
	return fmt.Errorf("%w: %s, offset %d of the disk", ErrImagesDiffer, partitionAt(a.disk, at), at)
}

// compareDocuments compares what describes two images and has their names with other endings.
func compareDocuments(imageA, imageB string) error {
	for _, ending := range []string{lock.SPDXEnding, lock.CycloneDXEnding, lock.ProvenanceEnding, lock.DocumentEnding} {
		a, b := lock.Beside(imageA, ending), lock.Beside(imageB, ending)
		err := compareContent(filepath.Base(a), a, b)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("compare documents: %w", err)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDocumentsDiffer, err)
		}
	}
	return nil
}

type openedImage struct {
	file *os.File
	size int64
	disk *image.Disk
}

func openImage(file string) (o openedImage, closeFile func(), err error) {
	if o.file, err = os.Open(file); err != nil {
		return o, nil, err
	}
	closeFile = func() { _ = o.file.Close() }
	info, err := o.file.Stat()
	if err != nil {
		closeFile()
		return o, nil, err
	}
	o.size = info.Size()
	if o.disk, err = image.Open(o.file, o.size); err != nil {
		closeFile()
	}
	return o, closeFile, err
}

func partitionAt(d *image.Disk, at int64) string {
	for _, p := range d.Table.Partitions {
		if at >= p.Offset() && at < p.Offset()+p.Size() {
			return "partition " + p.Name
		}
	}
	return "partition table"
}

// compareRoots unpacks two erofs images and names the first file, in the order of names, that differs.
func compareRoots(ctx context.Context, tools string, roots ...io.Reader) error {
	work, err := os.MkdirTemp("", "hullmark-compare-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	var dirs []string
	for i, r := range roots {
		dir := filepath.Join(work, fmt.Sprint(i))
		if err := unpackErofs(ctx, tools, r, dir); err != nil {
			return err
		}
		dirs = append(dirs, dir)
	}
	return errors.Join(compareFolders(dirs[0], dirs[1]), compareNames(dirs[1], dirs[0]))
}

// Limits of a root file system that is unpacked, in bytes: what somebody made to be unpacked may be much larger than it looks.
const (
	maxUnpackedFile = 4 << 30
	maxUnpacked     = 16 << 30
)

// unpackErofs unpacks an erofs image into dir, which it makes. The program that reads it sees nothing of the machine but the two.
func unpackErofs(ctx context.Context, tools string, r io.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(dir + ".erofs")
	if err != nil {
		return err
	}
	if s, ok := r.(io.Seeker); ok {
		if _, err := s.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	_, err = io.Copy(f, r)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go limitUsed(ctx, dir, stop)
	s := toolstree.Sandbox{
		Tree: tools, Offline: true,
		Binds: []toolstree.Bind{{Host: dir, Tree: "/out", Writable: true}, {Host: dir + ".erofs", Tree: "/root.erofs"}},
	}
	err = runQuiet(s.Command(ctx, "prlimit", fmt.Sprintf("--fsize=%d", int64(maxUnpackedFile)),
		"fsck.erofs", "--extract=/out", "--no-preserve-owner", "--preserve-perms", "--force", "/root.erofs"), "fsck.erofs")
	return errors.Join(context.Cause(ctx), err, os.Remove(dir+".erofs"))
}

// limitUsed stops when the file system of dir has lost more space than a root file system takes.
func limitUsed(ctx context.Context, dir string, stop context.CancelCauseFunc) {
	free := func() uint64 {
		var s unix.Statfs_t
		_ = unix.Statfs(dir, &s)
		return s.Bavail * uint64(s.Bsize)
	}
	for before := free(); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if now := free(); now+maxUnpacked < before {
			stop(fmt.Errorf("the root file system has more than %d bytes", int64(maxUnpacked)))
		}
	}
}

// WalkRoot unpacks a root file system into a temporary folder, by the tools tree's fsck.erofs, and calls visit for everything
// in it, in the order of names: with its path in the image ("/etc/hosts"), and with the file that was unpacked, which visit may
// read. Owners and times are not unpacked.
func WalkRoot(ctx context.Context, tools string, root io.Reader, visit func(name, file string, info fs.FileInfo) error) error {
	work, err := os.MkdirTemp("", "hullmark-root-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	dir := filepath.Join(work, "root")
	if err := unpackErofs(ctx, tools, root, dir); err != nil {
		return fmt.Errorf("unpack the root file system: %w", err)
	}
	return filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if e.IsDir() || info.Mode().IsRegular() { // else an ordinary user could neither read nor remove some
			if err := os.Chmod(file, info.Mode().Perm()|0o700); err != nil {
				return err
			}
		}
		return visit(strings.TrimPrefix(file, dir), file, info)
	})
}

// compareFolders returns an error for the first file below a that b lacks or has otherwise.
func compareFolders(a, b string) error {
	return filepath.WalkDir(a, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(a, path)
		if err != nil {
			return err
		}
		return compareEntry(rel, path, filepath.Join(b, rel), e)
	})
}

func compareEntry(name, a, b string, e fs.DirEntry) error {
	x, err := e.Info()
	if err != nil {
		return err
	}
	y, err := os.Lstat(b)
	if err != nil {
		return fmt.Errorf("file /%s is in one image only", name)
	}
	if x.Mode() != y.Mode() || !x.ModTime().Equal(y.ModTime()) {
		return fmt.Errorf("file /%s: mode %s and %s, time %s and %s", name, x.Mode(), y.Mode(), x.ModTime().UTC(), y.ModTime().UTC())
	}
	if e.Type()&fs.ModeSymlink != 0 {
		s, _ := os.Readlink(a)
		t, _ := os.Readlink(b)
		if s != t {
			return fmt.Errorf("file /%s: link to %q and to %q", name, s, t)
		}
	}
	if !e.Type().IsRegular() {
		return nil
	}
	return compareContent("/"+name, a, b)
}

func compareContent(name, a, b string) error {
	f, err := os.Open(a)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	g, err := os.Open(b)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	at, err := firstDifference(f, g)
	if err == nil && at >= 0 {
		err = fmt.Errorf("file %s, offset %d", name, at)
	}
	return err
}

// compareNames returns an error for the first name below a that b lacks.
func compareNames(a, b string) error {
	return filepath.WalkDir(a, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(a, path)
		if err != nil {
			return err
		}
		if _, err := os.Lstat(filepath.Join(b, rel)); err != nil {
			return fmt.Errorf("file /%s is in one image only", rel)
		}
		return nil
	})
}
