package firstboot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	content := []byte(strings.Repeat("content", 1000))
	fulldisk.Check(t,
		fulldisk.Place{
			Name: "manifest",
			Before: func(dir string) error {
				return errors.Join(os.Mkdir(filepath.Join(dir, statedisk.AgentDir), 0o700), writeManifest(dir, []byte("before")))
			},
			Write: func(dir string) error { return writeManifest(dir, content) },
		},
		fulldisk.Place{
			Name: "file of the join",
			Before: func(dir string) error {
				return writeFiles(dir, []*wire.File{{Path: "/etc/kubernetes/admin.conf", Content: []byte("before"), Mode: 0o600}})
			},
			Write: func(dir string) error {
				return writeFiles(dir, []*wire.File{{Path: "/etc/kubernetes/admin.conf", Content: content, Mode: 0o600}})
			},
		},
	)
}

func writeManifest(dir string, content []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = statedisk.WriteManifest(root, hullmark.NewSecret(make([]byte, 32)), statedisk.Manifest{Files: map[string]statedisk.KeptFile{"a": {Mode: 0o600, Content: content}}})
	return err
}
