package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	fulldisk.Check(t, fulldisk.Place{
		Name:   "seen",
		Before: func(dir string) error { return os.WriteFile(filepath.Join(dir, "seen"), []byte("before"), 0o600) },
		Write:  func(dir string) error { return writeSeen(servicefiles.Plain(filepath.Join(dir, "seen")), nil) },
	})
}
