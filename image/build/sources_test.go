package build

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHashSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hash := func() string {
		t.Helper()
		sum, err := hashSources(dir)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	write("go.mod", "module m")
	write("agent/agent.go", "package agent")
	for _, test := range []struct {
		name, file string
		counts     bool
	}{
		{"a Go file", "agent/more.go", true},
		{"what a Go file embeds", "agent/page.html", true},
		{"a test", "agent/agent_test.go", false},
		{"a test's data", "agent/testdata/x", false},
		{"a folder without Go", "docs/page.md", false},
		{"another module in a folder of programs", "agent/other/go.mod", false},
		{"its code", "agent/other/other.go", false},
		{"a checkout among what was built", "out/checkout/go.mod", false},
		{"its code, too", "out/checkout/agent/agent.go", false},
		{"what was built", "out/disk.raw", false},
	} {
		before := hash()
		write(test.file, "package x")
		if after := hash(); (after != before) != test.counts {
			t.Errorf("%s (%s): counts %t, want %t", test.name, test.file, after != before, test.counts)
		}
	}
}
