//go:build explore

package update

import (
	"flag"
	"testing"

	"github.com/hullmark/hullmark/internal/explore/search"
)

var explore = search.Flags(flag.CommandLine)

// TestExplore is a scenario of `make explore`.
func TestExplore(t *testing.T) {
	if explore.Scenario != "slots" {
		t.Fatalf("no scenario %q, but slots: this test runs inside of `make explore`", explore.Scenario)
	}
	m, first := newSlotsMachine(t)
	left := fullSlots
	if explore.Small {
		left = smallSlots
	}
	explore.Print(m.explore(first(left), explore.Most))
}
