// Package nodump keeps the memory of a process that holds secrets to itself.
package nodump

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Process makes this process undumpable (PR_SET_DUMPABLE, prctl(2)): no core file is ever made of it, whatever its limits and the
// system's core_pattern are, and only a privileged process may trace it or read its memory. Programs that it starts are as others.
func Process() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep the memory of this process to itself: %w", err)
	}
	return nil
}
