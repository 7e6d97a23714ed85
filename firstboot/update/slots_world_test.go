package update

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"os"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/explore/search"
)

// source is an honest one, or not.
func (m *slotsMachine) source(r published, lie string) Source {
	other := releases(m.t)[2]
	if bytes.Equal(r.raw, other.raw) {
		other = releases(m.t)[1]
	}
	if lie == "" {
		return memory{raw: r.raw}
	}
	p, raw := m.parts[slot.A], bytes.Clone(r.raw)
	behind := int64(bytes.LastIndex(raw[p.Tree.Offset():p.Tree.Offset()+p.Tree.Size()], []byte("verity\x00"))) + p.Tree.Offset()
	switch lie {
	case "another release", "a whole disk of another":
		raw = other.raw
	case "another's ESP": // with the hash tree that it has
		copy(raw[p.ESP.Offset():p.Root.Offset()], other.raw[p.ESP.Offset():])
		copy(raw[behind:p.Tree.Offset()+p.Tree.Size()], other.raw[behind:])
	case "a damaged root":
		raw[p.Root.Offset()+120*4096+5] ^= 1
	case "a damaged tree":
		raw[p.Tree.Offset()+5000] ^= 1
	}
	return memory{raw, func(_ int64, part []byte) ([]byte, error) {
		if lie == "a whole disk of another" && len(part) != len(raw) {
			return nil, ErrNoRanges
		}
		return part, nil
	}}
}

// torn reports whether a slot that could start holds anything but a whole release.
func (m *slotsMachine) torn(d *Disk, n slot.Slot) bool {
	c, err := d.Content(n)
	if err != nil {
		return false
	}
	for _, r := range releases(m.t) {
		if r.RootHash == c.Root {
			kernel, err := kernelOf(d, n)
			return err != nil || !bytes.Equal(kernel, m.kernels[c.Root]) || whole(d, n, r) != nil
		}
	}
	return true
}

// kernelOf returns a slot's kernel image, under either name.
func kernelOf(d *Disk, n slot.Slot) ([]byte, error) {
	esp, err := fat.Open(d.section(d.slots[n].ESP), d.slots[n].ESP.Size())
	if err != nil {
		return nil, err
	}
	image, err := esp.File(uki.Path)
	if err != nil {
		image, err = esp.File(uki.TrialPath)
	}
	return image, err
}

// look says what must not be after a request, cut off or not, and is.
func (m *slotsMachine) look(d *Disk) (wrong string) {
	if _, err := d.Default(); err != nil {
		return "nothing starts by itself"
	}
	for _, n := range slot.Both() {
		if m.torn(d, n) {
			return "a slot could start that does not hold a whole release"
		}
	}
	return ""
}

// lookAtFirmware does the same for what firmware is told. What is staged afterwards may empty that slot: firmware goes on with the other.
func (m *slotsMachine) lookAtFirmware(d *Disk, variables map[string][]byte) (wrong string) {
	if next, ok := variables["BootNext"]; ok {
		n := m.named(variables, next)
		if n < 0 {
			return "firmware is told to start an entry that is not there"
		}
		if _, err := d.Content(n); err != nil {
			return "firmware is told to start a slot on which nothing starts"
		}
	}
	return ""
}

// named is the slot of the entry that BootNext names, if that is there; else less than 0.
func (m *slotsMachine) named(variables map[string][]byte, next []byte) slot.Slot {
	for _, n := range slot.Both() {
		name, number := slot.BootEntry(n)
		if len(next) == 6 && binary.LittleEndian.Uint16(next[4:]) == number && bytes.HasSuffix(variables[name], slot.LoadOption(n, m.parts[n].ESP)) && len(variables[name]) > 4 {
			return n
		}
	}
	return -1
}

// start is what firmware does: BootNext once, if something starts there, else the slot that starts by itself.
func (m *slotsMachine) start(s *between, b *search.Boot) {
	d, _ := m.open(s.disk, s.Running)
	next, named := s.Variables["BootNext"]
	first, err := d.Default()
	if err != nil {
		b.Fail("nothing starts by itself")
	}
	s.Running, s.Variables = first, maps.Clone(s.Variables)
	delete(s.Variables, "BootNext")
	if named {
		if n := m.named(s.Variables, next); n >= 0 {
			if _, err := d.Content(n); err == nil {
				s.Running = n
			}
		}
	}
	b.Say("boot of slot %v", s.Running)
}

// copyBack writes the ESP of the slot that does not start by itself as it was when the machine was installed: empty, or its first release.
func (m *slotsMachine) copyBack(s *between) {
	d, _ := m.open(s.disk, s.Running)
	n := slot.B
	if first, err := d.Default(); err == nil {
		n = first.Other()
	}
	esp := make([]byte, d.slots[n].ESP.Size())
	if _, err := m.medium.ReadAt(esp, d.slots[n].ESP.Offset()); err != nil {
		m.t.Fatal(err)
	}
	s.disk = s.disk.Copy()
	if _, err := s.disk.WriteAt(esp, d.slots[n].ESP.Offset()); err != nil {
		m.t.Fatal(err)
	}
	s.Content = m.digest(s.disk)
}

// store has the kernel show variables. Those that are broken do not stay.
func (m *slotsMachine) store(variables map[string][]byte, broken string, running slot.Slot) {
	if err := errors.Join(os.RemoveAll(string(m.dir)), os.Mkdir(string(m.dir), 0o700)); err != nil {
		m.t.Fatal(err)
	}
	for name, content := range variables {
		if err := os.WriteFile(m.dir.path(name), content, 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	entry, _ := slot.BootEntry(running.Other())
	link := func(name, to string) {
		if err := errors.Join(os.RemoveAll(m.dir.path(name)), os.Symlink(to, m.dir.path(name))); err != nil {
			m.t.Fatal(err)
		}
	}
	switch broken {
	case "the entry":
		link(entry, "/dev/shm/none/none")
	case "BootNext":
		link("BootNext", "/dev/shm/none/none")
	case "anything, and says that it did":
		link(entry, os.DevNull)
	}
}

// load is what stays of them.
func (m *slotsMachine) load() map[string][]byte {
	variables := map[string][]byte{}
	names := []string{"BootNext"}
	for _, n := range slot.Both() {
		name, _ := slot.BootEntry(n)
		names = append(names, name)
	}
	for _, name := range names {
		if content, err := os.ReadFile(m.dir.path(name)); err == nil && len(content) > 0 {
			variables[name] = content
		}
	}
	return variables
}
