package cache

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Of several that want one step at once, one makes it, and all get it whole.
func TestSeveralAtOnce(t *testing.T) {
	s := Store{Root: t.TempDir()}
	var made atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			dir, _, err := s.Step("kind", "key", func(dir string) error {
				made.Add(1)
				for i := range 20 {
					if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
						return err
					}
					time.Sleep(time.Millisecond)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) != 20 {
				t.Errorf("%d files, %v", len(files), err)
			}
		})
	}
	group.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
}

// A process that is killed while it makes a step leaves neither half a step nor its lock.
func TestKilledInTheMiddle(t *testing.T) {
	const variable = "HULLMARK_TEST_CACHE"
	if root := os.Getenv(variable); root != "" {
		_, _, err := Store{Root: root}.Step("kind", "key", func(dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o600); err != nil {
				return err
			}
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		})
		t.Fatal("it lives", err)
	}
	s := Store{Root: t.TempDir()}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledInTheMiddle$")
	cmd.Env = append(os.Environ(), variable+"="+s.Root)
	if out, err := cmd.CombinedOutput(); err == nil || err.Error() != "signal: killed" {
		t.Fatalf("%v\n%s", err, out)
	}
	dir, hit, err := s.Step("kind", "key", func(dir string) error { return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o600) })
	if err != nil || hit {
		t.Fatalf("hit %v, %v", hit, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || files[0].Name() != "whole" {
		t.Errorf("it holds %v, %v", files, err)
	}
}
