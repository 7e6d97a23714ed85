package build

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	text, err := os.ReadFile("../../hullmark.lock")
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	before := func(name string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte("before"), 0o600) }
	}
	programs := t.TempDir()
	if err := os.MkdirAll(filepath.Join(programs, "node"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(programs, "node", "joinservice"), bytes.Repeat([]byte("program"), 1000), 0o700); err != nil {
		t.Fatal(err)
	}
	fulldisk.Check(t,
		fulldisk.Writer{Name: "lock", Before: before("hullmark.lock"), Write: func(dir string) error { return WriteLock(filepath.Join(dir, "hullmark.lock"), l) }},
		fulldisk.Writer{Name: "join service", Before: before("test.joinservice.tar"), Write: func(dir string) error {
			j := job{Options: Options{Out: dir, ID: "test"}, programs: programs}
			return j.writeJoinService()
		}},
		fulldisk.Writer{
			Name: "release",
			Before: func(dir string) error {
				return errors.Join(before("program")(dir), os.Mkdir(filepath.Join(dir, "work"), 0o700), before("work/program")(dir))
			},
			Write: func(dir string) error { return finishRelease(filepath.Join(dir, "work"), dir, []string{"program"}) },
		},
	)
}
