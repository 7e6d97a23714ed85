package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	write(t, file+".new", []byte("what a killed run left"))
	if err := replace(file, 0o600, half); !errors.Is(err, problem) {
		t.Errorf("got %v", err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "before" {
		t.Errorf("the older file is %q, %v", content, err)
	}
	if _, err := os.Stat(file + ".new"); err == nil {
		t.Error("half a file was left")
	}
	if err := writeWhole(file, []byte("after"), 0o600); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "after" {
		t.Errorf("the file is %q, %v", content, err)
	}
}
