// Package inspect says what is in an image: what its boot measures on a machine, what it was made of, and what differs between two.
//
// It runs no program: whoever compares two images hands in what unpacks a root file system.
package inspect

import (
	"crypto/sha256"
	"io"
	"os"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Measure predicts what an image measures in a boot, and describes it by a measurement document. The image's content is checked
// against its own root hash first. What the boot says of the image itself is replaced.
func Measure(raw io.ReaderAt, size int64, boot pcrs.Boot, release measurements.Release) (measurements.Document, error) {
	disk, described, err := Open(raw, size)
	if err != nil {
		return measurements.Document{}, err
	}
	return measure(disk, described, boot, release)
}

func measure(disk *image.Disk, described measurements.Image, boot pcrs.Boot, release measurements.Release) (measurements.Document, error) {
	boot.UKI, boot.Table = disk.UKI, disk.Table
	if boot.Medium {
		table, err := disk.MediumTable()
		if err != nil {
			return measurements.Document{}, err
		}
		boot.Table = table
	}
	prediction, err := pcrs.Predict(boot)
	if err != nil {
		return measurements.Document{}, err
	}
	return measurements.New(described, release, boot.Machine, prediction)
}

// Open reads a raw disk of size bytes, checks its content against its own root hash, and names it.
func Open(raw io.ReaderAt, size int64) (*image.Disk, measurements.Image, error) {
	disk, err := image.Open(raw, size)
	if err != nil {
		return nil, measurements.Image{}, err
	}
	if err := disk.Verify(); err != nil {
		return nil, measurements.Image{}, err
	}
	digest, err := digestOf(io.NewSectionReader(raw, 0, size))
	if err != nil {
		return nil, measurements.Image{}, err
	}
	release, _ := disk.UKI.Section(".osrel")
	versions, err := hullmark.VersionsOf(release)
	if err != nil {
		return nil, measurements.Image{}, err
	}
	uki := sha256.Sum256(disk.UKIBytes)
	return disk, measurements.Image{
		ID:       hullmark.OSReleaseField(release, "IMAGE_ID"),
		Version:  hullmark.OSReleaseField(release, "IMAGE_VERSION"),
		Disk:     digest,
		RootHash: disk.RootHash[:],
		UKI:      uki[:],
		Stub:     disk.UKI.Stub.Version,
		Versions: versions,
	}, nil
}

// Digest is the SHA-256 of a file.
func Digest(file string) (pcrs.Digest, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return digestOf(f)
}

func digestOf(r io.Reader) (pcrs.Digest, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// openFile opens the file of a raw disk; the caller closes it.
func openFile(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// MeasureFile is Measure of the raw disk in a file.
func MeasureFile(path string, boot pcrs.Boot, release measurements.Release) (measurements.Document, error) {
	raw, size, err := openFile(path)
	if err != nil {
		return measurements.Document{}, err
	}
	defer raw.Close()
	return Measure(raw, size, boot, release)
}
