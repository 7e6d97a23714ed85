package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// windowOf says since when, and for how long, a copy of a disk could be taken that the cluster file takes for the newest. Other control planes' records
// are nearer to the present; a single control plane has its own on the disk that goes back with it.
func windowOf(known cluster.DiskEpoch, now time.Time) string {
	if known.Heard.IsZero() {
		return "the cluster file tells no older copy of it"
	}
	return fmt.Sprintf("the cluster file tells no copy since %s (%s), when init or recover saw it last, and of a single control plane nothing else does",
		known.Heard.Format(time.RFC3339), ago(known.Heard, now))
}

// tellWindow says of a control plane that is the only one which copies of its disk pass.
func tellWindow(out io.Writer, nodes []listedNode, c *cluster.Cluster, now time.Time) error {
	isPlane := func(n listedNode) bool { return n.Role == hullmark.ControlPlane }
	i := slices.IndexFunc(nodes, isPlane)
	if i < 0 || slices.ContainsFunc(nodes[i+1:], isPlane) {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s is the only control plane; of its disk, %s\n", printable(nodes[i].Name), windowOf(c.Epochs[nodes[i].Node], now))
	return err
}
