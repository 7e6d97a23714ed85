//go:build browser

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/cluster/report"
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
	ctx, said := newBrowser(t)
	for _, width := range []int64{320, 390, 800, 1250, 1800} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprintf("%d-%s", width, scheme), func(t *testing.T) {
				look(t, ctx, width, scheme, file)
				wantVisible(t, ctx, "h1", "1 of 3 nodes are not what they should be")
				wantVisible(t, ctx, ".facts", "version 3")
				wantVisible(t, ctx, ".changes", "policy version: 3, before 2")
				wantVisible(t, ctx, ".register.differs .cause", "measurement-mismatch")
				wantVisible(t, ctx, ".register.not-covered .cause", "certificate ends in")
				wantCount(t, ctx, ".tile", 3)
				wantCount(t, ctx, ".register.equal > details[open]", 0)
				wantReadable(t, ctx)
			})
		}
	}
	if messages := said(); len(messages) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(messages, "\n"))
	}
}
