package explore

import (
	"slices"
	"testing"
)

// Each edit fits the code: one that does not has to follow it.
func TestEditsFit(t *testing.T) {
	for _, c := range slices.Concat(checks(), updateChecks(), slotChecks(), []check{{what: "the fakes"}}) {
		_, fakes := explorer(c.scenario)
		if _, err := apply("../..", append(fakes, c.without...)...); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
