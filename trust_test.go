package hullmark_test

import (
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

func TestTrustClasses(t *testing.T) {
	classes := []hullmark.TrustClass{hullmark.TrustTPM, hullmark.TrustProvider, hullmark.TrustParavisor, hullmark.TrustConfidential}
	for i, c := range classes {
		for j, other := range classes {
			if c.AtLeast(other) != (i >= j) {
				t.Errorf("%s is at least %s: %v", c, other, c.AtLeast(other))
			}
		}
		if !strings.HasPrefix(c.Promise(), "protects against ") || c.Promise() == hullmark.TrustClass("").Promise() {
			t.Errorf("%s %s", c, c.Promise())
		}
		if hullmark.TrustClass("CVM").AtLeast(c) || hullmark.TrustClass("").AtLeast(c) {
			t.Errorf("an unknown class is at least %s", c)
		}
	}
	if got := hullmark.TrustClass("none").Promise(); got != "protects against nothing" {
		t.Errorf("an unknown class %s", got)
	}
}
