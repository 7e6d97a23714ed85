package firstboot

import (
	"fmt"
	"syscall"
	"time"
)

// usage says what the agent, without the programs that it runs, has taken of its machine so far (getrusage(2)).
func usage() string {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return err.Error()
	}
	spent := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return fmt.Sprintf("%d ms of processor time, %d MiB of memory at most", spent.Milliseconds(), (u.Maxrss+1023)>>10)
}
