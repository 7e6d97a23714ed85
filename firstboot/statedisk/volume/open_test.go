package volume

import (
	"errors"
	"os"
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
		case errors.As(err, &c) && c.Code == "disk-tampered" && !errors.Is(err, statedisk.ErrMAC):
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
