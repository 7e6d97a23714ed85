package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark"
)

func TestBytesAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	s := Source{File: filepath.Join(dir, "host"), Cache: filepath.Join(dir, "run", "config.json")}
	write := func(content string) {
		if err := os.WriteFile(s.File, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	for range 2 {
		got, err := s.Bytes(t.Context())
		if err != nil || string(got) != "first" {
			t.Fatalf("Bytes = %q, %v; want what was there at first", got, err)
		}
		write("second")
	}
}

func TestBytesConditions(t *testing.T) {
	dir := t.TempDir()
	s := Source{File: filepath.Join(dir, "host"), Cache: filepath.Join(dir, "config.json")}
	want := func(code string) {
		t.Helper()
		var c *hullmark.Condition
		if _, err := s.Bytes(t.Context()); !errors.As(err, &c) || c.Code != code {
			t.Errorf("error %v, want condition %s", err, code)
		}
	}
	want("config-missing")
	if err := os.WriteFile(s.File, bytes.Repeat([]byte{' '}, hullmark.MaxNodeConfig+1), 0o600); err != nil {
		t.Fatal(err)
	}
	want("config-invalid")
	if _, err := os.Stat(s.Cache); err == nil {
		t.Error("a configuration that is too long was kept")
	}
}
