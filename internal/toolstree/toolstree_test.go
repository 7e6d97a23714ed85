package toolstree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The machine's own root serves as a tree here: what is tested is the sandbox, not its content.
func TestCommandSeesOnlyWhatItIsGiven(t *testing.T) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatal("bwrap is missing: apt-get install bubblewrap")
	}
	given := t.TempDir()
	if err := os.WriteFile(filepath.Join(given, "in"), []byte("seen"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LEAK", "leaked")
	s := Sandbox{Tree: "/", Binds: []Bind{{Host: given, Tree: "/data", Writable: true}}, Env: map[string]string{"GIVEN": "yes"}, Dir: "/data", Offline: true}
	out, err := s.Command(t.Context(), "sh", "-c", `cat in; echo "$LEAK-$GIVEN-$$" > out; ls / | tr '\n' ' '`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.HasPrefix(string(out), "seen") || strings.Contains(string(out), "home") {
		t.Errorf("program saw %q", out)
	}
	wrote, err := os.ReadFile(filepath.Join(given, "out"))
	if err != nil || !strings.HasPrefix(string(wrote), "-yes-") {
		t.Errorf("program wrote %q, %v", wrote, err)
	}
}

func TestCommandCannotWriteToATreeOrAReadOnlyBind(t *testing.T) {
	given := t.TempDir()
	err := Command(t.Context(), "/", []Bind{{Host: given}}, "sh", "-c", "touch "+given+"/x || touch /usr/x").Run()
	if err == nil {
		t.Fatal("wrote to what was shown read-only")
	}
}

// Whoever starts it, the program is an ordinary user's, has no rights beyond those, and writes what it may write.
func TestCommandIsAnOrdinaryUsers(t *testing.T) {
	given := t.TempDir()
	s := Sandbox{Tree: "/", Binds: []Bind{{Host: given, Tree: "/data", Writable: true}}, Dir: "/data", Ordinary: true}
	out, err := s.Command(t.Context(), "sh", "-c", `id -u; grep CapEff: /proc/self/status; touch x; mount -t tmpfs none /data 2>/dev/null && echo mounted; true`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if said := string(out); strings.HasPrefix(said, "0\n") || !strings.Contains(said, "CapEff:\t0000000000000000") || strings.Contains(said, "mounted") {
		t.Errorf("it is not: %q", said)
	}
	if _, err := os.Stat(filepath.Join(given, "x")); err != nil {
		t.Error(err)
	}
}
