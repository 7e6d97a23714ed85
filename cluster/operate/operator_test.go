package operate

import (
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// Operators are unbound even where the cluster has no policy, as after a restored backup that may have brought a binding back.
func TestMayHaveBound(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	policy, err := c.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	policy.Version++
	if err := c.SetPolicy(policy); err != nil {
		t.Fatal(err)
	}
	none := c.Policy
	if _, err := c.GrantOperator(cluster.Granting{Name: "alice", May: []hullmark.Permission{hullmark.MayLook}, Ends: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for what, p := range map[string]struct {
		pushed []byte
		want   bool
	}{
		"no policy": {nil, true}, "nonsense": {[]byte("{}"), true}, "one without operators": {none, false}, "one that names alice": {c.Policy, true},
	} {
		if got := mayHaveBound(p.pushed); got != p.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}
