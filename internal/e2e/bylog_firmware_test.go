//go:build vm && firmware

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// TestFirmwareByLog boots an image on machines whose firmware nobody names a file of, makes the document of a second image from the log
// of that boot alone, and boots that: every register is the predicted one. Then one machine is what the other's provider made of it: its
// boots are refused by the other's document, with the firmware for the reason.
func TestFirmwareByLog(t *testing.T) {
	b := newBench(t)
	keys := probe.NewKeys(t)
	var documents []measurements.Document
	var boots []probe.Result
	for _, machine := range []map[string]any{
		{"firmware": "/usr/share/OVMF/OVMF_CODE_4M.fd", "variables": "/usr/share/OVMF/OVMF_VARS_4M.fd", "disks": "sata", "stateDisk": "1G"},
		{"secureBoot": true, "variables": b.ownKeys(t, keys), "nicROM": true, "disks": "nvme", "stateDisk": "1G"},
	} {
		described := map[string]any{"tools": b.tools(), "cpus": 1, "memoryMiB": 512}
		maps.Copy(described, machine)
		first, second := b.probeParts(t), b.probeParts(t)
		second.Cmdline += " hullmark.second=1"
		first.Sign, second.Sign = keys.Sign(t), keys.Sign(t)
		before := probe.New(t, first).Boot(t, b.shaped(t, described))
		image := probe.New(t, second)
		document := b.measureByLog(t, image.Path, before)
		after := image.Boot(t, b.shaped(t, described))
		b.compare(t, document, after)
		documents, boots = append(documents, document), append(boots, after)
	}
	for i, document := range documents {
		other := boots[1-i]
		e := departures(document, other)
		if !slices.ContainsFunc(e, func(text string) bool { return strings.HasPrefix(text, "PCR 0 (sha256)") }) {
			t.Errorf("the other firmware shows nothing in PCR 0: %q", e)
		}
		log, err := pcrs.ParseLog(other.Log)
		if err != nil {
			t.Fatal(err)
		}
		differences, err := pcrs.Explain(document.Prediction(), pcrs.SHA256, other.Registers[pcrs.SHA256], &log)
		if err != nil {
			t.Fatal(err)
		}
		if len(differences) == 0 || differences[0].Register != 0 || !strings.Contains(differences[0].Cause, "the firmware is another") {
			t.Errorf("the other firmware is explained as %v", differences)
		}
	}
}

// measureByLog lets the program predict an image's boot from the log and the registers of another.
func (b bench) measureByLog(t *testing.T, image string, before probe.Result) measurements.Document {
	t.Helper()
	dir := t.TempDir()
	log, list := filepath.Join(dir, "log"), filepath.Join(dir, "registers")
	text := ""
	for bank, values := range before.Registers {
		text += fmt.Sprintf("%v:\n", bank)
		for r := range pcrs.Register(16) {
			text += fmt.Sprintf("  %d : 0x%v\n", int(r), values[r])
		}
	}
	for file, content := range map[string][]byte{log: before.Log, list: []byte(text)} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	document, err := measurements.Parse([]byte(quiet(t, "measure", image, "--log", log, "--pcrs", list, "-o", "json")))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(document.Machine); err != nil || strings.Contains(string(text), "firmware") {
		t.Errorf("the document's machine is %s, %v", text, err)
	}
	return document
}
