//go:build bench

package build

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watched is what some work took: seconds, and at most MiB of memory that is no file's and MB of disk beside what was there before.
type watched struct{ seconds, memory, disk float64 }

// watchEvery is how often it is looked at; a peak between is missed, on both sides.
const watchEvery = 200 * time.Millisecond

// watch has children of this process do some work, and watches their memory and the file system that a folder is in. Whatever
// else writes there counts, too.
func watch(b *testing.B, dir string, work func()) (w watched) {
	b.Helper()
	before, began := freeBytes(b, dir), time.Now()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.NewTicker(watchEvery); ; {
			w.memory = max(w.memory, float64(anonymousOf(os.Getpid()))/(1<<20))
			w.disk = max(w.disk, (before-freeBytes(b, dir))/1e6)
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	work()
	w.seconds = time.Since(began).Seconds()
	close(stop)
	<-stopped
	return w
}

func freeBytes(b *testing.B, dir string) float64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		b.Error(err)
	}
	return float64(s.Bfree) * float64(s.Bsize)
}

// anonymousOf is the memory of all processes below one that is no file's (proc_pid_status(5), RssAnon and RssShmem).
func anonymousOf(process int) (bytes int64) {
	type one struct{ parent, held int64 }
	all := map[int64]one{}
	statuses, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range statuses {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended.
		}
		pid, _ := strconv.ParseInt(filepath.Base(filepath.Dir(file)), 10, 64)
		all[pid] = one{statusField(text, "PPid:"), (statusField(text, "RssAnon:") + statusField(text, "RssShmem:")) << 10}
	}
	for _, p := range all {
		for up := p.parent; up > 1; up = all[up].parent {
			if up == int64(process) {
				bytes += p.held
				break
			}
		}
	}
	return bytes
}

// statusField is the number in a line of a process's status, or 0.
func statusField(text []byte, name string) int64 {
	_, rest, found := bytes.Cut(text, []byte("\n"+name))
	if !found {
		return 0
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(fields[0], 10, 64)
	return n
}
