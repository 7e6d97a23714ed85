//go:build docs

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// journeys are the pages in the order in which a newcomer follows them; each builds on what the one before left.
var journeys = []string{
	"docs/install.md", "docs/build.md", "docs/formats.md", "docs/measuring.md", "docs/secure-boot.md", "docs/verify.md", "docs/measurement-format.md", "docs/export.md", "docs/boot.md",
}

var fence = regexp.MustCompile("(?ms)^```sh( background)?\n(.*?)^```$")

// TestDocsCommands runs every command of the journeys in a clone of the checkout. It takes the time of five builds and a boot,
// and its commands speak as they go.
func TestDocsCommands(t *testing.T) {
	clone := t.TempDir()
	shell(t, ".", "git clone -q "+filepath.Join("..", "..")+" "+clone)
	shell(t, clone, "make bin/hullmark")
	for _, page := range journeys {
		text, err := os.ReadFile(filepath.Join(clone, page))
		if err != nil {
			t.Fatal(err)
		}
		blocks := fence.FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Fatalf("%s has no commands", page)
		}
		for _, block := range blocks {
			if block[1] == "" {
				shell(t, clone, block[2])
				continue
			}
			background(t, clone, block[2])
		}
	}
}

func shell(t *testing.T, dir, script string) {
	t.Helper()
	t.Log("$ " + strings.TrimSpace(script))
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", script)
	cmd.Dir = dir
	// The commands say how far they are, and some take most of an hour.
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

// background runs a script until the test ends.
func background(t *testing.T, dir, script string) {
	t.Helper()
	t.Log("$ " + strings.TrimSpace(script) + " &")
	cmd := exec.Command("bash", "-c", "exec "+script)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s\n%s", script, out.String())
		}
	})
	// What the next command reads is written within the first second; the boot itself is what that command waits for.
	time.Sleep(10 * time.Second)
}
