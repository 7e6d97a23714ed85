package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	fulldisk.Check(t, fulldisk.Writer{
		Name:   "copy",
		Before: func(dir string) error { return os.WriteFile(filepath.Join(dir, "node.json"), []byte("before"), 0o600) },
		Write:  func(dir string) error { return keep(filepath.Join(dir, "node.json"), []byte("another one")) },
	})
}
