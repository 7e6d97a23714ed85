package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestHalfAFileIsNotLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	problem := errors.New("no space left on device")
	half := func(f *os.File) error {
		_, err := f.WriteString("half")
		return errors.Join(err, problem)
	}
	if err := create(file, 0o600, half); !errors.Is(err, problem) {
		t.Errorf("got %v", err)
	}
	if err := writeNew(file, []byte("before"), 0o600); err != nil {
		t.Errorf("half a file was left: %v", err)
	}
	if err := writeNew(file, []byte("after"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that exists: got %v", err)
	}
	left := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	write(t, left, []byte("what a killed run left"))
	if err := replace(file, 0o600, half); !errors.Is(err, problem) {
		t.Errorf("got %v", err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "before" {
		t.Errorf("the older file is %q, %v", content, err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("half a file was left")
	}
	if err := writeWhole(file, []byte("after"), 0o600); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "after" {
		t.Errorf("the file is %q, %v", content, err)
	}
}

// What is a link, a folder, a pipe or a device stays one.
func TestOnlyFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	link, folder, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "folder"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.Symlink(filepath.Join(dir, "elsewhere"), link), os.Mkdir(folder, 0o700), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, folder, pipe} {
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeWhole(path, []byte("x"), 0o600); exitCode(err) != exitUsage || !strings.Contains(err.Error(), path+" is no regular file") {
			t.Errorf("%s: %v", path, err)
		}
		if after, err := os.Lstat(path); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%s is no longer what it was: %v", path, err)
		}
	}
}

func TestVersion(t *testing.T) {
	if code, out := hullmarkCLI(t, "--version"); code != 0 || strings.TrimSpace(out) != thisBuilder() {
		t.Errorf("%d, %q, want %q", code, out, thisBuilder())
	}
}
