package image

import (
	"bytes"
	"strings"
	"testing"
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

// Parts of one release do not pass for another's.
func TestPartsOfAnotherRelease(t *testing.T) {
	l, disk := release(t, 1)
	_, others := release(t, 2)
	for name, c := range map[string]struct {
		parts []int
		want  string
	}{
		"ESP":               {[]int{0}, "not that of root hash"},
		"root":              {[]int{1}, "root hash: want "},
		"hash tree":         {[]int{2}, "not that of root hash"},
		"root and its tree": {[]int{1, 2}, "not that of root hash"},
		"ESP and hash tree": {[]int{0, 2}, "root hash: want "},
	} {
		mixed := bytes.Clone(disk)
		for _, i := range c.parts {
			p := l.partitions[i]
			copy(mixed[p.Offset():p.Offset()+p.Size()], others[p.Offset():])
		}
		if err := verify(mixed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("another release's %s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
