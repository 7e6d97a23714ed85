package operate

import (
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// A signature that is added to a release, or a release that is added again, changes nothing else of what the policy demands of it.
func TestAddDocumentAgain(t *testing.T) {
	d := nodetest.Document(t, "one")
	demand, key := nodetest.Alice(t)
	signed, err := measurements.Sign(key, d)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		enforce      []pcrs.Register
		attestations [][]byte
		want         []pcrs.Register
		signatures   int
	}{
		"a signature":              {nil, [][]byte{signed}, []pcrs.Register{}, 1},
		"again, and nothing":       {nil, nil, []pcrs.Register{}, 0},
		"what is enforced":         {[]pcrs.Register{1}, nil, []pcrs.Register{1}, 0},
		"what is enforced, signed": {[]pcrs.Register{1}, [][]byte{signed, signed}, []pcrs.Register{1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			policy := measurements.Policy{Version: 1, Builders: demand}
			if _, _, err := AddDocument(d, []pcrs.Register{})(&policy); err != nil {
				t.Fatal(err)
			}
			policy.Documents[0].Trust = hullmark.TrustProvider
			if _, _, err := AddDocument(d, c.enforce, c.attestations...)(&policy); err != nil {
				t.Fatal(err)
			}
			got := policy.Documents[0]
			if len(policy.Documents) != 1 || got.Trust != hullmark.TrustProvider || !slices.Equal(got.Enforce, c.want) || len(got.Signatures) != c.signatures {
				t.Errorf("%+v", policy.Documents)
			}
		})
	}
}

// Whoever was an operator before certificates were revoked is one no more: the API goes by whom the policy names.
func TestRevokeOperatorsWithdrawsThem(t *testing.T) {
	alice := hullmark.Operator{Name: "alice", Key: hullmark.OperatorKey{1}, May: []hullmark.Permission{hullmark.MayLook}}
	for _, operators := range [][]hullmark.Operator{nil, {alice}} {
		policy := measurements.Policy{Version: 7, Operators: operators}
		changed, _, err := RevokeOperators()(&policy)
		if err != nil || policy.OperatorsFrom != 8 || len(policy.Operators) > 0 || strings.Contains(changed, "nobody is an operator") != (len(operators) > 0) {
			t.Errorf("with %d operators: %q, %+v, %v", len(operators), changed, policy, err)
		}
	}
}
