// Package unit speaks to systemd for a program that runs as a unit of it (sd_notify(3)).
package unit

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notify tells systemd a line, such as daemon.SdNotifyReady; without systemd there is nobody to tell.
func Notify(line string) {
	if _, err := daemon.SdNotify(false, line); err != nil {
		fmt.Fprintln(os.Stderr, "notify systemd:", err)
	}
}

// Watchdog tells systemd by notify that the program still runs, twice per interval that the unit sets, until ctx ends. Without an
// interval it returns at once.
func Watchdog(ctx context.Context, notify func(line string)) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		return err
	}
	tick := time.NewTicker(interval / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			notify(daemon.SdNotifyWatchdog)
		}
	}
}
