//go:build browser

package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/cluster/report"
	"github.com/hullmark/hullmark/internal/browsertest"
)

// TestReportPageInBrowser opens a cluster's page, as a phone, narrow windows and a wide screen would, by day and by night.
func TestReportPageInBrowser(t *testing.T) {
	r := reported(t)
	earlier := r
	earlier.Policy.Version, earlier.Nodes = 2, r.Nodes[:2]
	page, err := report.Page(r, &earlier)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "page.html")
	write(t, file, page)
	b := browsertest.Start(t)
	for _, width := range browsertest.Widths {
		for _, scheme := range browsertest.Schemes {
			t.Run(fmt.Sprintf("%d-%s", width, scheme), func(t *testing.T) {
				b.Look(t, width, scheme, "file://"+file)
				b.WantVisible(t, "h1", "1 of 3 nodes are not what they should be")
				b.WantVisible(t, ".facts", "version 3")
				b.WantVisible(t, ".changes", "policy version: 3, before 2")
				b.WantVisible(t, ".register.differs .cause", "measurement-mismatch")
				b.WantVisible(t, ".register.not-covered .cause", "certificate ends in")
				b.WantCount(t, ".tile", 3)
				b.WantCount(t, ".register.equal > details[open]", 0)
				b.WantReadable(t)
			})
		}
	}
	b.WantQuiet(t)
	b.WantAsked(t, "file://"+file)
}
