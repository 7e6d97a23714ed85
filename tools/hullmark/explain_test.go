package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/inspect/explain"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// explainFixture is a document in a file, and its registers in another.
func explainFixture(t *testing.T) (document, list string, values pcrs.Values) {
	t.Helper()
	f := newMeasureFixture(t)
	code, output := hullmarkCLI(t, "measure", f.image, "--firmware", f.firmware, "--vars", f.vars, "-o", "json")
	wantExit(t, code, 0, output)
	parsed, err := measurements.Parse([]byte(output))
	if err != nil {
		t.Fatal(err)
	}
	document, list = filepath.Join(t.TempDir(), "node.json"), filepath.Join(t.TempDir(), "registers")
	write(t, document, []byte(output))
	values = parsed.Values(pcrs.SHA256)
	write(t, list, pcrread(values))
	return document, list, values
}

// pcrread is how tpm2_pcrread prints registers.
func pcrread(values pcrs.Values) []byte {
	text := "  sha256:\n"
	for _, r := range slices.Sorted(maps.Keys(values)) {
		text += fmt.Sprintf("    %-2d: 0x%s\n", int(r), strings.ToUpper(values[r].String()))
	}
	return []byte(text)
}

func TestExplain(t *testing.T) {
	document, list, values := explainFixture(t)
	code, output := hullmarkCLI(t, "explain", document, "--pcrs", list)
	wantExit(t, code, 0, output, "PCR 11", "equal")
	if strings.Contains(output, "differs") {
		t.Errorf("equal registers differ:\n%s", output)
	}
	values[12] = pcrs.Digest(strings.Repeat("x", 32))
	values[0] = values[12]
	write(t, list, pcrread(values))
	code, output = hullmarkCLI(t, "explain", document, "--pcrs", list)
	wantExit(t, code, exitMismatch, output, "PCR 12 differs", "not covered", "1 of ")
}

// The recorded machine booted another image: the log says so, event by event.
func TestExplainByTheLog(t *testing.T) {
	document, _, _ := explainFixture(t)
	code, output := hullmarkCLI(t, "explain", document, "--log", sampleLog)
	wantExit(t, code, exitMismatch, output, "PCR 11 differs", ".linux of the unified kernel image differs", "the disk has another partition table")
	code, output = hullmarkCLI(t, "explain", document, "--log", sampleLog, "-o", "json")
	wantExit(t, code, exitMismatch, output)
	var e explain.Explanation
	if err := json.NewDecoder(strings.NewReader(output)).Decode(&e); err != nil || e.Equal || len(e.Registers) != 15 { // a log knows nothing of PCR 10
		t.Errorf("%d registers, equal %t, %v", len(e.Registers), e.Equal, err)
	}
}

// PCR 10 of a recorded machine is IMA's boot_aggregate of its other registers.
func TestExplainKnowsTheBootAggregate(t *testing.T) {
	document, list, _ := explainFixture(t)
	recorded, err := os.ReadFile("../../pcrs/testdata/ovmf-2025.02.pcrs")
	if err != nil {
		t.Fatal(err)
	}
	measured := regexp.MustCompile(`(?m)^(\w+) (\d+) `).ReplaceAllString(string(recorded), "$1 PCR $2 ")
	write(t, list, []byte(measured))
	code, output := hullmarkCLI(t, "explain", document, "--pcrs", list)
	wantExit(t, code, exitMismatch, output, "follows from PCR 0 to 9")
	value := regexp.MustCompile(`(?m)^(sha256 PCR 10 )\w{4}`)
	write(t, list, value.ReplaceAll([]byte(measured), []byte("${1}0000")))
	code, output = hullmarkCLI(t, "explain", document, "--pcrs", list)
	wantExit(t, code, exitMismatch, output)
	if strings.Contains(output, "follows from") {
		t.Error("a changed PCR 10 follows from the others")
	}
}

func TestExplainRefuses(t *testing.T) {
	document, list, _ := explainFixture(t)
	for name, args := range map[string][]string{
		"nothing to compare": {document},
		"a replayed bank":    {document, "--pcrs", list, "--bank", "sha1"},
		"unknown output":     {document, "--pcrs", list, "-o", "html"},
		"no document":        {},
	} {
		if code, output := hullmarkCLI(t, append([]string{"explain"}, args...)...); code != exitUsage {
			t.Errorf("%s: exit %d\n%s", name, code, output)
		}
	}
	code, output := hullmarkCLI(t, "explain", document, "--pcrs", list, "--bank", "sha384")
	wantExit(t, code, exitFailed, output, list, "no registers of bank sha384")
	code, output = hullmarkCLI(t, "explain", list, "--pcrs", list)
	wantExit(t, code, exitFailed, output, list)
	code, output = hullmarkCLI(t, "explain", document, "--pcrs", document)
	wantExit(t, code, exitFailed, output, "line 1")
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
	if err := json.NewDecoder(strings.NewReader(output)).Decode(&explain.Explanation{}); err != nil {
		t.Errorf("beside the page: %v", err)
	}
}
