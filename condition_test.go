package hullmark

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestConditionShowsItsRootCause(t *testing.T) {
	cause := &Condition{Code: "no-network", Step: "NETWORK", Title: "no interface has an address", Next: "connect one"}
	c := &Condition{Code: "join-unreachable", Step: "ATTEST", Title: "no join service answers", Because: cause}
	if got := c.Error(); !strings.HasPrefix(got, "no-network: ") || !strings.Contains(got, "next: connect one") {
		t.Errorf("got %q", got)
	}
	last := &Condition{Code: "node-missing", Title: "the node has no ticket", Because: c}
	if got := last.Prevented(); last.Root() != cause || len(got) != 2 || got[0] != last.Title || got[1] != c.Title || cause.Prevented() != nil {
		t.Errorf("the cause is %v, and prevents %q", last.Root(), got)
	}
	if !errors.Is(c, cause) {
		t.Error("the cause is not found by errors.Is")
	}
	wrapped := fmt.Errorf("start: %w", c)
	if AsCondition(wrapped, "X", "y") != c {
		t.Error("AsCondition lost the condition")
	}
	if made := AsCondition(errors.New("disk gone"), "DISK", "disk-failed"); made.Code != "disk-failed" || made.Step != "DISK" {
		t.Errorf("got %+v", made)
	}
}

func TestConditionShowsWhatItCompares(t *testing.T) {
	for want, c := range map[string]Condition{
		"c: t; next: n":                     {},
		"c: t (expected a, got b); next: n": {Expected: "a", Got: "b"},
		"c: t (expected a); next: n":        {Expected: "a"},
		"c: t (got b); next: n":             {Got: "b"},
	} {
		c.Code, c.Title, c.Next = "c", "t", "n"
		if got := c.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestUUIDRoundTrip(t *testing.T) {
	const s = "01234567-89ab-4def-8123-456789abcdef"
	u, err := ParseUUID(s)
	if err != nil || u.String() != s {
		t.Fatalf("got %s, %v", u, err)
	}
	for _, bad := range []string{"", s[1:], strings.ToUpper(s), s + "0", strings.ReplaceAll(s, "-", "0")} {
		if _, err := ParseUUID(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestValidNodeName(t *testing.T) {
	for _, good := range []string{"a", "worker-1", strings.Repeat("a", 63), "kubernetes-1"} {
		if !ValidNodeName(good) {
			t.Errorf("%q was refused", good)
		}
	}
	for _, bad := range []string{"", "-a", "a-", "A", "a.b", strings.Repeat("a", 64), "kubernetes", "localhost"} {
		if ValidNodeName(bad) {
			t.Errorf("%q was accepted", bad)
		}
	}
}
