package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// TestGoModulesAreThoseOfThePrograms compares with what Go's own tool says of two programs, of which one has a module in another's place.
func TestGoModulesAreThoseOfThePrograms(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	want := map[lock.Module]bool{}
	for program, file := range map[string]string{"initrd": filepath.Join(a, "one"), "statedisk": filepath.Join(b, "two")} {
		if out, err := exec.Command("go", "build", "-o", file, "../../tools/"+program).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, m := range modulesByGo(t, file) {
			want[m] = true
		}
	}
	if err := os.WriteFile(filepath.Join(b, "text"), []byte("#"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := goModules(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) || len(got) == 0 {
		t.Errorf("%d modules, the programs have %d", len(got), len(want))
	}
	for _, m := range got {
		if !want[m] {
			t.Errorf("%v is in no program", m)
		}
	}
	if !slices.ContainsFunc(got, func(m lock.Module) bool { return m.Path == "github.com/edgelesssys/go-cryptsetup" }) {
		t.Error("the module in another's place is missing")
	}
	if err := os.WriteFile(filepath.Join(b, "other"), []byte("\x7fELF, but of C"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := goModules(a, b); err == nil || !strings.Contains(err.Error(), "other: no program of Go") {
		t.Errorf("a program of C: %v", err)
	}
}

// modulesByGo lists a program's modules as `go version -m` prints them: a line of dep for each, and one of => after it if
// another is in its place.
func modulesByGo(t *testing.T, file string) (found []lock.Module) {
	t.Helper()
	out, err := exec.Command("go", "version", "-m", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 4 && f[0] == "=>":
			found[len(found)-1] = lock.Module{Path: f[1], Version: f[2], Sum: f[3]}
		case len(f) >= 3 && f[0] == "dep":
			found = append(found, lock.Module{Path: f[1], Version: f[2], Sum: f[len(f)-1]})
		}
	}
	return found
}
