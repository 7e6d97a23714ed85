package infrastructure

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// begin starts a stand-in on a new folder, which ends with the test.
func begin(t *testing.T, how string) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "vm")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := beginOn(t, folder, how); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pid, err := lockHolder(folder); err != nil || pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return folder
}

func beginOn(t *testing.T, folder, how string) error {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Hullmark{program}.Start(t.Context(), folder, folder+".log", "stand-in", folder, how)
}

// looks waits until a folder's process runs, or until it does not.
func looks(t *testing.T, folder string, want bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(lookEvery) {
		got, err := Hullmark{}.Look(folder)
		if err != nil {
			t.Fatal(err)
		}
		if got == want {
			return
		}
	}
	t.Fatalf("%s: running is not %v", folder, want)
}

func TestProcessIsFoundByItsLock(t *testing.T) {
	folder := begin(t, "obeys")
	looks(t, folder, true)
	pid, err := lockHolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("its group is %d, %v: what ends ours ends it", group, err)
	}
	// A file that is open and not locked, or locked in another folder, is not it.
	other := t.TempDir()
	for _, path := range []string{filepath.Join(folder, lockName), filepath.Join(other, lockName)} {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	looks(t, other, false)
	if again, err := lockHolder(folder); err != nil || again != pid {
		t.Errorf("the holder is %d, %v; want %d", again, err, pid)
	}
}

// The kernel's list of locks is read in parts: what others lock and unlock meanwhile must not hide a process, which would be started
// twice, or left running when its Machine is deleted.
func TestProcessIsFoundWhileOthersLock(t *testing.T) {
	folder := begin(t, "obeys")
	others, end := t.TempDir(), make(chan struct{})
	var files []*os.File
	for i := range 300 {
		f, err := os.Create(filepath.Join(others, strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			default:
			}
			how := syscall.LOCK_EX
			if i%3 == 0 {
				how = syscall.LOCK_UN
			}
			_ = syscall.Flock(int(files[i*7%len(files)].Fd()), how)
		}
	})
	defer churn.Wait()
	defer close(end)
	for range 200 {
		if running, err := (Hullmark{}).Look(folder); err != nil || !running {
			t.Fatalf("running: %v, %v", running, err)
		}
	}
}

func TestSecondStartFails(t *testing.T) {
	folder := begin(t, "obeys")
	first, _ := lockHolder(folder)
	if err := beginOn(t, folder, "obeys"); err == nil || !strings.Contains(err.Error(), "another machine runs on it") {
		t.Errorf("got %v", err)
	}
	if now, _ := lockHolder(folder); now != first {
		t.Errorf("the holder was %d and is %d", first, now)
	}
}

func TestStartSaysWhatItFailedOf(t *testing.T) {
	folder := t.TempDir()
	if err := beginOn(t, folder, "fails"); err == nil || !strings.Contains(err.Error(), "hullmark: no such image") {
		t.Errorf("got %v", err)
	}
	if last := lastFailure(folder + ".log"); last != "hullmark: no such image" {
		t.Errorf("the log's last failure: %q", last)
	}
	if err := (Hullmark{filepath.Join(folder, "none")}).Start(t.Context(), folder, folder+".log"); err == nil {
		t.Error("a program that does not exist was started")
	}
}

func TestStopAsksOnceAndThenEnds(t *testing.T) {
	for how, grace := range map[string]time.Duration{"obeys": time.Hour, "ignores": 200 * time.Millisecond} {
		folder := begin(t, how)
		begun := time.Now()
		for end := begun.Add(10 * time.Second); ; time.Sleep(lookEvery) {
			ended, err := Hullmark{}.Stop(folder, grace)
			if err != nil {
				t.Fatal(err)
			}
			if ended {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: it still runs", how)
			}
		}
		if took := time.Since(begun); how == "ignores" && took < grace {
			t.Errorf("it was ended after %v, before its grace of %v", took, grace)
		}
		looks(t, folder, false)
		// What was asked of the one before is not asked of the next.
		if err := beginOn(t, folder, "obeys"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(folder + stopSuffix); err == nil {
			t.Error("the next process counts as asked")
		}
	}
}

func TestNothingToStop(t *testing.T) {
	for _, folder := range []string{t.TempDir(), "/nonexistent"} {
		if ended, err := (Hullmark{}).Stop(folder, 0); !ended || err != nil {
			t.Errorf("%s: %v, %v", folder, ended, err)
		}
	}
}
