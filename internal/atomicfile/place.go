package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// place is a name in a folder that is held open: what happens to the folder's own name meanwhile does not matter.
type place struct {
	dir  *os.Root
	base string
	path string // what errors call it
}

func at(name string) (place, error) {
	name = filepath.Clean(name)
	p := place{base: filepath.Base(name), path: name}
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return p, p.explain(err)
	}
	p.dir = dir
	return p, nil
}

func within(root *os.Root, name string) (place, error) {
	p := place{base: path.Base(name), path: filepath.Join(root.Name(), name)}
	dir, err := root.OpenRoot(path.Dir(name))
	if err != nil {
		return p, p.explain(err)
	}
	p.dir = dir
	return p, nil
}

func (p place) close() { _ = p.dir.Close() }

// hidden is the temporary's name. What watches a folder leaves names with a dot alone: the kubelet, the container runtime, systemd.
func (p place) hidden() string { return "." + p.base + ".new" }

func (p place) hiddenPath() string { return filepath.Join(p.dir.Name(), p.hidden()) }

// mayHold refuses what a file must not replace.
func (p place) mayHold(onlyNew bool) error {
	there, err := p.dir.Lstat(p.base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case onlyNew:
		return fs.ErrExist
	case !there.Mode().IsRegular() && there.Mode()&fs.ModeSymlink == 0:
		return errKind
	}
	return nil
}

// temporary makes what is written to, and holds it: nobody else writes to it or removes it until it is closed.
func (p place) temporary(create func() (*os.File, error)) (*os.File, error) {
	for {
		f, err := create()
		if errors.Is(err, fs.ErrExist) {
			if err := p.removeLeft(); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		held, err := p.hold(f)
		if held {
			return f, nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

func (p place) makeFile() (*os.File, error) {
	return p.dir.OpenFile(p.hidden(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func (p place) makeFolder() (*os.File, error) {
	if err := p.dir.Mkdir(p.hidden(), 0o700); err != nil {
		return nil, err
	}
	return p.dir.Open(p.hidden())
}

// removeLeft removes what has the temporary's name, once nobody holds it.
func (p place) removeLeft() error {
	there, err := p.dir.Lstat(p.hidden())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !there.Mode().IsRegular() && !there.IsDir() { // Nobody who uses this package made it.
		return p.dir.Remove(p.hidden())
	}
	f, err := p.dir.OpenFile(p.hidden(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	held, err := p.hold(f)
	if !held {
		return err
	}
	return p.dir.RemoveAll(p.hidden())
}

// hold waits until nobody else holds f, and tells whether f has the temporary's name by then. Where a file system has no locks,
// nobody waits.
func (p place) hold(f *os.File) (bool, error) {
	if err := lock(f, unix.LOCK_EX); err != nil {
		return false, err
	}
	return p.isNamed(f, p.hidden())
}

func lock(f *os.File, how int) error {
	for {
		switch err := unix.Flock(int(f.Fd()), how); {
		case errors.Is(err, unix.EINTR):
		case err == nil, errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EBADF): // EBADF: a folder on NFS
			return nil
		default:
			return fmt.Errorf("lock: %w", err)
		}
	}
}

// isNamed tells whether f, and nothing else, has this name.
func (p place) isNamed(f *os.File, name string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := p.dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

// drop removes the temporary, which is held.
func (p place) drop() error { return p.dir.RemoveAll(p.hidden()) }

// syncFolder stores which names are in the folder.
func (p place) syncFolder() error { return syncNames(p.dir, ".") }

func syncNames(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
