package slot

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/gpt"
)

// A medium is what a machine is installed from: it holds one release, as a slot does, and the configuration of the node that the machine
// is to be. It has GUIDs of its own, by which the disk that firmware started is told from the one that was installed: its boot differs
// from theirs in the table alone, so in PCR 5.

// MediumDisk is the GUID of every medium.
func MediumDisk() gpt.GUID { return fixed("medium") }

// PlanMedium places a medium's partitions, in their order, and returns its size in bytes. Sizes.Config is not asked for: a medium always
// has a configuration.
func PlanMedium(sizes Sizes) (partitions []gpt.Partition, size int64) {
	d := plan{end: alignment}
	p := of(A)
	for what, part := range map[string]*gpt.Partition{"esp": &p.ESP, "root": &p.Root, "root-verity": &p.Tree} {
		part.GUID, part.Name = fixed("medium "+what), "hullmark-medium-"+what
	}
	d.place(p, sizes)
	d.add(gpt.Partition{Type: gpt.TypeLinux, GUID: fixed("medium config"), Name: "hullmark-medium-config"}, configSize)
	return d.partitions, d.end + alignment
}

// mediumCount is how many partitions a medium has.
const mediumCount = 4

// FindMedium returns the partitions of a medium, and fails for any other disk.
func FindMedium(t *gpt.Table) (release Partitions, config gpt.Partition, err error) {
	p := t.Partitions
	if len(p) != mediumCount {
		return release, config, fmt.Errorf("%d partitions, want the %d of an installation medium", len(p), mediumCount)
	}
	release = Partitions{p[0], p[1], p[2]}
	planned, _ := PlanMedium(release.sizes())
	return release, p[3], equal(t, planned, MediumDisk())
}

// ReadConfig returns what a partition holds before its zeros. Behind the first of those there may be nothing else.
func ReadConfig(r io.ReaderAt, p gpt.Partition) ([]byte, error) {
	all := make([]byte, min(p.Size(), configSize))
	if _, err := io.ReadFull(io.NewSectionReader(r, p.Offset(), p.Size()), all); err != nil {
		return nil, fmt.Errorf("partition %s: %w", p.Name, err)
	}
	config, rest, _ := bytes.Cut(all, []byte{0})
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return nil, errors.New("partition " + p.Name + ": want a configuration, and nothing but zeros behind it")
	}
	return config, nil
}
