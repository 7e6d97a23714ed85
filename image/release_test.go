package image

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/gpt"
)

// release is a whole disk whose root ends in this byte.
func release(t *testing.T, last byte) (*Layout, []byte) {
	t.Helper()
	p, root := parts(t), erofs(t)
	root[len(root)-1] = last
	p.Root = bytes.NewReader(root)
	l, disk := plan(t, p)
	if err := verify(disk); err != nil {
		t.Fatalf("a whole release: %v", err)
	}
	return l, disk
}

func verify(disk []byte) error {
	d, err := open(disk)
	if err != nil {
		return err
	}
	return d.Verify()
}

// Parts of one release do not pass for another's, where the table keeps the GUIDs of their places or has their own.
func TestPartsOfAnotherRelease(t *testing.T) {
	l, disk := release(t, 1)
	other, others := release(t, 2)
	const table, data = "not those of root hash", "root hash: want "
	for name, c := range map[string]struct {
		parts     []int
		kept, own string // what is said
	}{
		"ESP":               {[]int{0}, table, table},
		"root":              {[]int{1}, data, table},
		"hash tree":         {[]int{2}, data, table},
		"root and its tree": {[]int{1, 2}, data, table},
	} {
		mixed, partitions := bytes.Clone(disk), slices.Clone(l.partitions)
		for _, i := range c.parts {
			p := partitions[i]
			copy(mixed[p.Offset():p.Offset()+p.Size()], others[p.Offset():])
			partitions[i].GUID = other.partitions[i].GUID
		}
		if err := verify(mixed); err == nil || !strings.Contains(err.Error(), c.kept) {
			t.Errorf("another release's %s: got %v, want an error with %q", name, err, c.kept)
		}
		primary, backup, err := gpt.Encode(l.size, gpt.GUID{1}, partitions)
		if err != nil {
			t.Fatal(err)
		}
		copy(mixed, primary)
		copy(mixed[l.size-gpt.BackupSize:], backup)
		if err := verify(mixed); err == nil || !strings.Contains(err.Error(), c.own) {
			t.Errorf("another release's %s under its own GUID: got %v, want an error with %q", name, err, c.own)
		}
	}
}
