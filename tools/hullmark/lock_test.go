package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A lock that cannot be read held indexes to dates that nobody knows any more: it is left as it is, and no other made in its
// place unseen. Where there is none, one is made.
func TestLockThatCannotBeRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hullmark.lock")
	try := func() string {
		code, output := hullmarkCLI(t, "lock", "--lock", file, "--source", "../..", "--mirror", "http://127.0.0.1:1/debian")
		wantExit(t, code, exitFailed, output)
		return output
	}
	const asked = "fetch signed archive indexes"
	for _, content := range []string{"", "hullmark-lock 2\ntime 1\nend 0\n", "hullmark-lock 3\ntime 1\n"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if output := try(); strings.Contains(output, asked) || !strings.Contains(output, "says of no index how new it was") {
			t.Errorf("%q: %s", content, output)
		}
		if after, err := os.ReadFile(file); err != nil || string(after) != content {
			t.Errorf("%q became %q, %v", content, after, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if output := try(); !strings.Contains(output, asked) {
		t.Errorf("without one: %s", output)
	}
}
