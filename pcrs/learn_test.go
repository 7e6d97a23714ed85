package pcrs

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// learnedMachine is a machine of a made-up firmware with the shell, and the log that it would leave.
var (
	guidVolume = efi.MustGUID("7cb8bdc9-f8eb-4f34-aaea-3ee4af6516a1")
	guidUiApp  = efi.MustGUID("462caa21-7614-4503-836e-8ab6f4662331")
	guidShell  = efi.MustGUID("7c04a583-9e3e-4f1c-ad65-e05268d0b4d1")
)

func learnedMachine(t testing.TB) (Machine, Log) {
	t.Helper()
	m := Machine{
		Firmware: Firmware{
			SHA256: [32]byte{1}, version: append(efi.UTF16("a version"), 0, 0), drivers: DigestsOf([]byte("drivers"), PredictedBanks()...),
			applications: []firmware.Application{
				{Name: "UiApp", File: guidUiApp, Volume: guidVolume, Attributes: efi.OptionActive | efi.OptionHidden | efi.OptionApplication},
				{Name: "EFI Internal Shell", File: guidShell, Volume: guidVolume, Attributes: efi.OptionActive},
			},
			volume: guidVolume, files: map[efi.GUID]bool{guidUiApp: true, guidShell: true},
		},
		Vars:  vars(t, "testdata/ovmf-2025.02.vars.gz"),
		Shape: Shape{CPUs: 2, MemoryMiB: 1024, TPM: "crb", Disks: 1, BootSlot: 1},
	}
	digests := func(s string) Digests { return DigestsOf([]byte(s), PredictedBanks()...) }
	known := m
	known.Learned = &LearnedData{
		Schema: LearnedSchema, Origin: "a test", Firmware: m.Firmware.SHA256[:], Shape: m.Shape, EarlyVolume: digests("early"),
		ACPI: []Digests{digests("loader"), digests("tables"), DigestsOf(make([]byte, 64<<10), PredictedBanks()...)},
	}
	log := Log{Events: append(known.firmwareEvents(), known.platformEvents()...)}
	log.Events = append(append(log.Events, known.BootVariables()...), separator(0), separator(1))
	return m, log
}

func TestLearnThenPredict(t *testing.T) {
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseLearned(encoded)
	if err != nil {
		t.Fatal(err)
	}
	m.Learned = &again
	b := testBoot(t)
	b.Machine = m
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Registers) != 15 || len(p.Unpredicted) != 1 || p.Unpredicted[0].Register != 8 {
		t.Errorf("predicted %v, not %v", p.Registers, p.Unpredicted)
	}
	for _, bank := range PredictedBanks() {
		values, err := p.Values(bank)
		if err != nil {
			t.Fatal(err)
		}
		measured, err := log.Replay(bank)
		if err != nil {
			t.Fatal(err)
		}
		for r := range Register(2) {
			if !values[r].Equal(measured[r]) {
				t.Errorf("%v (%v): predicted %v, the log has %v", r, bank, values[r], measured[r])
			}
		}
	}
	origins := map[Origin]int{}
	for _, e := range append(p.Log.Of(0), p.Log.Of(1)...) {
		origins[e.Origin]++
	}
	// The early volume and two of the three ACPI blobs; the third is known to be zeros.
	if origins[Learned] != 3 || origins[Derived] != 9 {
		t.Errorf("origins %v, want 3 learned and 9 derived events in PCR 0 and 1", origins)
	}
}

func TestLearnRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Log)
		want   string
	}{
		"empty log":        {func(l *Log) { l.Events = nil }, "no firmware volume"},
		"another version":  {func(l *Log) { l.Events[0].Digests = DigestsOf(nil, PredictedBanks()...) }, "PCR 0: event 1"},
		"other drivers":    {func(l *Log) { l.Events[2].Digests = DigestsOf(nil, PredictedBanks()...) }, "PCR 0: event 3"},
		"a missing bank":   {func(l *Log) { l.Events[1].Digests = DigestsOf(nil, SHA256) }, "digests of 1 banks"},
		"a locality":       {func(l *Log) { l.Locality = 3 }, "locality 3"},
		"no separator":     {func(l *Log) { l.Events = l.Events[:len(l.Events)-1] }, "PCR 1"},
		"an unknown event": {func(l *Log) { l.Events = append(l.Events, action(1, "more")) }, "one event more"},
		"another entry": {func(l *Log) {
			i := slices.IndexFunc(l.Events, func(e Event) bool { return strings.Contains(e.What(), "Boot0001") })
			l.Events[i].Digests = DigestsOf([]byte("another disk"), PredictedBanks()...)
		}, "Boot0001"},
		"too many tables": {func(l *Log) {
			e := Event{Register: 1, Type: EvPlatformConfigFlags, Digests: DigestsOf(nil, PredictedBanks()...)}
			l.Events = append(l.Events, slices.Repeat([]Event{e}, maxACPI)...)
		}, "acpi"},
	} {
		m, log := learnedMachine(t)
		c.change(&log)
		if _, err := Learn("a test", m, log); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestPredictRefusesForeignLearnedData(t *testing.T) {
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Boot)
		want   string
	}{
		"another shape":    {func(b *Boot) { b.Machine.Shape.CPUs++ }, "processors: 3"},
		"another firmware": {func(b *Boot) { b.Machine.Firmware.SHA256[0]++ }, "firmware"},
	} {
		b := testBoot(t)
		b.Machine = m
		b.Machine.Vars = vars(t, "testdata/ovmf-2025.02.vars.gz")
		b.Machine.Learned = &l
		c.change(&b)
		if _, err := Predict(b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// TestBootEntriesSurviveABoot takes variables that a machine's first boot left: the entries in them are the derived ones.
func TestBootEntriesSurviveABoot(t *testing.T) {
	m, _ := learnedMachine(t)
	m.Vars = vars(t, "testdata/ovmf-2022.11-booted.vars.gz")
	plan, err := m.bootPlan(nil, nil)
	if err != nil || plan.earlier || plan.first != "" || plan.options != "" {
		t.Errorf("%+v, %v", plan, err)
	}
	log := recordedLog(t, "ovmf-2022.11-e1000e")
	var recorded []Event
	for _, e := range log.Of(1) {
		if e.Type == EvVariableBoot {
			recorded = append(recorded, e)
		}
	}
	for _, want := range [][]Event{m.BootVariables(), plan.events()} {
		if err := sameEvents(want, recorded); err != nil {
			t.Error(err)
		}
	}
}

func TestPolicyOnTheCommandLineLeavesPCR10Out(t *testing.T) {
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	m.Learned = &l
	b := testBoot(t)
	b.Machine = m
	for _, line := range []string{"quiet ima_policy=tcb", "ima_hash=sha512", "ima-policy=tcb", `"ima_policy=tcb"`} {
		p := &predictor{boot: b}
		p.notePolicy(line)
		if p.unpredicted(10) == "" {
			t.Errorf("%q: PCR 10 is predicted", line)
		}
	}
}

func FuzzParseLearned(f *testing.F) {
	m, log := learnedMachine(f)
	l, err := Learn("a test", m, log)
	if err != nil {
		f.Fatal(err)
	}
	encoded, err := l.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLearned(b)
		if err != nil {
			return
		}
		if again, err := l.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("accepted in another form: %v", err)
		}
	})
}
