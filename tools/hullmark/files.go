package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// readBounded reads a file of at most limit bytes.
func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%s: too long, want at most %d bytes", file, limit)
	}
	return content, nil
}

// notOver is an error if a file to be written is one of those that are read.
func notOver(path string, read ...string) error {
	to, err := os.Stat(path)
	if err != nil {
		return nil // Nothing is there, or writing says why not.
	}
	for _, name := range read {
		if from, err := os.Stat(name); err == nil && os.SameFile(to, from) {
			return withCode(exitUsage, fmt.Errorf("%s is what is read, and would be written over; name another file", path))
		}
	}
	return nil
}

// writeNew writes a file that must not exist yet. What cannot be written whole is removed.
func writeNew(path string, content []byte, mode fs.FileMode) error {
	return create(path, mode, writes(content))
}

// writeWhole writes a file, in place of an older one, that has its name only when it is whole.
func writeWhole(path string, content []byte, mode fs.FileMode) error {
	return replace(path, mode, writes(content))
}

func writes(content []byte) func(*os.File) error {
	return func(f *os.File) error {
		_, err := f.Write(content)
		return err
	}
}

// create is writeNew for what write writes.
func create(path string, mode fs.FileMode, write func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// replace is writeWhole for what write writes.
func replace(path string, mode fs.FileMode, write func(*os.File) error) error {
	if there, err := os.Lstat(path); err == nil && !there.Mode().IsRegular() {
		return withCode(exitUsage, fmt.Errorf("%s is no regular file, and stays as it is; name another one", path))
	}
	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := create(temporary, mode, write); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}

// makeFolder has fill write what is in a new folder, which has its name only when all is in it.
func makeFolder(dir string, mode fs.FileMode, fill func(dir string) error) error {
	dir = filepath.Clean(dir)
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".")
	if err != nil {
		return err
	}
	err = fill(temporary)
	if err == nil {
		err = errors.Join(os.Chmod(temporary, mode), syncFolder(temporary))
	}
	if err == nil {
		err = os.Rename(temporary, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temporary))
	}
	return syncFolder(filepath.Dir(dir))
}

// syncFolder stores which names are in a folder.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
