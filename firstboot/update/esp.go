package update

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/image/verity"
)

// fetchESP makes the ESP of what both slots have and of what the source gives. Which blocks differ is the source's word, by the hash tree
// behind that of the root; whether all is right, the digest of the disk says.
func (s *stager) fetchESP(f *fetcher) error {
	from := s.slots[slot.A]
	at := from.Tree.Offset() + int64(len(s.tree))
	super, err := verity.ReadSuperblock(io.NewSectionReader(f, at, verity.BlockSize))
	if err == nil && super.DataSize > s.to.ESP.Size() {
		err = fmt.Errorf("an ESP of %d bytes does not fit the slot", super.DataSize)
	}
	if err != nil {
		return judge(fmt.Errorf("hash tree of the ESP: %w", err))
	}
	tree, err := f.fetch(at, verity.Size(super.DataSize))
	if err != nil {
		return err
	}
	top, err := verity.Top(bytes.NewReader(tree))
	if err != nil {
		return judge(err)
	}
	esp := make(room, super.DataSize)
	b := &blocks{place: esp, what: "ESP", at: from.ESP.Offset()}
	if b.super, b.leaves, err = verity.Leaves(tree, top); err != nil {
		return judge(err)
	}
	ofRunning, before := s.section(s.slots[s.running].ESP), io.NewSectionReader(s.dev, s.to.ESP.Offset(), super.DataSize)
	if _, err := ofRunning.ReadAt(esp, 0); err != nil {
		return err
	}
	if err := s.fill(b, func(do func(*fetcher) error) error { return do(f) }, &s.fetched.Copied, before); err != nil {
		return err
	}
	s.esp = esp
	return s.checkDisk()
}

// room is memory that is filled in any order.
type room []byte

func (r room) ReadAt(b []byte, at int64) (int, error)  { return bytes.NewReader(r).ReadAt(b, at) }
func (r room) WriteAt(b []byte, at int64) (int, error) { return copy(r[at:], b), nil }

// checkDisk computes the digest of the disk that the release makes, of which every byte is known now.
func (s *stager) checkDisk() error {
	espTree, err := slot.ESPTree(s.esp)
	if err != nil {
		return err
	}
	from, at, digest := s.slots[slot.A], int64(0), sha256.New()
	for _, part := range []struct {
		at, size int64
		r        io.Reader
	}{
		{0, int64(len(s.primary)), bytes.NewReader(s.primary)},
		{from.ESP.Offset(), int64(len(s.esp)), bytes.NewReader(s.esp)},
		{from.Root.Offset(), s.super.DataSize, s.section(s.to.Root)},
		{from.Tree.Offset(), int64(len(s.tree)), bytes.NewReader(s.tree)},
		{from.Tree.Offset() + int64(len(s.tree)), int64(len(espTree)), bytes.NewReader(espTree)},
		{s.size - int64(len(s.backup)), int64(len(s.backup)), bytes.NewReader(s.backup)},
	} {
		if _, err := io.CopyN(digest, zeros{}, part.at-at); err != nil {
			return err
		}
		if _, err := io.CopyN(digest, part.r, part.size); err != nil {
			return err
		}
		at = part.at + part.size
	}
	if got := digest.Sum(nil); !bytes.Equal(got, s.release.Disk[:]) {
		return foreign{fmt.Errorf("the disk that it makes has digest %x, the release %x: its ESP or its table is another's", got, s.release.Disk)}
	}
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// padded is content that zeros follow.
type padded []byte

func (p padded) ReadAt(b []byte, at int64) (int, error) {
	n := 0
	if at < int64(len(p)) {
		n = copy(b, p[at:])
	}
	clear(b[n:])
	return len(b), nil
}

// writeESP writes the ESP, with the kernel image under the name for trials. Its first sector comes last: without it there is no volume.
func (s *stager) writeESP() error {
	size := s.to.ESP.Size()
	volume, err := fat.Open(padded(s.esp), size)
	if err != nil {
		return err
	}
	at, sector, err := volume.Renamed(uki.Path, trialName)
	if err != nil {
		return err
	}
	copy(s.esp[at:], sector)
	esp := io.NewSectionReader(padded(s.esp), 0, size)
	write, read := make([]byte, piece), make([]byte, piece)
	each := func(do func(part []byte, at int64) error) error {
		for n := int64(gpt.SectorSize); n < size; {
			part := write[:min(n-n%piece+piece, size)-n]
			if _, err := esp.ReadAt(part, n); err != nil {
				return err
			}
			if err := do(part, s.to.ESP.Offset()+n); err != nil {
				return err
			}
			n += int64(len(part))
		}
		return nil
	}
	if err := each(s.write); err != nil {
		return err
	}
	if err := s.dev.Sync(); err != nil {
		return err
	}
	err = each(func(part []byte, at int64) error {
		if _, err := s.dev.ReadAt(read[:len(part)], at); err != nil {
			return err
		}
		if !bytes.Equal(read[:len(part)], part) {
			return errors.New("the ESP does not hold what was written")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.write(s.esp[:gpt.SectorSize], s.to.ESP.Offset()); err != nil {
		return err
	}
	return s.dev.Sync()
}
