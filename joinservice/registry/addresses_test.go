package registry

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hullmark/hullmark"
)

// Every address has a valid object's name of its own.
func TestAddressObjects(t *testing.T) {
	seen := map[string]bool{}
	for _, text := range []string{"192.0.2.7", "2001:db8::7", "2001:db8::", "::1", "fd00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8:7::", "0.0.0.0"} {
		name := AddressObject(netip.MustParseAddr(text))
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || !strings.HasPrefix(name, AddressObjects) || seen[name] {
			t.Errorf("%s is claimed as %q: %v", text, name, problems)
		}
		seen[name] = true
	}
}

// A Node is gone once this process has seen it so for a while by its own clock; what was Ready in between begins anew, as does what another replica has seen.
func TestAbsencesAreTimedByOneClock(t *testing.T) {
	now := time.Now()
	a, holder := &absences{duration: claimPatience, now: func() time.Time { return now }}, hullmark.NodeID{1}
	long := func(state string, after time.Duration, want bool) {
		t.Helper()
		now = now.Add(after)
		if got := a.long(holder, state); got != want {
			t.Errorf("%q after %v: %v", state, after, got)
		}
	}
	long("False since 1", 0, false)
	long("False since 1", claimPatience-1, false)
	long("False since 1", 1, true)
	long("", 0, false)
	long("False since 1", 0, false)
	long("Unknown since 2", claimPatience-1, false)
	long("Unknown since 2", claimPatience, true)
	if a.long(hullmark.NodeID{2}, "Unknown since 2") {
		t.Error("another machine's absence was counted")
	}
}
