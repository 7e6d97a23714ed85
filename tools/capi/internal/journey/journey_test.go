package journey

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const page = "# Page\n\n## One\n\n```sh\ntrue\n```\n\n## Two\n\nText.\n\n```yaml\na: b\n```\n\n```sh\necho first > file\nfalse\necho second\n```\n\n### Below\n\n```sh\ncat file\n```\n\n## Three\n\n```sh\necho third\n```\n"

func TestJourney(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "page.md")
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, heading := range []string{"## Four", "## Below"} {
		if _, err := Read(path, heading); err == nil {
			t.Errorf("%s was found", heading)
		}
	}
	j, err := Read(path, "## Two")
	if err != nil || j.Len() != 2 {
		t.Fatalf("%v, %v", j, err)
	}
	var out strings.Builder
	j.Dir, j.Env, j.Out = dir, os.Environ(), &out
	if err := j.Run(t.Context(), 0); err == nil || strings.Contains(strings.ReplaceAll(out.String(), "$ echo second", ""), "second") {
		t.Errorf("it went on after a command that failed: %v, %s", err, out.String())
	}
	if err := j.Run(t.Context(), 1); err != nil || !strings.HasSuffix(out.String(), "$ cat file\nfirst\n") {
		t.Errorf("%v, %s", err, out.String())
	}
}

// A command that waits ends with the context, though it is bash's child and writes where others listen.
func TestRunEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var out strings.Builder
	j := &Journey{Dir: t.TempDir(), Env: os.Environ(), Out: &out, blocks: []string{"sleep 100\ntrue"}}
	began := time.Now()
	if err := j.Run(ctx, 0); err == nil || time.Since(began) > 50*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
