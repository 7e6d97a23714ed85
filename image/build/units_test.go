package build

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exposed are the units that cannot be enclosed as well as the others, and the tenths that each has: the first makes and opens
// block devices, with CAP_SYS_ADMIN, what the second mounts is for everybody, so that it has no mount namespace, and the third writes a
// disk and firmware variables, and has the network, from which it fetches what it writes. Of the profile storage's the first mounts,
// too, and the second sets up the kernel's sessions with targets.
var exposed = map[string]int{
	"hullmark-statedisk@.service": 23, "hullmark-state.service": 43, "hullmark-slots@.service": 22,
	"hullmark-iscsi.service": 34, "iscsid.service": 31,
}

// most is what all other units of ours stay within, in tenths.
const most = 20

var emptyDefault = regexp.MustCompile(`(?m)^SetCredential=[^:]*:?$`)

// What systemd's own judge says of each unit (systemd-analyze(1), security).
func TestUnitsAreEnclosed(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("%v; install it: make setup-test", err)
	}
	units, err := filepath.Glob("../../systemd/system/hullmark-*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("no unit: %v", err)
	}
	ofProfiles, err := filepath.Glob("../../mkosi/mkosi.profiles/*/mkosi.extra/usr/lib/systemd/system/*.service")
	if err != nil || len(ofProfiles) == 0 {
		t.Fatalf("no unit of a profile: %v", err)
	}
	units = append(units, ofProfiles...)
	within := func(unit string, tenths int) (string, bool) {
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", fmt.Sprintf("--threshold=%d", tenths), unit).CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		verdict := lines[len(lines)-1]
		if !strings.Contains(verdict, "Overall exposure level") {
			t.Fatalf("%s: %v\n%s", unit, err, out)
		}
		return verdict, err == nil
	}
	for _, unit := range units {
		name := filepath.Base(unit)
		tenths := cmp.Or(exposed[name], most)
		verdict, ok := within(unit, tenths)
		t.Log(verdict)
		if !ok {
			t.Errorf("%s: %s; want %d tenths at most", name, verdict, tenths)
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
		// systemd passes over an empty default, and then does not start a service whose file is not there.
		if emptyDefault.Match(text) {
			t.Errorf("%s has a credential whose default is empty", name)
		}
	}
	open := filepath.Join(t.TempDir(), "open.service")
	if err := os.WriteFile(open, []byte("[Service]\nExecStart=/usr/bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if verdict, ok := within(open, 43); ok {
		t.Errorf("a unit without any limit passes: %s", verdict)
	}
}
