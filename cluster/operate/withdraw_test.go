package operate

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// A policy that is to be pushed is compared with what machines run and would fall back to.
func TestWithdrawn(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	policy := measurements.Policy{Version: 1}
	var ids []measurements.DocumentID
	for _, image := range []string{"one", "two"} {
		d := nodetest.Document(t, image)
		encoded, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sha256.Sum256(encoded))
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: ids[len(ids)-1]})
		if err := c.SetPolicy(policy, nodetest.Document(t, "one"), d); err != nil {
			t.Fatal(err)
		}
		policy.Version++
	}
	demand, _ := nodetest.Alice(t)
	one, two, gone := nodetest.RootHash("one"), nodetest.RootHash("two"), nodetest.RootHash("gone")
	slots := func(running, first string, a, b hullmark.RootHash) *hullmark.UpdateStatus {
		return &hullmark.UpdateStatus{Running: running, Default: first, A: a, B: b}
	}
	for name, w := range map[string]struct {
		machine       joinservice.Machine
		starts, other bool
		minimum       uint32
		demand        measurements.Builders
	}{
		"both accepted":                       {machine: joinservice.Machine{Document: ids[1], Update: slots("b", "b", one, two)}},
		"no way back":                         {machine: joinservice.Machine{Document: ids[1], Update: slots("b", "b", gone, two)}, other: true},
		"a trial whose fallback is withdrawn": {machine: joinservice.Machine{Document: ids[1], Update: slots("b", "a", gone, two)}, starts: true},
		"it runs what is withdrawn":           {machine: joinservice.Machine{Document: ids[1], Update: slots("a", "a", gone, hullmark.RootHash{})}, starts: true},
		"an empty slot":                       {machine: joinservice.Machine{Document: ids[0], Update: slots("a", "a", one, hullmark.RootHash{})}},
		"a machine that says nothing":         {machine: joinservice.Machine{Document: measurements.DocumentID{9}}, starts: true},
		"one without a ticket":                {machine: joinservice.Machine{}},
		"too few builders":                    {machine: joinservice.Machine{Document: ids[0], Update: slots("a", "a", one, two)}, demand: demand, starts: true, other: true},
		"too few, and it says nothing":        {machine: joinservice.Machine{Document: ids[0]}, demand: demand, starts: true},
		"a higher security version":           {machine: joinservice.Machine{Document: ids[0], Update: slots("a", "a", one, two)}, minimum: 2, starts: true, other: true},
	} {
		p := policy
		p.MinimumSVN, p.Builders = w.minimum, w.demand
		a, err := acceptedBy(p, c)
		if err != nil {
			t.Fatal(err)
		}
		var starts, other bool
		for _, l := range a.leaves(w.machine) {
			starts, other = starts || l.Starts, other || !l.Starts
		}
		if starts != w.starts || other != w.other {
			t.Errorf("%s: %+v", name, a.leaves(w.machine))
		}
	}
}

// A release that too few builders signed is neither ordered, nor taken for another firmware.
func TestTooFewBuilders(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	d := nodetest.Document(t, "one")
	id, err := d.Digest()
	if err != nil {
		t.Fatal(err)
	}
	demand, _ := nodetest.Alice(t)
	p := measurements.Policy{Version: 1, Documents: []measurements.Accepted{{Document: id}}}
	for _, signed := range []bool{true, false} {
		if !signed {
			p.Version, p.Builders = 2, demand
		}
		if err := c.SetPolicy(p, d); err != nil {
			t.Fatal(err)
		}
		_, err := updateOrder(c, hullmark.UpdateStage, &d, []string{"https://release.example"})
		if signed != (err == nil) || !signed && (!errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "not alice")) {
			t.Errorf("signed: %t: %v", signed, err)
		}
	}
	x := exchange{authorizer: joinservice.Authorizer{Policy: p, Documents: []measurements.Document{d}}}
	if says := x.explain(claimsOf(d)).Error(); !strings.Contains(says, "not alice") || strings.Contains(says, "firmware") {
		t.Error(says)
	}
}
