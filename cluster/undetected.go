package cluster

import (
	"fmt"
	"time"
)

// UndetectedSince says how old a copy of the disk may be without the cluster file noticing. Other control planes' records are
// nearer to the present; a single control plane has its own on the disk that goes back with it.
func (e DiskEpoch) UndetectedSince(now time.Time) string {
	if e.Heard.IsZero() {
		return "the cluster file tells no older copy of it"
	}
	return fmt.Sprintf("the cluster file tells no copy since %s (%s ago), when init or recover saw it last, and of a single control plane nothing else does",
		e.Heard.Format(time.RFC3339), now.Sub(e.Heard).Truncate(time.Second))
}
