package pcrs

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// slotTable is the table of a disk with two slots.
func slotTable(t *testing.T) (*gpt.Table, [2]slot.Partitions) {
	t.Helper()
	partitions, size := slot.Plan(slot.Sizes{ESP: 1, Root: 1, Tree: 1})
	primary, backup, err := gpt.Encode(size, slot.Disk(), partitions)
	if err != nil {
		t.Fatal(err)
	}
	raw := append(primary, make([]byte, size-int64(len(primary)))...)
	copy(raw[size-int64(len(backup)):], backup)
	table, err := gpt.Read(bytes.NewReader(raw), size)
	if err != nil {
		t.Fatal(err)
	}
	slots, err := slot.Find(table)
	if err != nil {
		t.Fatal(err)
	}
	return table, slots
}

// TestTrialMeasuresNothing has the variables of a machine that is about to try a slot: the prediction is the one without them.
func TestTrialMeasuresNothing(t *testing.T) {
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	table, slots := slotTable(t)
	predict := func(set func(v func(name string, data []byte))) (Values, error) {
		b := testBoot(t)
		b.Table, b.Machine = table, m
		b.Machine.Vars, b.Machine.Learned = vars(t, "testdata/ovmf-2025.02.vars.gz"), &l
		set(func(name string, data []byte) {
			b.Machine.Vars = b.Machine.Vars.With(efi.GlobalVariable, name, data)
		})
		p, err := Predict(b)
		if err != nil {
			return nil, err
		}
		return p.Values(SHA256)
	}
	plain, err := predict(func(func(string, []byte)) {})
	if err != nil {
		t.Fatal(err)
	}
	next := func(number uint16) []byte { return binary.LittleEndian.AppendUint16(nil, number) }
	for _, n := range slot.Both() {
		name, number := slot.BootEntry(n)
		got, err := predict(func(v func(string, []byte)) {
			v(name, slot.LoadOption(n, slots[n].ESP))
			v("BootNext", next(number))
		})
		if err != nil {
			t.Fatal(err)
		}
		for r, value := range plain {
			if !got[r].Equal(value) {
				t.Errorf("trial of slot %v: %v is another", n, r)
			}
		}
	}
	// BootOrder never has them, so of one that does it is not known what is where.
	name, number := slot.BootEntry(slot.B)
	got, err := predict(func(v func(string, []byte)) {
		v(name, slot.LoadOption(slot.B, slots[slot.B].ESP))
		v("BootOrder", next(number))
	})
	if err != nil || got[1] != nil || got[4] != nil || !got[11].Equal(plain[11]) {
		t.Errorf("a trial's entry in BootOrder: %v, %v", got, err)
	}
	// A disk without slots has no such entries.
	table = testTable(t)
	got, err = predict(func(v func(string, []byte)) {
		v(name, slot.LoadOption(slot.B, slots[slot.B].ESP))
		v("BootNext", next(number))
	})
	if err != nil || got[1] == nil || got[4] != nil {
		t.Errorf("a trial of a disk without slots: %v, %v", got, err)
	}
}

func TestFallback(t *testing.T) {
	b := testBoot(t)
	b.Fallback = true
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range p.Log.Of(4) {
		if e.Type == EvEFIAction {
			actions = append(actions, string(e.Data))
		}
	}
	if got := strings.Join(actions, ", "); got != callingOption+", Returning from EFI Application from Boot Option, "+callingOption {
		t.Errorf("PCR 4 has %s", got)
	}
}
