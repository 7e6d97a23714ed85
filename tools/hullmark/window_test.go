package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
)

// The list says of a single control plane since when, and how long, a copy of its disk passes; where another one has its
// record, the list's epochs say it.
func TestWindowOfASingleControlPlane(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	plane := operate.Machine{Machine: joinservice.Machine{EKID: hullmark.EKID{1}, Name: "plane", Role: hullmark.ControlPlane}}
	other := operate.Machine{Machine: joinservice.Machine{EKID: hullmark.EKID{2}, Name: "other", Role: hullmark.ControlPlane}}
	worker := operate.Machine{Machine: joinservice.Machine{EKID: hullmark.EKID{3}, Name: "worker", Role: hullmark.Worker}}
	known := &cluster.Cluster{}
	known.KeepEpoch(plane.EKID, cluster.DiskEpoch{Epoch: 3})
	known.Hear(plane.EKID, now.Add(-50*time.Hour))
	for name, c := range map[string]struct {
		nodes []operate.Machine
		file  *cluster.Cluster
		want  string
	}{
		"one":                   {[]operate.Machine{worker, plane}, known, "plane is the only control plane; of its disk, the cluster file tells no copy since 2026-11-21T10:00:00Z (50h0m0s ago)"},
		"one that is not known": {[]operate.Machine{plane, worker}, &cluster.Cluster{}, "the cluster file tells no older copy of it"},
		"two":                   {[]operate.Machine{plane, worker, other}, known, ""},
		"none":                  {[]operate.Machine{worker}, known, ""},
	} {
		var out bytes.Buffer
		if err := tellWindow(&out, c.nodes, c.file, now); err != nil || !strings.Contains(out.String(), c.want) || (c.want == "") != (out.Len() == 0) {
			t.Errorf("%s: %q, %v, want %q", name, out.String(), err, c.want)
		}
	}
}
