package controlplane

import (
	"strings"
	"testing"
)

// Names that are made here are known by their letters, which those that people make seldom have alone.
func TestNamedBy(t *testing.T) {
	for _, plane := range []string{"c-cp", "a.b", strings.Repeat("p", 63)} {
		for range 200 {
			if name := newName(plane); !namedBy(plane, name) {
				t.Fatalf("%s: %s is not known", plane, name)
			}
		}
	}
	for _, name := range []string{"c-cp-node1", "c-cp-paris", "c-cp-", "c-cp-bcdfgh", "c-cp2-bcdfg", "bcdfg"} {
		if namedBy("c-cp", name) {
			t.Errorf("%s is taken for one that was made here", name)
		}
	}
}
