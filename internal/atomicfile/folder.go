package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// Folder makes the folder at path of what fill writes into an empty one beside it, which others cannot open. What has the name already must be an empty folder.
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
	if err := errors.Join(held.Chmod(mode), syncAll(p.hiddenPath())); err != nil {
		return errors.Join(p.explain(err), p.drop())
	}
	if err := p.name(false); err != nil {
		return errors.Join(p.explain(err), p.drop())
	}
	return p.explain(p.syncFolder())
}

// syncAll stores the files and folders below dir, several at once.
func syncAll(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var group errgroup.Group
	group.SetLimit(4 * runtime.GOMAXPROCS(0))
	err = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() && !e.Type().IsRegular() {
			return err
		}
		if name, err = filepath.Rel(dir, name); err == nil {
			group.Go(func() error { return syncNames(root, name) })
		}
		return err
	})
	return errors.Join(err, group.Wait())
}

// Move gives a finished file another name on the same file system: for what a program wrote that knows nothing of this package, and where several files must be whole
// before one has its name. On an error from is still there, and its owner removes it.
func Move(from, to string) error {
	p, err := at(to)
	if err != nil {
		return err
	}
	defer p.close()
	if err := errors.Join(p.mayHold(false), syncFile(from)); err != nil {
		return p.explain(err)
	}
	if err := os.Rename(from, filepath.Join(p.dir.Name(), p.base)); err != nil {
		return p.explain(err)
	}
	return p.explain(p.syncFolder())
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
