package firstboot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	content := []byte(strings.Repeat("content", 1000))
	fulldisk.Check(t,
		fulldisk.Place{
			Name:   "agent's own file",
			Before: func(dir string) error { return os.WriteFile(filepath.Join(dir, "intent"), []byte("before"), 0o600) },
			Write:  func(dir string) error { return storeFile(filepath.Join(dir, "intent"), string(content)) },
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
