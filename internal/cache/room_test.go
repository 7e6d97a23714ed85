package cache

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	content := strings.Repeat("content", 1000)
	named := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(named, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := HashFile(named)
	if err != nil {
		t.Fatal(err)
	}
	// What stays is the folder of a kind with the lock's empty file, which is made before.
	step := func(dir, kind string) error {
		_, _, err := Store{Root: dir}.Step(kind, "key", func(made string) error { return os.WriteFile(filepath.Join(made, "file"), []byte(content), 0o600) })
		return err
	}
	fulldisk.Check(t,
		fulldisk.Writer{
			Name: "step",
			Before: func(dir string) error {
				unlock, err := Store{Root: dir}.lock("kind", "key")
				if err == nil {
					unlock()
				}
				return err
			},
			Write: func(dir string) error { return step(dir, "kind") },
		},
		fulldisk.Writer{
			Name: "blob", Before: func(dir string) error { return os.Mkdir(filepath.Join(dir, "sha256"), 0o755) },
			Write: func(dir string) error {
				_, err := Store{Root: dir}.Blob(sum, func(w io.Writer) error { _, err := io.WriteString(w, content); return err })
				return err
			},
		},
	)
}
