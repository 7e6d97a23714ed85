//go:build vm

package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/measurements"
)

// twoSlots is a disk with a release in each slot, whose boots were predicted before: that in slot A starts by itself.
type twoSlots struct {
	bench
	disk      string
	documents [2]measurements.Document
	fallback  measurements.Document // of slot A's, where slot B did not start
	slots     [2]slot.Partitions
	machine   map[string]any
}

// newTwoSlots makes probes of two releases and measures each by itself.
func newTwoSlots(t *testing.T) *twoSlots {
	b := newBench(t)
	s := &twoSlots{bench: b, disk: filepath.Join(t.TempDir(), "slots.raw"), machine: map[string]any{"schema": "hullmark.machine/v1", "tools": b.tools(), "cpus": 1, "memoryMiB": 512, "stateDisk": "0"}}
	file := filepath.Join(t.TempDir(), "machine.json")
	text, err := json.Marshal(s.machine)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, 0, "learn", "--machine", file)
	var raw [2][]byte
	for _, n := range slot.Both() {
		parts := b.probeParts(t)
		parts.Cmdline += " hullmark.release=" + n.String()
		i := probe.New(t, parts)
		s.documents[n], raw[n] = b.measure(t, i.Path, file), contentOf(t, i.Path)
		if n == slot.A {
			s.fallback = b.measure(t, i.Path, file, "--fallback")
		}
	}
	if s.slots, err = slot.Find(tableOf(t, raw[0])); err != nil {
		t.Fatal(err)
	}
	other, err := slot.Find(tableOf(t, raw[1]))
	if err != nil || other != s.slots {
		t.Fatalf("the two releases have other slots: %+v, %+v, %v", s.slots, other, err)
	}
	a, second := s.slots[slot.A].ESP, s.slots[slot.B].ESP
	copy(raw[0][second.Offset():], raw[1][a.Offset():][:a.Size()])
	rename(t, raw[0][second.Offset():][:second.Size()], uki.Path, uki.TrialPath)
	writeDisk(t, s.disk, raw[0])
	return s
}

// rename gives the kernel image of an ESP its other name, by the one sector that this changes.
func rename(t *testing.T, esp []byte, from, to string) {
	t.Helper()
	f, err := fat.Open(bytes.NewReader(esp), int64(len(esp)))
	if err != nil {
		t.Fatal(err)
	}
	at, sector, err := f.Renamed(from, filepath.Base(to))
	if err != nil {
		t.Fatal(err)
	}
	copy(esp[at:], sector)
}

// change changes bytes of a disk.
func change(t *testing.T, disk string, do func(raw []byte)) {
	t.Helper()
	raw := contentOf(t, disk)
	do(raw)
	writeDisk(t, disk, raw)
}

// variables is a file of variables with which firmware starts the trial of a slot next.
func (s *twoSlots) variables(t *testing.T, of slot.Slot) string {
	t.Helper()
	name, number := slot.BootEntry(of)
	file := filepath.Join(t.TempDir(), "trial.fd")
	content := probe.AddVariables(t, contentOf(t, s.ovmf("OVMF_VARS_4M.fd")), map[string][]byte{
		name: slot.LoadOption(of, s.slots[of].ESP), "BootNext": binary.LittleEndian.AppendUint16(nil, number),
	})
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// boots boots the disk and holds what is measured to what was predicted of one of the releases.
func (s *twoSlots) boots(t *testing.T, what string, c vm.Config, of slot.Slot) probe.Result {
	t.Helper()
	shape := s.shaped(t, s.machine)
	shape.Dir, shape.Firmware.Vars = c.Dir, c.Firmware.Vars
	measured := probe.Image{Path: s.disk}.Boot(t, shape)
	if want := "hullmark.release=" + of.String(); !strings.Contains(measured.Cmdline, want) {
		t.Fatalf("%s: %q started, want %s", what, measured.Cmdline, want)
	}
	s.compare(t, s.documents[of], measured)
	if t.Failed() {
		t.Fatalf("%s: not as predicted", what)
	}
	return measured
}

// TestVMSlots tries, falls back, commits and rolls back in a machine of the emulator. Whatever the way, a release measures what was
// predicted of it alone: neither the slot, nor a trial, nor who starts by itself is in any register.
func TestVMSlots(t *testing.T) {
	t.Parallel()
	s := newTwoSlots(t)
	c := vm.Config{Dir: filepath.Join(t.TempDir(), "machine")}
	c.Firmware.Vars = s.variables(t, slot.B)
	s.boots(t, "trial of B by BootNext", c, slot.B)
	s.boots(t, "the boot after the trial", c, slot.A)

	own := filepath.Join(c.Dir, "disk.raw")
	esp := func(raw []byte, n slot.Slot) []byte { return raw[s.slots[n].ESP.Offset():][:s.slots[n].ESP.Size()] }
	change(t, own, func(raw []byte) { rename(t, esp(raw, slot.B), uki.TrialPath, uki.Path) })
	s.boots(t, "a commit that was cut in the middle", c, slot.A)
	change(t, own, func(raw []byte) { rename(t, esp(raw, slot.A), uki.Path, uki.TrialPath) })
	s.boots(t, "B, committed", c, slot.B)

	// The same machine tries what is in slot A, from B: the variables are another file's, as the machine's own are at another place.
	c.Firmware.Vars = s.variables(t, slot.A)
	s.boots(t, "trial of A by BootNext", c, slot.A)
	s.boots(t, "the boot after the trial", c, slot.B)
}

// TestVMSlotThatDoesNotStart has firmware fall back in the same boot, where the slot on trial is torn.
func TestVMSlotThatDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newTwoSlots(t)
	change(t, s.disk, func(raw []byte) { clear(raw[s.slots[slot.B].ESP.Offset():][:512]) })
	shape := s.shaped(t, s.machine)
	shape.Dir, shape.Firmware.Vars = filepath.Join(t.TempDir(), "machine"), s.variables(t, slot.B)
	measured := probe.Image{Path: s.disk}.Boot(t, shape)
	if !strings.Contains(measured.Cmdline, "hullmark.release=a") {
		t.Fatalf("%q started", measured.Cmdline)
	}
	s.compare(t, s.fallback, measured)
	s.boots(t, "the boot after it", shape, slot.A)
}
