package pcrs

import (
	"slices"
	"strings"
	"testing"
)

// TestPredictFromALog takes a machine from the log of its boot: another image's boot has the same values as if firmware and variables
// were known.
func TestPredictFromALog(t *testing.T) {
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	known := testBoot(t)
	m.Learned = &l
	known.Machine = m
	want, err := Predict(known)
	if err != nil {
		t.Fatal(err)
	}
	logged := want.Log // The log of one boot is that of any, as far as it is taken.
	logged.Format, logged.Banks = FormatAgile, PredictedBanks()
	b := testBoot(t)
	b.Machine, b.Log = Machine{}, &logged
	got, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, bank := range PredictedBanks() {
		a, err := want.Values(bank)
		if err != nil {
			t.Fatal(err)
		}
		b, err := got.Values(bank)
		if err != nil {
			t.Fatal(err)
		}
		if len(a) != len(b) {
			t.Errorf("%v: registers %v, want %v", bank, got.Registers, want.Registers)
		}
		for r := range a {
			if !a[r].Equal(b[r]) {
				t.Errorf("%v of %v: %v, want %v", r, bank, b[r], a[r])
			}
		}
	}
	for _, e := range got.Log.Events {
		if (e.Origin == Learned) != slices.Contains(fromFirmware, e.Register) {
			t.Errorf("%v: %s is %s", e.Register, e.What(), e.Origin)
		}
	}
}

// TestRealFirmwareLogs takes recorded boots of QEMU, with and without Secure Boot.
func TestRealFirmwareLogs(t *testing.T) {
	for name, state := range map[string]bool{"ovmf-2025.02": false, "ovmf-2025.02-secureboot": true} {
		log := recordedLog(t, name)
		b := testBoot(t)
		b.Machine, b.Log = Machine{}, &log
		p, err := Predict(b)
		if state && (err == nil || !strings.Contains(err.Error(), "not signed")) {
			t.Errorf("%s: an unsigned image starts: %v", name, err)
		}
		if state {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		values, err := p.Values(SHA256)
		if err != nil {
			t.Fatal(err)
		}
		measured := recordedValues(t, name, SHA256)
		for _, r := range fromFirmware {
			if !values[r].Equal(measured[r]) {
				t.Errorf("%s: %v is %v, the TPM had %v", name, r, values[r], measured[r])
			}
		}
	}
}

func TestFirmwareEventsRefuses(t *testing.T) {
	good := recordedLog(t, "ovmf-2025.02")
	for want, change := range map[string]func(*Log){
		"a TPM's":           func(l *Log) { l.Format = FormatCCEL },
		"digests of sha256": func(l *Log) { l.Banks = []Bank{SHA384} },
		"locality 3":        func(l *Log) { l.Locality = 3 },
		"does not begin with": func(l *Log) {
			l.Events = slices.DeleteFunc(l.Events, func(e Event) bool { return e.Register == 4 && e.Type == EvEFIAction })
		},
		"where programs are": func(l *Log) { l.Events = append(l.Events, Event{Register: 4, Type: EvGPT}) },
	} {
		log := good
		log.Events = slices.Clone(good.Events)
		change(&log)
		if _, _, err := FirmwareEvents(log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// Of an event whose data is not what was hashed, a bank that the log lacks cannot be known: the register stays open, and with it PCR 10.
	log := good
	log.Events = slices.Clone(good.Events)
	for i, e := range log.Events {
		log.Events[i].Digests = Digests{SHA256: e.Digests[SHA256]}
	}
	_, open, err := FirmwareEvents(log)
	if err != nil || !slices.ContainsFunc(open, func(u Unpredicted) bool { return u.Register == 0 && strings.Contains(u.Reason, "no sha384 digest") }) {
		t.Errorf("%+v, %v", open, err)
	}
	b := testBoot(t)
	b.Machine, b.Log = Machine{}, &log
	p, err := Predict(b)
	if err != nil || slices.Contains(p.Registers, 0) || slices.Contains(p.Registers, 10) || !slices.Contains(p.Registers, 7) || !slices.Contains(p.Registers, 4) {
		t.Errorf("%v, %v", p.Registers, err)
	}
}
