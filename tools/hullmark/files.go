package main

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/pcrs"
)

// readBounded reads a file of at most limit bytes.
func readBounded(file string, limit int64) ([]byte, error) { return atomicfile.Read(file, limit) }

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
	return atomicfile.Stream(path, atomicfile.Options{Mode: mode, New: true}, write)
}

// replace is writeWhole for what write writes. A link that the operator named is not replaced.
func replace(path string, mode fs.FileMode, write func(*os.File) error) error {
	if there, err := os.Lstat(path); err == nil && !there.Mode().IsRegular() {
		return withCode(exitUsage, fmt.Errorf("%s is no regular file, and stays as it is; name another one", path))
	}
	return atomicfile.Stream(path, atomicfile.Options{Mode: mode}, write)
}

// compareFile compares a file with a signed digest; none means that nothing was signed.
func compareFile(file, what string, signed pcrs.Digest) error {
	got, err := digestOf(file)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if len(signed) == 0 {
		return withCode(exitMismatch, fmt.Errorf("%s: the document names no %s", file, what))
	}
	if !signed.Equal(got) {
		return withCode(exitMismatch, fmt.Errorf("%s: the signed %s has sha256 %v, this one has %v", file, what, signed, got))
	}
	return nil
}
