package volume

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/lukstest"
)

// Whoever has the disk's key can write a record B for any header. Each field's every hostile value is refused before libcryptsetup sees it.
func TestMutantsUnderTheRightKey(t *testing.T) {
	headers, err := os.ReadFile("../../luks2/testdata/header.bin")
	if err != nil {
		t.Fatal(err)
	}
	area := make([]byte, luks2.AreaSize)
	copy(area, headers)
	good, err := luks2.Decode(area)
	if err != nil {
		t.Fatal(err)
	}
	g := hullmark.DiskGrant{Key: hullmark.NewSecret([]byte("a key of thirty-two plain bytes!")), Generation: 1, Owner: hullmark.NodeID{7}}
	if g.UUID, err = hullmark.ParseUUID(good.UUID); err != nil {
		t.Fatal(err)
	}
	keys, err := statedisk.DeriveKeys(g.Key)
	if err != nil {
		t.Fatal(err)
	}
	ready := statedisk.Ready{Identity: statedisk.Identity{UUID: g.UUID, Generation: 1, Owner: g.Owner}}
	check := func(headers []byte) error {
		copy(area, headers)
		return checkReady(statedisk.EncodeB(ready, area, keys.Header), area, ready, g, keys)
	}
	if err := check(headers); err != nil {
		t.Fatalf("the good header: %v", err)
	}
	refused := 0
	for m := range lukstest.Fields(headers) {
		err := check(m.Header)
		var c *hullmark.Condition
		switch {
		case errors.As(err, &c) && c.Code == "disk-tampered" && strings.HasPrefix(c.Title, "decode LUKS2 header: "):
			refused++
		case err != nil:
			t.Errorf("%s, %.80s: %v", m.Field, m.Value, err)
		default:
			if err := lukstest.Equivalent(m.Header, headers); err != nil {
				t.Errorf("%s, %.80s: accepted, but %v", m.Field, m.Value, err)
			}
		}
	}
	t.Logf("%d refused", refused)
	if refused < 1000 {
		t.Errorf("only %d mutants were refused", refused)
	}
}

// A disk is let in at an epoch of the ticket's window, and is then at the ticket's own: an older copy of it is none of these.
func TestAdvance(t *testing.T) {
	dir := t.TempDir()
	if err := makeTree(dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		epoch hullmark.Epoch
		read  uint64 // by a legal one
		says  string // empty for those
	}{
		{epoch: hullmark.Epoch{Committed: 0, Issued: 1}},
		{epoch: hullmark.Epoch{Committed: 0, Issued: 1}, says: "0 ≤ epoch < 1, got 1"},
		{epoch: hullmark.Epoch{Committed: 2, Issued: 3}, says: "2 ≤ epoch < 3, got 1"},
		{epoch: hullmark.Epoch{Committed: 1, Issued: 3}, read: 1},
		{epoch: hullmark.Epoch{Unchecked: true}, read: 3},
		{epoch: hullmark.Epoch{Committed: 3, Issued: 4}, read: 3},
	} {
		opened, err := advanceIn(dir, c.epoch)
		if c.says == "" {
			if err != nil || opened.EpochRead != c.read {
				t.Errorf("%+v: read %d, %v; want %d", c.epoch, opened.EpochRead, err, c.read)
			}
			continue
		}
		var condition *hullmark.Condition
		if !errors.As(err, &condition) || condition.Code != "rollback-detected" || condition.Expected+", got "+condition.Got != c.says || condition.Next == "" {
			t.Errorf("%+v: %v, want %q", c.epoch, err, c.says)
		}
	}
}
