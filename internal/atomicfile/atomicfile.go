// Package atomicfile writes whole files and folders: whoever reads, and whoever starts after a cut of the power, finds the
// earlier content or the new one, and nothing between.
//
// What is written is collected in a temporary beside its name (".NAME.new"), which is made exclusively and with mode 0600, so
// that nothing is ever written through a link. It is synced and closed before it gets its name, and the folder is synced after.
// On an error the temporary is removed, and what had the name keeps it. Of several that write one name, in this process or
// others, one waits for the other; what a killed one left is removed by the next.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Options say how a file gets its name.
type Options struct {
	// Mode is the file's mode, whatever the umask is.
	Mode fs.FileMode
	// New refuses a name that something has already; the error wraps fs.ErrExist.
	New bool
	// Check is asked when all is written and stored, before the file gets its name; an error keeps the earlier file. It may be
	// nil. Nobody else who writes this name by this package does so between its answer and the new name.
	Check func() error
}

// Write replaces the file at path, or makes it. A link at path is replaced, not followed; what is neither link nor regular file is refused.
func Write(path string, content []byte, mode fs.FileMode) error {
	return Stream(path, Options{Mode: mode}, bytesOf(content))
}

// Create makes the file at path, where nothing may be: else the error wraps fs.ErrExist.
func Create(path string, content []byte, mode fs.FileMode) error {
	return Stream(path, Options{Mode: mode, New: true}, bytesOf(content))
}

// Stream is Write for what fill writes. An error of fill's is returned as it is, unless the file could not be written.
func Stream(path string, o Options, fill func(*os.File) error) error {
	p, err := at(path)
	if err != nil {
		return err
	}
	defer p.close()
	return p.stream(o, fill)
}

// WriteIn is Write for a name in root, out of which no link leads.
func WriteIn(root *os.Root, name string, content []byte, mode fs.FileMode) error {
	return StreamIn(root, name, Options{Mode: mode}, bytesOf(content))
}

// StreamIn is Stream for a name in root, out of which no link leads.
func StreamIn(root *os.Root, name string, o Options, fill func(*os.File) error) error {
	p, err := within(root, name)
	if err != nil {
		return err
	}
	defer p.close()
	return p.stream(o, fill)
}

func bytesOf(content []byte) func(*os.File) error {
	return func(f *os.File) error {
		_, err := f.Write(content)
		return err
	}
}

func (p place) stream(o Options, fill func(*os.File) error) error {
	if err := p.mayHold(o.New); err != nil {
		return p.explain(err)
	}
	held, err := p.temporary(p.makeFile)
	if err != nil {
		return p.explain(err)
	}
	defer held.Close()
	if err := p.fill(held, o.Mode, fill); err != nil {
		return errors.Join(err, p.drop())
	}
	if o.Check != nil {
		if err := o.Check(); err != nil {
			return errors.Join(err, p.drop())
		}
	}
	if err := p.name(o.New); err != nil {
		return errors.Join(p.explain(err), p.drop())
	}
	return p.explain(p.syncFolder())
}

// fill has the file written, stored and closed. What is closed is a second descriptor: the first one holds the name until the
// file has its own.
func (p place) fill(held *os.File, mode fs.FileMode, fill func(*os.File) error) error {
	fd, err := unix.FcntlInt(held.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return p.explain(fmt.Errorf("duplicate descriptor: %w", err))
	}
	f := os.NewFile(uintptr(fd), p.hiddenPath())
	if err := fill(f); err != nil {
		_ = f.Close()
		return p.explainFill(err)
	}
	return p.explain(errors.Join(f.Chmod(mode), f.Sync(), f.Close()))
}

// name gives the temporary its name.
func (p place) name(onlyNew bool) error {
	if !onlyNew {
		return p.dir.Rename(p.hidden(), p.base)
	}
	dir, err := p.dir.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unix.Renameat2(int(dir.Fd()), p.hidden(), int(dir.Fd()), p.base, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // This file system takes no flags: it may have links.
		if err = p.dir.Link(p.hidden(), p.base); err == nil {
			err = p.dir.Remove(p.hidden())
		}
	}
	return err
}
