package build

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Definitions may name what is in their folders, and nothing else: a change there would go unseen.
func TestDefinitionsNameOnlyTheirOwn(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"source/mkosi/mkosi.conf": "", "source/systemd/system/a.service": "", "mine/hello/hello.c": "", "elsewhere/x": ""})
	for link, target := range map[string]string{"config": "mine", "mine/out": "../elsewhere", "mine/in": "hello"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	m := mkosi{definitions: filepath.Join(dir, "source", "mkosi"), config: filepath.Join(dir, "config")}
	for path, own := range map[string]bool{
		"source/mkosi": true, "source/mkosi/mkosi.conf": true, "source/systemd/system": true, "config/hello": true, "mine/hello": true, "mine/in": true, "mine/out": false, "mine/out/x": false,
		"elsewhere": false, "source": false, "source/systemdx": false,
	} {
		for _, form := range []string{`{"BuildScripts": [%q]}`, `{"ExtraTrees": [{"Source": %q, "Target": "/usr"}]}`, `{"BuildSources": [{"Source": %q}]}`} {
			names, err := named(fmt.Appendf(nil, form, filepath.Join(dir, path)))
			if err != nil || len(names) != 1 {
				t.Fatalf(form+": %v, %v", path, names, err)
			}
			if err := m.checkOwn(names); (err == nil) != own || !own && !strings.Contains(err.Error(), path) {
				t.Errorf(form+": %v", path, err)
			}
		}
	}
}

// What dpkg says of one package is found among what it says of hundreds.
func TestFailedScript(t *testing.T) {
	var others strings.Builder
	for i := range 300 {
		fmt.Fprintf(&others, "Setting up other-%d (1) ...\n", i)
	}
	log := others.String() + "Setting up unlucky (1.0-1) ...\nno luck today\ndpkg: error processing package unlucky (--configure):\n" +
		" installed unlucky package post-installation script subprocess returned error exit status 7\n" + others.String()
	got := failedScript([]byte(log))
	for _, want := range []string{"Setting up unlucky", "no luck today", "error processing package unlucky", "exit status 7"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n > 16 {
		t.Errorf("%d lines", n)
	}
	if got := failedScript([]byte(others.String())); got != "" {
		t.Errorf("of a log without a failure: %q", got)
	}
}
