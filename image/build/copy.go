package build

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// plainMode is what remains of a mode in git.
func plainMode(mode fs.FileMode) fs.FileMode {
	if mode&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

// walk visits dir, as ".", and all that is below it, by names below it and in their order, but for what leave tells to leave
// out, if it is given. Dir may be a link to a folder.
func walk(dir string, leave func(name string) bool, visit func(name, path string, e fs.DirEntry) error) error {
	folder, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	return filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		switch {
		case err != nil:
			return err
		case name == "." || leave == nil || !leave(name):
			return visit(name, path, e)
		case e.IsDir():
			return fs.SkipDir
		}
		return nil
	})
}

// without leaves out what of dir has its name or its path in skip.
func without(dir string, skip []string) (leave func(name string) bool) {
	return func(name string) bool {
		return slices.Contains(skip, filepath.Base(name)) || slices.Contains(skip, filepath.Join(dir, name))
	}
}

// copyFolder copies folders, files and links below from; mode says which permissions a file's copy has. What has its name or
// path in skip stays behind.
func copyFolder(from, to string, mode func(fs.FileMode) fs.FileMode, skip ...string) error {
	return walk(from, without(from, skip), func(name, path string, e fs.DirEntry) error {
		return copyEntry(path, filepath.Join(to, name), e, mode)
	})
}

func copyEntry(from, to string, e fs.DirEntry, mode func(fs.FileMode) fs.FileMode) error {
	switch {
	case e.IsDir():
		return errors.Join(os.MkdirAll(to, 0o755), os.Chmod(to, 0o755))
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !e.Type().IsRegular():
		return nil
	}
	info, err := e.Info()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, content, 0o644), os.Chmod(to, mode(info.Mode())))
}
