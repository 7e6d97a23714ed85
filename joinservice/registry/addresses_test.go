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

// A Node is gone once this process has seen it so for a while, look by look, by its own clock; what was Ready in between begins
// anew, as does what another replica has seen.
func TestAbsencesAreTimedByOneClock(t *testing.T) {
	now := time.Now()
	a, holder := &absences{now: func() time.Time { return now }}, hullmark.EKID{1}
	long := func(state string, after time.Duration, want bool) {
		t.Helper()
		for ; after > lookPace; after -= lookPace {
			now = now.Add(lookPace)
			for _, due := range a.due() {
				a.saw(due, state)
			}
		}
		now = now.Add(after)
		if got := a.asked(holder, state); got != want {
			t.Errorf("%q after %v: %v", state, after, got)
		}
	}
	long("False since 1", 0, false)
	long("False since 1", claimPatience-1, false)
	long("False since 1", 1, true)
	long("", 0, false)
	long("False since 1", 0, false)
	long("Unknown since 2", lookPace, false)
	long("Unknown since 2", claimPatience-1, false)
	long("Unknown since 2", 1, true)
	if a.asked(hullmark.EKID{2}, "Unknown since 2") {
		t.Error("another machine's absence was counted")
	}
}

// Between two looks that are far apart a Node may have been Ready for a month: that time counts for nothing.
func TestAbsenceIsSeenAsAWhole(t *testing.T) {
	now := time.Now()
	a, victim := &absences{now: func() time.Time { return now }}, hullmark.EKID{9}
	a.asked(victim, "no Node") // It joins: its Node is not registered yet.
	now = now.Add(30 * 24 * time.Hour)
	if a.asked(victim, "no Node") {
		t.Error("its claims yield in the very moment at which its Node is gone")
	}
	if due := a.due(); len(due) != 0 {
		t.Errorf("looked at again at once: %v", due)
	}
	now = now.Add(lookGap)
	if due := a.due(); len(due) != 1 || due[0] != victim {
		t.Errorf("looked at again after a while: %v", due)
	}
	a.saw(victim, "")
	if due := a.due(); len(due) != 0 {
		t.Errorf("a machine that is Ready is looked at: %v", due)
	}
	a.asked(victim, "no Node")
	now = now.Add(lookOn + 1)
	if due := a.due(); len(due) != 0 || len(a.of) != 0 {
		t.Errorf("nobody wants its addresses any more, and it is looked at: %v", due)
	}
}
