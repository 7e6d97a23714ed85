package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/fulldisk"
	"github.com/hullmark/hullmark/joinservice/render"
)

func TestWritesWithoutRoom(t *testing.T) {
	content := []byte(strings.Repeat("content", 1000))
	file := func(dir string) string { return filepath.Join(dir, "file") }
	fulldisk.Check(t,
		fulldisk.Place{Name: "folder", Write: func(dir string) error {
			return writeFolder(filepath.Join(dir, "folder"), []render.Rendered{{Name: "deep/file", Content: content}})
		}},
		fulldisk.Place{Name: "new", Write: func(dir string) error { return writeNew(file(dir), content, 0o600) }},
		fulldisk.Place{
			Name: "whole", Before: func(dir string) error { return os.WriteFile(file(dir), []byte("before"), 0o600) },
			Write: func(dir string) error { return writeWhole(file(dir), content, 0o600) },
		},
	)
}
