package build

import (
	"fmt"
	"strings"
	"testing"
)

// What dpkg says of one package is found among what it says of hundreds.
func TestFailedScript(t *testing.T) {
	var others strings.Builder
	for i := range 300 {
		fmt.Fprintf(&others, "Setting up other-%d (1) ...\n", i)
	}
	log := others.String() + "Setting up unlucky (1.0-1) ...\nno luck today\ndpkg: error processing package unlucky (--configure):\n" +
		" installed unlucky package post-installation script subprocess returned error exit status 7\n" + others.String()
	got := failedScript([]byte(log))
	for _, want := range []string{"Setting up unlucky", "no luck today", "error processing package unlucky", "exit status 7"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n > 16 {
		t.Errorf("%d lines", n)
	}
	if got := failedScript([]byte(others.String())); got != "" {
		t.Errorf("of a log without a failure: %q", got)
	}
}
