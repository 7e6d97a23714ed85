package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	content := bytes.Repeat([]byte("content"), 1000)
	from := filepath.Join(t.TempDir(), "from")
	if err := os.WriteFile(from, content, 0o600); err != nil {
		t.Fatal(err)
	}
	folder := func(name string) func(dir string) error {
		return func(dir string) error { return os.Mkdir(filepath.Join(dir, name), 0o700) }
	}
	fulldisk.Check(t,
		fulldisk.Writer{
			Name: "node config", Before: func(dir string) error {
				return os.WriteFile(filepath.Join(dir, nodeConfigFile), []byte("before"), 0o600)
			},
			Write: func(dir string) error {
				_, err := writeNodeConfig(dir, content)
				return err
			},
		},
		fulldisk.Writer{Name: "copy", Write: func(dir string) error { return copyOnce(from, filepath.Join(dir, "copy")) }},
		fulldisk.Writer{Name: "CA", Before: folder(caName), Write: func(dir string) error { return makeCA(filepath.Join(dir, caName), dir) }},
	)
}
