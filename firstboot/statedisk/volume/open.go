package volume

import (
	"errors"
	"fmt"
	"os"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// activateChecked opens a ready disk from a copy of its header that was
// authenticated and decoded before libcryptsetup sees it, and compares what
// the kernel made of it with the record. What the host changes on the disk
// after the copy was taken has no effect on what is opened.
func (w Workspace) activateChecked(path string, g hullmark.DiskGrant, keys statedisk.Keys) error {
	area, ready, err := readReady(path)
	if err != nil {
		return err
	}
	if err := checkReady(ready.b, area, ready.Ready, g, keys); err != nil {
		return err
	}
	if err := w.newHeader(); err != nil {
		return fmt.Errorf("open state disk: header copy: %w", err)
	}
	if err := writeFileAt(w.header(), area); err != nil {
		return fmt.Errorf("open state disk: header copy: %w", err)
	}
	if err := w.activate(path, keys, 0); err != nil {
		return fmt.Errorf("open state disk: %w", err)
	}
	live, err := liveGeometry(path)
	if err != nil {
		return tampered(err)
	}
	if live != ready.Geometry {
		return tampered(fmt.Errorf("layout: want %+v, got %+v", ready.Geometry, live))
	}
	return nil
}

// foundRecord is record B as decoded and as bytes.
type foundRecord struct {
	statedisk.Ready
	b []byte
}

// readReady takes the one copy of everything that is checked and used.
func readReady(path string) (area []byte, found foundRecord, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, foundRecord{}, fmt.Errorf("open state disk: %w", err)
	}
	defer f.Close()
	area = make([]byte, luks2.AreaSize)
	found.b = make([]byte, statedisk.RecordSize)
	if _, err := f.ReadAt(area, 0); err != nil {
		return nil, foundRecord{}, fmt.Errorf("open state disk: %w", err)
	}
	if _, err := f.ReadAt(found.b, statedisk.OffsetB); err != nil {
		return nil, foundRecord{}, fmt.Errorf("open state disk: %w", err)
	}
	found.Ready, err = statedisk.DecodeB(found.b)
	return area, found, err
}

func checkReady(b, area []byte, r statedisk.Ready, g hullmark.DiskGrant, keys statedisk.Keys) error {
	want := statedisk.Identity{UUID: g.UUID, Generation: g.Generation, Owner: g.Owner}
	if r.Identity != want {
		return &hullmark.Condition{
			Code: "disk-not-granted", Step: step, Title: "the state disk is not the one that the ticket is for",
			Expected: describe(want), Got: describe(r.Identity), Next: "attach the node's own disk",
		}
	}
	if err := statedisk.VerifyB(b, area, keys.Header); err != nil {
		return tampered(err)
	}
	header, err := luks2.Decode(area)
	if err != nil {
		return tampered(err)
	}
	if header.UUID != g.UUID.String() {
		return tampered(fmt.Errorf("LUKS header names disk %s, record B names %s", header.UUID, g.UUID))
	}
	return nil
}

func describe(id statedisk.Identity) string {
	return fmt.Sprintf("disk %s, generation %d, owner %s", id.UUID, id.Generation, id.Owner)
}

func tampered(err error) error {
	condition := &hullmark.Condition{
		Code: "disk-tampered", Step: step, Title: err.Error(),
		Next: "do not trust this disk: someone changed it outside of the node; attach the right one, or reset the node",
	}
	if errors.Is(err, statedisk.ErrMAC) {
		condition.Title = "the state disk's records were changed, or were written under another cluster's key"
	}
	return condition
}

func writeFileAt(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Close())
}
