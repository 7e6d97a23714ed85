package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// exposed are the units that systemd-analyze cannot find well enclosed. All others of ours stay within 2.0 of 10.
var exposed = map[string]string{
	"hullmark-statedisk@.service": "makes and opens block devices: CAP_SYS_ADMIN",
	"hullmark-state.service":      "what it mounts is for everybody: no mount namespace",
}

// What systemd's own judge says of each unit (systemd-analyze(1), security).
func TestUnitsAreEnclosed(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("%v; install it: make setup-test", err)
	}
	units, err := filepath.Glob("../../systemd/system/hullmark-*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("no unit: %v", err)
	}
	shut := func(unit string) (string, bool) {
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold=20", unit).CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		verdict := lines[len(lines)-1]
		if !strings.Contains(verdict, "Overall exposure level") {
			t.Fatalf("%s: %v\n%s", unit, err, out)
		}
		return verdict, err == nil
	}
	for _, unit := range units {
		name := filepath.Base(unit)
		verdict, ok := shut(unit)
		t.Log(verdict)
		if why, known := exposed[name]; ok == known {
			t.Errorf("%s: %s; listed as exposed: %v %s", name, verdict, known, why)
		}
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		// Whatever it holds in memory is in no core file, and it gains no right by a program that it starts.
		for _, line := range []string{"LimitCORE=0", "NoNewPrivileges=yes", "SystemCallArchitectures=native"} {
			if !strings.Contains(string(text), "\n"+line+"\n") {
				t.Errorf("%s has no %s", name, line)
			}
		}
	}
	open := filepath.Join(t.TempDir(), "open.service")
	if err := os.WriteFile(open, []byte("[Service]\nExecStart=/usr/bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if verdict, ok := shut(open); ok {
		t.Errorf("a unit without any limit passes: %s", verdict)
	}
}
