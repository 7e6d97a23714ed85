package image

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// OpenMedium reads an installation medium, which may be followed by anything, as Open reads a disk. It returns the configuration on it,
// too.
func OpenMedium(r io.ReaderAt, size int64) (*Disk, []byte, error) {
	d := &Disk{}
	config, err := d.openMedium(r, size)
	if err != nil {
		return nil, nil, fmt.Errorf("open medium: %w", err)
	}
	return d, config, nil
}

func (d *Disk) openMedium(r io.ReaderAt, size int64) ([]byte, error) {
	table, err := gpt.Read(r, gpt.SizeWithin(r, size))
	if err != nil {
		return nil, err
	}
	d.Table = table
	release, place, err := slot.FindMedium(table)
	if err != nil {
		return nil, err
	}
	d.sizes.Config = place.Size()
	if err := d.openRelease(r, release); err != nil {
		return nil, err
	}
	return slot.ReadConfig(r, place)
}

// Configured plans the same disk with a node's configuration on it. It fails for an image that takes its configuration from elsewhere.
func (d *Disk) Configured(config []byte) (*Layout, error) {
	if d.sizes.Config == 0 {
		return nil, errors.New("configure image: its nodes take their configuration from elsewhere; one of the profile baremetal has a partition for it")
	}
	l := &Layout{}
	l.partitions, l.size = slot.Plan(d.sizes)
	if err := l.copyFrom(d, slot.Disk(), len(l.partitions)-1, config); err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	return l, nil
}

// Medium plans a medium that installs this disk, with a node's configuration.
func (d *Disk) Medium(config []byte) (*Layout, error) {
	if d.sizes.Config == 0 {
		return nil, errors.New("plan medium: the image's nodes take their configuration from elsewhere; one of the profile baremetal has a partition for it")
	}
	l := &Layout{}
	l.partitions, l.size = slot.PlanMedium(d.sizes)
	if err := l.copyFrom(d, slot.MediumDisk(), len(l.partitions)-1, config); err != nil {
		return nil, fmt.Errorf("plan medium: %w", err)
	}
	return l, nil
}

// MediumTable is the table of a medium that installs this disk, which firmware measures when it starts that.
func (d *Disk) MediumTable() (*gpt.Table, error) {
	l, err := d.Medium(nil)
	if err != nil {
		return nil, err
	}
	return gpt.Read(l, l.size)
}

// copyFrom fills the first partitions with an opened disk's release, and that with number n with a configuration.
func (l *Layout) copyFrom(d *Disk, disk gpt.GUID, n int, config []byte) error {
	if int64(len(config)) > d.sizes.Config || bytes.IndexByte(config, 0) >= 0 {
		return fmt.Errorf("a configuration of %d bytes: at most %d are possible, and no zeros", len(config), d.sizes.Config)
	}
	l.cmdline, l.uki, l.rootHash = d.Cmdline, d.UKIBytes, d.RootHash
	filled := make([][]content, n+1)
	filled[0] = []content{{d.esp.Size(), d.esp}}
	filled[1] = []content{{d.Root.Size(), d.Root}}
	filled[2] = []content{{d.trees.Size(), d.trees}}
	filled[n] = []content{{int64(len(config)), bytes.NewReader(config)}}
	return l.addAreas(disk, filled)
}

// Digest is the SHA-256 of the whole planned disk.
func (l *Layout) Digest() (sum [sha256.Size]byte, err error) {
	digest := sha256.New()
	_, err = l.WriteTo(digest)
	return [sha256.Size]byte(digest.Sum(nil)), err
}

// Config is the partition with the node's configuration, the last one, of a planned disk that has one.
func (l *Layout) Config() gpt.Partition { return l.partitions[len(l.partitions)-1] }

// ESP is the first partition of a planned disk.
func (l *Layout) ESP() gpt.Partition { return l.partitions[0] }

// ReadAt reads the planned disk.
func (l *Layout) ReadAt(b []byte, at int64) (int, error) {
	if at < 0 || at >= l.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), l.size-at))
	clear(b[:n])
	for _, a := range l.areas {
		from, to := max(at, a.offset), min(at+int64(n), a.offset+a.size)
		if from >= to {
			continue
		}
		if _, err := io.ReadFull(io.NewSectionReader(a.data, from-a.offset, to-from), b[from-at:to-at]); err != nil {
			return 0, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}
