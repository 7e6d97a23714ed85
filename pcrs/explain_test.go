package pcrs

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestExplainNamesTheEvent(t *testing.T) {
	p, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	log := recordedLog(t, "ovmf-2025.02")
	measured := recordedValues(t, "ovmf-2025.02", SHA256)
	differences, err := Explain(p, SHA256, measured, &log)
	if err != nil {
		t.Fatal(err)
	}
	byRegister := map[Register]Difference{}
	for _, d := range differences {
		byRegister[d.Register] = d
	}
	// The recorded image had another kernel, disk and initrd, on the same firmware.
	for r, want := range map[Register]string{4: "unified kernel image", 5: "UEFI_GPT_DATA", 9: "section .initrd", 11: "section .linux"} {
		d, ok := byRegister[r]
		if !ok || d.ExpectedEvent == nil || d.MeasuredEvent == nil || !strings.Contains(d.ExpectedEvent.What(), want) {
			t.Errorf("%v: want an event with %q, got %v", r, want, d)
		}
	}
	for _, r := range []Register{2, 3, 6, 7, 12, 13, 14, 15} {
		if d, ok := byRegister[r]; ok {
			t.Errorf("%v is equal, but explained: %v", r, d)
		}
	}
}

// A log that was reordered, or got an event twice or one of another boot, is well-formed: its registers are others, and the event is named.
func TestExplainNamesTheMovedEvent(t *testing.T) {
	good := recordedLog(t, "ovmf-2025.02")
	p := Prediction{Log: good, Registers: []Register{2, 3, 4, 5, 6, 7, 9, 11}}
	four := func(l Log) (at []int) {
		for i, e := range l.Events {
			if e.Register == 4 {
				at = append(at, i)
			}
		}
		return at
	}
	foreign := extra(4, EvBootServicesApplication, "a program of another boot")
	foreign.Source = &Source{Kind: FromText, Name: "foreign"}
	for name, c := range map[string]struct {
		change    func(events []Event, at []int) []Event
		want, got int // which event of PCR 4, or of the log, is named
	}{
		"reordered": {func(events []Event, at []int) []Event {
			events[at[2]], events[at[3]] = events[at[3]], events[at[2]]
			return events
		}, 2, 2},
		"duplicated": {func(events []Event, at []int) []Event { return slices.Insert(events, at[1], events[at[1]]) }, 2, 2},
		"left out":   {func(events []Event, at []int) []Event { return slices.Delete(events, at[1], at[1]+1) }, 1, 1},
		"foreign":    {func(events []Event, at []int) []Event { return slices.Insert(events, at[2], foreign) }, 2, 2},
	} {
		changed := good
		changed.Events = c.change(slices.Clone(good.Events), four(good))
		measured, err := changed.Replay(SHA256)
		if err != nil {
			t.Fatal(err)
		}
		differences, err := Explain(p, SHA256, measured, &changed)
		if err != nil || len(differences) != 1 || differences[0].Register != 4 {
			t.Errorf("%s: got %v, %v; want one difference, in PCR 4", name, differences, err)
			continue
		}
		d := differences[0]
		if d.ExpectedEvent == nil || d.ExpectedEvent.What() != good.Of(4)[c.want].What() || d.MeasuredEvent == nil || d.MeasuredEvent.What() != changed.Of(4)[c.got].What() {
			t.Errorf("%s: got %v", name, d)
		}
	}
}

func TestExplainDoesNotBelieveAWrongLog(t *testing.T) {
	p, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	measured, err := p.Values(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	measured = maps.Clone(measured)
	measured[11] = make(Digest, 32)
	delete(measured, 9)
	log := recordedLog(t, "ovmf-2025.02")
	differences, err := Explain(p, SHA256, measured, &log)
	if err != nil || len(differences) != 2 {
		t.Fatalf("got %v, %v", differences, err)
	}
	for i, d := range differences {
		if d.ExpectedEvent != nil || !strings.Contains(d.String(), []string{"was not given", "does not replay"}[i]) {
			t.Errorf("got %v", d)
		}
	}
	if !strings.Contains(differences[0].String(), "got nothing") {
		t.Errorf("got %v", differences[0])
	}
	without, err := Explain(p, SHA256, measured, nil)
	if err != nil || len(without) != 2 || without[0].Note == "" {
		t.Errorf("without a log: %v, %v", without, err)
	}
}

func TestBankNames(t *testing.T) {
	for _, name := range []string{"sha1", "sha256", "sha384", "sha512"} {
		bank, err := ParseBank(name)
		if err != nil || bank.String() != name {
			t.Errorf("%s: %v, %v", name, bank, err)
		}
	}
	if _, err := ParseBank("sm3_256"); err == nil {
		t.Error("accepted an unknown bank")
	}
}

// An event log alone tells nothing of PCR 10, which the kernel extends.
func TestExplainWithoutPCR10(t *testing.T) {
	p := Prediction{Registers: []Register{10}, Log: Log{Events: []Event{{Register: 10, Type: EvSeparator, Digests: Digests{SHA256: make(Digest, 32)}}}}}
	if found, err := Explain(p, SHA256, Values{}, nil); err != nil || len(found) != 0 {
		t.Errorf("%v, %v", found, err)
	}
	if found, err := Explain(p, SHA256, Values{10: make(Digest, 32)}, nil); err != nil || len(found) != 1 {
		t.Errorf("of another value: %v, %v", found, err)
	}
}
