package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
)

// What a machine that is forgotten has still is said, with its end.
func TestRemovalSaysWhatStays(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		role  hullmark.Role
		until time.Time
		says  []string
	}{
		"a certificate that lives": {hullmark.Worker, now.Add(36 * time.Hour), []string{"in 36h0m0s", "renews nothing", "hullmark node remove w1 --gone"}},
		"none":                     {hullmark.Worker, time.Time{}, []string{"no certificate"}},
		"one that has ended":       {hullmark.Worker, now, []string{"no certificate"}},
		"a control plane":          {hullmark.ControlPlane, time.Time{}, []string{"certificates of any name"}},
	} {
		var out bytes.Buffer
		tellRest(&out, operate.Removed{Machine: joinservice.Machine{Name: "w1", Role: c.role}, CertificateEnds: c.until}, now)
		for _, want := range c.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q does not say %q", name, out.String(), want)
			}
		}
	}
}
