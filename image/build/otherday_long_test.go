//go:build long

package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOtherDayHasAnotherDateForEveryProgram(t *testing.T) {
	dir, work := filepath.Join(t.TempDir(), "with a space"), t.TempDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	kernel := otherDay{ahead: 400 * 24 * time.Hour, dir: dir, memory: 512}
	want := time.Now().Add(kernel.ahead).UTC().Format("2006-01")
	// Go asks the kernel by itself, date by way of the C library.
	if err := os.WriteFile(filepath.Join(dir, "now.go"), []byte("package main\nimport \"time\"\nfunc main() { println(time.Now().UTC().Format(\"2006-01\")) }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "now")
	if err := runQuiet(goCommand(t.Context(), "local", dir, "", "build", "-o", program, "now.go"), "compile"); err != nil {
		t.Fatal(err)
	}
	result, err := kernel.run(t.Context(), work, quote(program)+" 2>"+work+"/a && date -u +%Y-%m >>"+work+"/a && chown 1234 "+work+"/a && nproc >>"+work+"/a", work+"/a", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(result)
	if err != nil || string(got) != want+"\n"+want+"\n1\n" {
		t.Errorf("got %q, %v; want %s twice, and one processor", got, err, want)
	}
	if left, err := os.ReadDir(work); err != nil || len(left) != 0 {
		t.Errorf("its memory is on the machine: %v, %v", left, err)
	}
}

func TestOtherDayFailsWithItsProgram(t *testing.T) {
	dir := t.TempDir()
	if _, err := (otherDay{dir: dir, memory: 256}).run(t.Context(), t.TempDir(), "exit 7", "/none", os.Stderr); err == nil || !strings.Contains(err.Error(), `"7"`) {
		t.Errorf("got %v, want its status 7", err)
	}
}
