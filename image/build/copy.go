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

// copyFolder copies folders, files and links below from; mode says which permissions a file's copy has. What has its name or path in skip stays
// behind.
func copyFolder(from, to string, mode func(fs.FileMode) fs.FileMode, skip ...string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.Contains(skip, path) || slices.Contains(skip, e.Name()) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil // a worktree's .git is a file
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return copyEntry(path, filepath.Join(to, rel), e, mode)
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
