package hullmark_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

// TestDocsLinksLead checks that every relative link of the README and the docs names a file.
func TestDocsLinksLead(t *testing.T) {
	for _, page := range docsPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(goFence.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

func docsPages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no docs: %v", err)
	}
	return append(pages, "README.md")
}

var (
	fence    = regexp.MustCompile("(?ms)^```sh[^\n]*\n(.*?)^```$")
	makeWord = regexp.MustCompile(`(?m)^make ([a-z-]+)$`)
	// A verb is all lower-case words that follow: "policy add member". One that is an argument does no harm to --help.
	verbWord = regexp.MustCompile(`(?m)bin/hullmark ([a-z][a-z-]*(?: [a-z][a-z-]*)*)\b([^\n]*)`)
	flagWord = regexp.MustCompile(` (--[a-z-]+)`)
)

// TestDocsNameWhatExists checks that each command of README and docs names a verb with such flags, or a make target.
// `make test-docs` runs them.
func TestDocsNameWhatExists(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	hullmark := filepath.Join(t.TempDir(), "hullmark")
	if out, err := exec.Command("go", "build", "-o", hullmark, "./tools/hullmark").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, page := range docsPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
			for _, m := range makeWord.FindAllStringSubmatch(block[1], -1) {
				if !strings.Contains(string(makefile), "\n"+m[1]+":") {
					t.Errorf("%s: the Makefile has no target %s", page, m[1])
				}
			}
			for _, m := range verbWord.FindAllStringSubmatch(block[1], -1) {
				checkVerb(t, page, hullmark, m[1], m[2])
			}
		}
	}
}

func checkVerb(t *testing.T, page, hullmark, verb, rest string) {
	t.Helper()
	help, err := exec.Command(hullmark, append(strings.Fields(verb), "--help")...).Output()
	if err != nil || !strings.Contains(string(help), "hullmark "+strings.Fields(verb)[0]) {
		t.Errorf("%s: hullmark %s: no such verb: %v", page, verb, err)
	}
	// Only a command with verbs of its own can have an unknown one; of others the word is an argument.
	if strings.Contains(string(help), "Available Commands:") && !strings.Contains(string(help), "hullmark "+verb) {
		t.Errorf("%s: hullmark %s: no such verb", page, verb)
	}
	for _, flag := range flagWord.FindAllStringSubmatch(rest, -1) {
		if !strings.Contains(string(help), flag[1]+" ") {
			t.Errorf("%s: hullmark %s has no flag %s", page, verb, flag[1])
		}
	}
}
