package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Folder makes the folder at path of what fill writes into an empty one beside it, which others cannot open. What has the name
// already must be an empty folder. If the way to the folder leads elsewhere after fill, the error says so: what was written is
// not here.
func Folder(path string, mode fs.FileMode, fill func(dir string) error) error {
	p, err := at(path)
	if err != nil {
		return err
	}
	defer p.close()
	held, err := p.temporary(p.makeFolder)
	if err != nil {
		return p.explain(err)
	}
	defer held.Close()
	if err := fill(p.hiddenPath()); err != nil {
		return errors.Join(p.explainFill(err), p.drop())
	}
	if err := p.finishFolder(held, mode); err != nil {
		return errors.Join(p.explain(err), p.drop())
	}
	return p.explain(p.syncFolder())
}

// finishFolder stores what is in the temporary, and gives it its name.
func (p place) finishFolder(held *os.File, mode fs.FileMode) error {
	root, err := p.dir.OpenRoot(p.hidden())
	if err != nil {
		return err
	}
	defer root.Close()
	if err := errors.Join(p.leadsTo(held), held.Chmod(mode), syncAll(root)); err != nil {
		return err
	}
	return p.name(false)
}

// leadsTo is an error unless the temporary's path, by which it was filled, and its name both mean what is held.
func (p place) leadsTo(held *os.File) error {
	mine, err := held.Stat()
	if err != nil {
		return err
	}
	byPath, err := os.Lstat(p.hiddenPath())
	if err != nil {
		return err
	}
	named, err := p.isNamed(held, p.hidden())
	if err == nil && (!named || !os.SameFile(mine, byPath)) {
		err = errors.New("the folder was moved while it was written, or a link was put in its way; see who did, and do it again")
	}
	return err
}

// syncAll stores the files and folders below root, several at once.
func syncAll(root *os.Root) error {
	var group errgroup.Group
	group.SetLimit(4 * runtime.GOMAXPROCS(0))
	err := fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() && !e.Type().IsRegular() {
			return err
		}
		group.Go(func() error { return syncNames(root, name) })
		return nil
	})
	return errors.Join(err, group.Wait())
}

// Move gives a finished file another name on the same file system: for what a program wrote that knows nothing of this package,
// and where several files must be whole before one has its name. What is no regular file is refused. On an error from is still
// there, and its owner removes it.
func Move(from, to string) error {
	p, err := at(to)
	if err != nil {
		return err
	}
	defer p.close()
	source, err := at(from)
	if err != nil {
		return err
	}
	defer source.close()
	if err := errors.Join(p.mayHold(false), source.syncFile()); err != nil {
		return p.explain(err)
	}
	if err := rename(source, p); err != nil {
		return p.explain(err)
	}
	return p.explain(p.syncFolder())
}

// syncFile stores the file that has the name.
func (p place) syncFile() error {
	there, err := p.dir.Lstat(p.base)
	if err != nil {
		return err
	}
	if !there.Mode().IsRegular() {
		return errKind
	}
	f, err := p.dir.OpenFile(p.base, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// rename moves what has a name in one folder that is held open to a name in another.
func rename(from, to place) error {
	old, err := from.dir.Open(".")
	if err != nil {
		return err
	}
	defer old.Close()
	dir, err := to.dir.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Renameat(int(old.Fd()), from.base, int(dir.Fd()), to.base)
}
