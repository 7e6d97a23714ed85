package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/pcrs"
)

const sampleLog = "../../pcrs/testdata/ovmf-2025.02.log"

func TestEventlogShow(t *testing.T) {
	code, output := hullmarkCLI(t, "eventlog", "show", sampleLog)
	wantExit(t, code, 0, output, "EV_SEPARATOR", `the text "Exit Boot Services Returned with Success"`, "crypto-agile, banks [sha1 sha256 sha384 sha512]")
	code, output = hullmarkCLI(t, "eventlog", "show", sampleLog, "-o", "json")
	wantExit(t, code, 0, output)
	var shown shownLog
	if err := json.Unmarshal([]byte(output), &shown); err != nil || len(shown.Events) < 20 || shown.Format != pcrs.FormatAgile {
		t.Errorf("%d events of format %q, %v", len(shown.Events), shown.Format, err)
	}
}

// A TDX guest's log is recognised, and it is said that it was.
func TestEventlogOfTDXGuest(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/google/go-tdx-guest").Output()
	if err != nil {
		t.Fatal(err)
	}
	ccel := filepath.Join(strings.TrimSpace(string(out)), "testing", "testdata", "ccel", "ccel_data.dat")
	code, output := hullmarkCLI(t, "eventlog", "replay", ccel)
	wantExit(t, code, 0, output, "read as the log of a TDX guest", "sha384  RTMR 0")
	code, forced := hullmarkCLI(t, "eventlog", "replay", ccel, "--ccel")
	wantExit(t, code, 0, forced)
	if strings.Contains(forced, "read as") || !strings.HasSuffix(output, forced) {
		t.Errorf("as told: %s, and as found: %s", forced, output)
	}
	if code, output := hullmarkCLI(t, "eventlog", "show", ccel, "--ccel=false"); code == 0 && strings.Contains(output, "RTMR") {
		t.Error("it is read as a TDX guest's log all the same: ", output)
	}
	code, output = hullmarkCLI(t, "eventlog", "show", sampleLog)
	wantExit(t, code, 0, output)
	if strings.Contains(output, "TDX") {
		t.Error(output)
	}
}

// The registers that replay prints are those that the recorded machine's TPM had.
func TestEventlogReplay(t *testing.T) {
	recorded, err := os.ReadFile("../../pcrs/testdata/ovmf-2025.02.pcrs")
	if err != nil {
		t.Fatal(err)
	}
	code, output := hullmarkCLI(t, "eventlog", "replay", sampleLog)
	wantExit(t, code, 0, output)
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) < 4*8 {
		t.Errorf("%d registers", len(lines))
	}
	for _, line := range lines {
		if f := strings.Fields(line); !strings.Contains(string(recorded), f[0]+" "+f[2]+" "+f[3]+"\n") {
			t.Errorf("the TPM did not have %q", line)
		}
	}
	code, output = hullmarkCLI(t, "eventlog", "replay", sampleLog, "-o", "json")
	wantExit(t, code, 0, output, `"sha384": {`)
}

func TestEventlogRefuses(t *testing.T) {
	raw, err := os.ReadFile(sampleLog)
	if err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, raw[:len(raw)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	code, output := hullmarkCLI(t, "eventlog", "show", short)
	wantExit(t, code, exitFailed, output, short, "truncated")
	code, output = hullmarkCLI(t, "eventlog", "show", "/dev/zero")
	wantExit(t, code, exitFailed, output, "at most")
	code, output = hullmarkCLI(t, "eventlog", "replay", "absent")
	wantExit(t, code, exitFailed, output, "absent")
	code, output = hullmarkCLI(t, "eventlog", "show", sampleLog, "-o", "yaml")
	wantExit(t, code, exitUsage, output, "text or json")
	code, output = hullmarkCLI(t, "eventlog", "show", "--ccel", sampleLog)
	wantExit(t, code, exitFailed, output, "no RTMR has index")
}
