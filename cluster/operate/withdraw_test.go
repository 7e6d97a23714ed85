package operate

import (
	"crypto/sha256"
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
	one, two, gone := nodetest.RootHash("one"), nodetest.RootHash("two"), nodetest.RootHash("gone")
	slots := func(running, first string, a, b hullmark.RootHash) *hullmark.UpdateStatus {
		return &hullmark.UpdateStatus{Running: running, Default: first, A: a, B: b}
	}
	for name, w := range map[string]struct {
		machine       joinservice.Machine
		starts, other bool
		minimum       uint32
	}{
		"both accepted":                       {machine: joinservice.Machine{Document: ids[1], Update: slots("b", "b", one, two)}},
		"no way back":                         {machine: joinservice.Machine{Document: ids[1], Update: slots("b", "b", gone, two)}, other: true},
		"a trial whose fallback is withdrawn": {machine: joinservice.Machine{Document: ids[1], Update: slots("b", "a", gone, two)}, starts: true},
		"it runs what is withdrawn":           {machine: joinservice.Machine{Document: ids[1], Update: slots("a", "a", gone, hullmark.RootHash{})}, starts: true},
		"an empty slot":                       {machine: joinservice.Machine{Document: ids[0], Update: slots("a", "a", one, hullmark.RootHash{})}},
		"a machine that says nothing":         {machine: joinservice.Machine{Document: measurements.DocumentID{9}}, starts: true},
		"one without a ticket":                {machine: joinservice.Machine{}},
		"a higher security version":           {machine: joinservice.Machine{Document: ids[0], Update: slots("a", "a", one, two)}, minimum: 2, starts: true, other: true},
	} {
		p := policy
		p.MinimumSVN = w.minimum
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
