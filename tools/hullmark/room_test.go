package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	content := []byte(strings.Repeat("content", 1000))
	file := func(dir string) string { return filepath.Join(dir, "file") }
	var keys keySet
	for name, k := range map[string]*bootKey{platformKey: &keys.platform, exchangeKey: &keys.exchange, imageKey: &keys.image} {
		var err error
		if *k, err = newBootKey("Test", name, hullmark.NewSecret([]byte("passphrase"))); err != nil {
			t.Fatal(err)
		}
	}
	fulldisk.Check(t,
		fulldisk.Writer{Name: "folder", Write: func(dir string) error {
			return writeFolder(filepath.Join(dir, "folder"), []render.Rendered{{Name: "deep/file", Content: content}})
		}},
		fulldisk.Writer{Name: "keys of Secure Boot", Write: func(dir string) error { return keys.write(filepath.Join(dir, "keys")) }},
		fulldisk.Writer{Name: "new", Write: func(dir string) error { return writeNew(file(dir), content, 0o600) }},
		fulldisk.Writer{
			Name: "whole", Before: func(dir string) error { return os.WriteFile(file(dir), []byte("before"), 0o600) },
			Write: func(dir string) error { return writeWhole(file(dir), content, 0o600) },
		},
	)
}
