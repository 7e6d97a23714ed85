package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrUseless is wrapped by an error of Resume's fill when what is there so far leads to nothing: it is removed.
var ErrUseless = errors.New("what came was removed")

// Part returns where Resume collects the file at path.
func Part(path string) string { return path + ".part" }

// Resume is Stream for what may take several attempts: fill finds in the file what earlier ones left (Part), and what it leaves
// stays there when it fails. A part that is a link, has a second name, or belongs to another user is refused: what is written
// would go elsewhere, or change after it was checked.
func Resume(path string, mode fs.FileMode, fill func(*os.File) error) error {
	p, err := at(path)
	if err != nil {
		return err
	}
	defer p.close()
	part := Part(p.base)
	f, err := p.openPart(part)
	if err != nil {
		return p.explain(err)
	}
	defer f.Close()
	if err := p.mayHold(false); err != nil {
		return p.explain(err)
	}
	if err := fill(f); err != nil {
		if info, statErr := f.Stat(); errors.Is(err, ErrUseless) || statErr == nil && info.Size() == 0 {
			err = errors.Join(err, p.dir.Remove(part))
		}
		return p.explainFill(err)
	}
	if err := errors.Join(f.Chmod(mode), f.Sync()); err != nil {
		return p.explain(err)
	}
	if err := p.dir.Rename(part, p.base); err != nil {
		return p.explain(err)
	}
	return p.explain(p.syncFolder())
}

// openPart opens or makes the part, alone, and refuses what this user did not leave there.
func (p place) openPart(name string) (*os.File, error) {
	dir, err := p.dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, refusedPart(name, errors.New("it is a link"))
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), p.path+".part")
	if err := p.ownPart(f, name); err != nil {
		return nil, errors.Join(refusedPart(name, err), f.Close())
	}
	return f, nil
}

func (p place) ownPart(f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := ownFile(info); err != nil {
		return err
	}
	err = lock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		var named bool
		if named, err = p.isNamed(f, name); err == nil && named {
			return nil
		}
	}
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another process writes it")
	}
	return err
}

func refusedPart(name string, err error) error {
	return fmt.Errorf("%s: %w; look at it, remove it, and do it again", name, err)
}

func ownFile(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return errors.New("it is no regular file")
	case !ok || stat.Nlink != 1:
		return errors.New("it has a second name")
	case int(stat.Uid) != os.Geteuid():
		return errors.New("it belongs to another user")
	}
	return nil
}
