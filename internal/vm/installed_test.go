package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestInstallDisk(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.raw"), filepath.Join(dir, "second.raw")
	write := func(path string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	large := append(bytes.Repeat([]byte("first"), 100_000), make([]byte, 1<<20)...)
	write(first, large)
	write(second, []byte("second"))
	folder := filepath.Join(dir, "machine")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := installDisk(folder, ""); got != "" || err != nil {
		t.Errorf("no image and no disk: %q, %v", got, err)
	}
	own := filepath.Join(folder, diskName)
	holds := func(what, image string, want []byte) {
		t.Helper()
		if got, err := installDisk(folder, image); got != own || err != nil {
			t.Errorf("%s: %q, %v", what, got, err)
		}
		if got, err := os.ReadFile(own); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the disk has %d bytes: %.20q, %v", what, len(got), got, err)
		}
	}
	holds("the first start", first, large)
	write(own, []byte("the guest wrote"))
	holds("the next start", first, []byte("the guest wrote"))
	holds("a start without an image", "", []byte("the guest wrote"))
	holds("another image", second, []byte("second"))
	holds("the first again", first, large)
	write(first, []byte("rebuilt"))
	if err := os.Chtimes(first, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	holds("an image that was built again", first, []byte("rebuilt"))
	// A kill between the note's removal and the new note: what is there is not trusted.
	write(own, []byte("torn"))
	if err := os.Remove(filepath.Join(folder, installedName)); err != nil {
		t.Fatal(err)
	}
	holds("after a kill", first, []byte("rebuilt"))
	if left, err := os.ReadFile(second); err != nil || string(left) != "second" {
		t.Errorf("the image file was written: %q, %v", left, err)
	}
	if _, err := installDisk(folder, filepath.Join(dir, "absent")); err == nil {
		t.Error("an image that is not there was installed")
	}
}
