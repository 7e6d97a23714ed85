package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
)

// tellWindow says of a control plane that is the only one which copies of its disk pass.
func tellWindow(out io.Writer, nodes []operate.Machine, c *cluster.Cluster, now time.Time) error {
	isPlane := func(n operate.Machine) bool { return n.Role == hullmark.ControlPlane }
	i := slices.IndexFunc(nodes, isPlane)
	if i < 0 || slices.ContainsFunc(nodes[i+1:], isPlane) {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s is the only control plane; of its disk, %s\n", oneLine(nodes[i].Name), c.Epochs[nodes[i].EKID].UndetectedSince(now))
	return err
}
