package cluster

import (
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	create := func(dir string) error {
		_, err := Create(filepath.Join(dir, "cluster.age"), secret("correct"), c, cheap)
		return err
	}
	fulldisk.Check(t,
		fulldisk.Writer{Name: "create", Write: create},
		fulldisk.Writer{Name: "update", Before: create, Write: func(dir string) error {
			f, err := Open(filepath.Join(dir, "cluster.age"), secret("correct"))
			if err != nil {
				return err
			}
			return f.Update(func(*Cluster) error { return nil })
		}},
	)
}
