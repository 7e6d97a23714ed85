package explain

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/internal/imagetest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// pageOf is the page of a machine whose log holds these events.
func pageOf(t *testing.T, document measurements.Document, log *pcrs.Log) page {
	t.Helper()
	measured, err := log.Replay(pcrs.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pcrs.Explain(document.Prediction(), pcrs.SHA256, measured, log)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPage(document, compareRegisters(document, pcrs.SHA256, Boot{Measured: measured, Log: log}, found), log)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// samplePage is the fixture's document, and a log that holds just what it predicts.
func samplePage(t *testing.T) (measurements.Document, *pcrs.Log) {
	t.Helper()
	disk := imagetest.Small(t, "257")
	opened, err := image.Open(bytes.NewReader(disk), int64(len(disk)))
	if err != nil {
		t.Fatal(err)
	}
	boot := pcrs.Boot{Machine: machine(t), UKI: opened.UKI, Table: opened.Table}
	prediction, err := pcrs.Predict(boot)
	if err != nil {
		t.Fatal(err)
	}
	document, err := measurements.New(measurements.Image{
		ID: "node", Version: "1", Disk: boot.Machine.Vars.SHA256[:], RootHash: opened.RootHash[:], UKI: boot.Machine.Vars.SHA256[:], Stub: opened.UKI.Stub.Version,
	}, measurements.Release{}, boot.Machine, prediction)
	if err != nil {
		t.Fatal(err)
	}
	log := document.Prediction().Log
	return document, &log
}

// machine has firmware without keys.
func machine(t *testing.T) (m pcrs.Machine) {
	t.Helper()
	code, err := os.ReadFile(imagetest.Firmware(t))
	if err != nil {
		t.Fatal(err)
	}
	if m.Firmware, err = pcrs.OpenFirmware(code); err != nil {
		t.Fatal(err)
	}
	if m.Vars, err = firmware.OpenVars(imagetest.Vars(t)); err != nil {
		t.Fatal(err)
	}
	return m
}

// inserted is the log with events of PCR 11 before its last one.
func inserted(log *pcrs.Log, events ...pcrs.Event) *pcrs.Log {
	last := 0
	for i, e := range log.Events {
		if e.Register == 11 {
			last = i
		}
	}
	return &pcrs.Log{Events: slices.Insert(slices.Clone(log.Events), last, events...)}
}

func event11(what string) pcrs.Event {
	return pcrs.Event{Register: 11, Type: pcrs.EvIPL, Source: &pcrs.Source{Kind: pcrs.FromText, Name: what}, Digests: pcrs.DigestsOf([]byte(what), pcrs.PredictedBanks()...)}
}

func TestPageShowsAllRegisters(t *testing.T) {
	document, log := samplePage(t)
	p := pageOf(t, document, log)
	if len(p.Registers) != 16 || p.Verdict != equal || len(p.Causes) != 0 {
		t.Errorf("%d registers, %s, %d causes", len(p.Registers), p.Verdict, len(p.Causes))
	}
	for _, r := range p.Registers {
		if r.Open {
			t.Errorf("PCR %d is open, and equal", r.Number)
		}
	}
	p = pageOf(t, document, inserted(log, event11("extra")))
	if r := p.Registers[11]; len(p.Causes) != 1 || !r.Open || r.State != differs || r.Because == "" {
		t.Errorf("PCR 11 with one more event: %+v", r)
	}
	for i, r := range p.Registers {
		if r.Number != i || r.State == "" || r.Role == "" {
			t.Errorf("register %d is %+v", i, r)
		}
	}
}

// Of a long register the page shows what is around the first departure, and says how much it leaves out.
func TestPageIsBounded(t *testing.T) {
	document, log := samplePage(t)
	own := len(log.Of(11))
	var many []pcrs.Event
	for i := range 3000 {
		many = append(many, event11(fmt.Sprint(i, strings.Repeat("x", 10_000))))
	}
	long := inserted(log, many...)
	p := pageOf(t, document, long)
	r := p.Registers[11]
	if len(r.Steps) != maxSteps || r.Before+r.After+maxSteps != own+3000 {
		t.Errorf("%d events shown, %d before and %d after", len(r.Steps), r.Before, r.After)
	}
	if !slices.ContainsFunc(r.Steps, func(s pageStep) bool { return s.First }) {
		t.Error("the first departure is left out")
	}
	var out bytes.Buffer
	if err := pageLayout.Execute(&out, p); err != nil || out.Len() > 256<<10 {
		t.Errorf("a page of %d bytes (%v)", out.Len(), err)
	}
	if !strings.Contains(out.String(), "later events are left out") {
		t.Error("the page does not say that events are left out")
	}
}

// Text of a log is shown as text, whatever it says.
func TestPageEscapes(t *testing.T) {
	document, log := samplePage(t)
	hostile := "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>{{.}}\x1b[2J\u202e\u200b\x00\n'\"`"
	document.Image.ID = hostile
	p := pageOf(t, document, inserted(log, event11(hostile), pcrs.Event{
		Register: 12, Type: pcrs.EvIPL, Source: &pcrs.Source{Kind: pcrs.FromText, Name: hostile}, Data: []byte(hostile), Digests: pcrs.DigestsOf(nil, pcrs.PredictedBanks()...),
	}))
	var out bytes.Buffer
	if err := pageLayout.Execute(&out, p); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "<img", "</style></title>", "\x1b", "\u202e", "\u200b", "\x00"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("the page has %q in it", bad)
		}
	}
	if n := strings.Count(out.String(), "&lt;script&gt;alert(1)"); n < 3 {
		t.Errorf("the page shows the text %d times", n)
	}
}

// A log that does not lead to the registers tells nothing of them.
func TestPageBelievesNoOtherLog(t *testing.T) {
	document, log := samplePage(t)
	measured, err := log.Replay(pcrs.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	other := inserted(log, event11("a lie"))
	e := compareRegisters(document, pcrs.SHA256, Boot{Measured: measured, Log: other}, nil)
	p, err := newPage(document, e, other)
	if err != nil {
		t.Fatal(err)
	}
	r := p.Registers[11]
	if r.Story == "" || len(r.Steps) != len(log.Of(11)) {
		t.Errorf("%d events, %q", len(r.Steps), r.Story)
	}
	for _, s := range r.Steps {
		if s.Measured != nil || s.State != "same" {
			t.Errorf("an event of the other log is shown: %+v", s)
		}
	}
}
