package infrastructure

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// TestMain lets the test program play hullmark, as a process of its own that holds a folder's lock as hullmark's do.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "stand-in" {
		os.Exit(standIn(os.Args[2], os.Args[3]))
	}
	ctrl.SetLogger(klog.Background())
	code := m.Run()
	if err := atEnd(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// atEnd ends what tests share.
var atEnd = func() error { return nil }

// standIn is hullmark on a folder: "obeys" ends at the first SIGTERM, "ignores" at none, "fails" says why it does not start.
func standIn(folder, how string) int {
	if how == "fails" {
		fmt.Fprint(os.Stderr, "something else\nhullmark: no such image\n")
		return 1
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	lock, err := os.OpenFile(filepath.Join(folder, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hullmark: another machine runs on it")
		return 1
	}
	for {
		select {
		case <-asked:
			if how == "obeys" {
				return 0
			}
		case <-time.After(time.Minute): // no test takes so long
			return 3
		}
	}
}
