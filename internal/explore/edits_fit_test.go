package explore

import "testing"

// Each edit fits the code: one that does not has to follow it.
func TestEditsFit(t *testing.T) {
	for _, c := range append(checks(), check{what: "the fakes"}) {
		if _, err := apply("../..", append(fakes(), c.without...)...); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
