package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark/image/disk"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// A machine's own disk, and what it was installed from.
const (
	diskName      = "disk.raw"
	installedName = "disk.json"
)

// installed identifies the image that a machine's disk was installed from, without reading all of it.
type installed struct {
	Image   string    `json:"image"`
	Size    int64     `json:"size"`
	Changed time.Time `json:"changed"`
}

// installDisk gives a machine a disk of its own with the image's content, and returns its path. A machine that has one of that image
// keeps it, with what was written to it since; the disk of another image, or of an earlier state of the file, is replaced. Without an
// image the machine keeps the disk that it has; without one of these it has none, and the path is empty.
func installDisk(dir, image string) (string, error) {
	own, note := filepath.Join(dir, diskName), filepath.Join(dir, installedName)
	if image == "" {
		if _, err := os.Stat(own); errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return own, nil
	}
	info, err := os.Stat(image)
	if err != nil {
		return "", fmt.Errorf("vm: image: %w", err)
	}
	wanted, err := json.Marshal(installed{image, info.Size(), info.ModTime().UTC()})
	if err != nil {
		return "", err
	}
	had, err := atomicfile.Read(note, 64<<10)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("vm: disk: %w", err)
	}
	if _, err := os.Stat(own); err == nil && bytes.Equal(had, wanted) {
		return own, nil
	}
	// The note goes first: a disk without one is installed again.
	if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("vm: disk: %w", err)
	}
	if err := copyDisk(own, image, info.Size()); err != nil {
		return "", fmt.Errorf("vm: disk: %w", err)
	}
	return own, atomicfile.Write(note, wanted, 0o600)
}

// copyDisk copies a raw disk, with holes where it is zero.
func copyDisk(to, from string, size int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return atomicfile.Stream(to, atomicfile.Options{Mode: 0o600}, func(f *os.File) error {
		_, err := io.CopyN(disk.Sparse(f), in, size)
		return errors.Join(err, f.Truncate(size))
	})
}
