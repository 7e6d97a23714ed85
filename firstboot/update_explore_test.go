//go:build explore

package firstboot

import (
	"flag"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/internal/explore/search"
)

var explore = search.Flags(flag.CommandLine)

// TestExplore is a scenario of `make explore`.
func TestExplore(t *testing.T) {
	names := []string{}
	for _, s := range updateScenarios {
		if names = append(names, s.name); s.name != explore.Scenario {
			continue
		}
		left := s.full
		if explore.Small {
			left = s.small
		}
		explore.Print(newExplored(t).machine(explore.Most).Explore(s.name, first(left)))
	}
	if !slices.Contains(names, explore.Scenario) {
		t.Fatalf("no scenario %q, but %q: this test runs inside of `make explore`", explore.Scenario, names)
	}
}
