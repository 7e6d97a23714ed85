package probe

import (
	"fmt"
	"testing"
)

// TestWatched: a machine ends when its kernel waits for a lost timer, however the console arrives in pieces, and not before.
func TestWatched(t *testing.T) {
	const said = "[  505.418987] rcu: rcu_preempt kthread timer wakeup didn't happen for 5250 jiffies! g-1123 f0x0\r\n"
	for size := 1; size <= len(said); size++ {
		stopped := 0
		w := watched{stop: func() { stopped++ }}
		for i := range 5000 {
			_, _ = fmt.Fprintf(&w, "[    0.%06d] booting\r\n", i)
		}
		if stopped != 0 {
			t.Fatal("a boot was stopped")
		}
		for rest := said; rest != ""; {
			n := min(size, len(rest))
			_, _ = w.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		if stopped == 0 {
			t.Fatalf("in pieces of %d bytes it was not noticed", size)
		}
	}
}
