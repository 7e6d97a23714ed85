package uki

import "testing"

func TestStubsOfOtherBuilds(t *testing.T) {
	for version, proven := range map[string]bool{
		"252.39-1~deb12u2": true, "254.26-1~bpo12+1": true, "257.13-1~deb13u1": true, "255.4-1~bpo12+1": false, "257-9.el10": false, "257.4-1ubuntu3": false, "258": false,
	} {
		if stub, err := StubOf(version); err != nil || stub.Proven != proven || stub.Version != version {
			t.Errorf("%s: %q, proven %t: %v", version, stub.Version, stub.Proven, err)
		}
	}
	for _, version := range []string{"251.1-1~deb12u1", "259", "", "x"} {
		if _, err := StubOf(version); err == nil {
			t.Errorf("%q: rules were found", version)
		}
	}
}

// TestSidecarsAreLogged holds every archive of every stub to a name that leads back to it.
func TestSidecarsAreLogged(t *testing.T) {
	for major, stub := range stubs {
		for _, s := range stub.Sidecars {
			found, ok := LoggedSidecar(s.Logged)
			if found.Exclude = s.Exclude; !ok || found != s {
				t.Errorf("%d: %q leads to %+v", major, s.Logged, found)
			}
		}
	}
}
