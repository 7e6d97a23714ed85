package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
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
	p, err := newPage(document, compareRegisters(document, pcrs.SHA256, measuredBoot{measured: measured, log: log}, found), log)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// samplePage is the fixture's document, and a log that holds just what it predicts.
func samplePage(t *testing.T) (measurements.Document, *pcrs.Log) {
	t.Helper()
	file, _, _ := explainFixture(t)
	document, err := readDocument(file)
	if err != nil {
		t.Fatal(err)
	}
	log := document.Prediction().Log
	return document, &log
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
	return pcrs.Event{Register: 11, Type: pcrs.EvIPL, What: what, Digests: pcrs.DigestsOf([]byte(what), pcrs.PredictedBanks()...)}
}

func TestExplainPageShowsAllRegisters(t *testing.T) {
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
func TestExplainPageIsBounded(t *testing.T) {
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
	if err := explainPage.Execute(&out, p); err != nil || out.Len() > 256<<10 {
		t.Errorf("a page of %d bytes (%v)", out.Len(), err)
	}
	if !strings.Contains(out.String(), "later events are left out") {
		t.Error("the page does not say that events are left out")
	}
}

// Text of a log is shown as text, whatever it says.
func TestExplainPageEscapes(t *testing.T) {
	document, log := samplePage(t)
	hostile := "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>{{.}}\x1b[2J\u202e\u200b\x00\n'\"`"
	document.Image.ID = hostile
	p := pageOf(t, document, inserted(log, event11(hostile), pcrs.Event{
		Register: 12, Type: pcrs.EvIPL, What: hostile, Data: []byte(hostile), Digests: pcrs.DigestsOf(nil, pcrs.PredictedBanks()...),
	}))
	var out bytes.Buffer
	if err := explainPage.Execute(&out, p); err != nil {
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
func TestExplainPageBelievesNoOtherLog(t *testing.T) {
	document, log := samplePage(t)
	measured, err := log.Replay(pcrs.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	other := inserted(log, event11("a lie"))
	e := compareRegisters(document, pcrs.SHA256, measuredBoot{measured: measured, log: other}, nil)
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

func TestExplainWritesThePage(t *testing.T) {
	document, _, _ := explainFixture(t)
	page := filepath.Join(t.TempDir(), "page.html")
	write(t, page, []byte("an older one"))
	code, output := hullmarkCLI(t, "explain", document, "--log", sampleLog, "--html", page)
	wantExit(t, code, exitMismatch, output, "PCR 11 differs", "taken as given")
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<!DOCTYPE html>", "default-src &#39;none&#39;", ".linux of the unified kernel image differs", "first departure", "</html>"} {
		if !strings.Contains(string(content), want) {
			t.Errorf("no %q in the page", want)
		}
	}
	for _, bad := range []string{"://", "<script", " style=", "src=", "ZgotmplZ"} {
		if strings.Contains(string(content), bad) {
			t.Errorf("the page has %q in it", bad)
		}
	}
	code, output = hullmarkCLI(t, "explain", document, "--log", sampleLog, "--html", filepath.Join(page, "page.html"))
	wantExit(t, code, exitFailed, output, "explain:")
	code, output = hullmarkCLI(t, "explain", document, "--log", sampleLog, "-o", "json", "--html", page)
	wantExit(t, code, exitMismatch, output)
	if err := json.NewDecoder(strings.NewReader(output)).Decode(&explained{}); err != nil {
		t.Errorf("beside the page: %v", err)
	}
}
