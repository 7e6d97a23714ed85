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
	tests := []hullmark.TrustClass{hullmark.TrustTestParavisor, hullmark.TrustTestConfidential}
	for i, test := range tests {
		if !test.Valid() || !test.AtLeast(test) || !test.AtLeast(hullmark.TrustTPM) || hullmark.TrustTPM.AtLeast(test) || hullmark.TrustProvider.AtLeast(test) {
			t.Errorf("%s is not between tpm and nothing", test)
		}
		if real := classes[2+i]; real.Tested() != test || test.AtLeast(real) || !real.AtLeast(test) {
			t.Errorf("%s and %s", test, real)
		}
		if test.AtLeast(hullmark.TrustProvider) {
			t.Errorf("%s meets a demand for a provider's word", test)
		}
	}
	if !tests[1].AtLeast(tests[0]) || tests[0].AtLeast(tests[1]) {
		t.Error("the classes of tests have no order")
	}
	if got := hullmark.TrustClass("none").Promise(); got != "protects against nothing" {
		t.Errorf("an unknown class %s", got)
	}
}
