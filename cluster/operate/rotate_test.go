package operate

import (
	"testing"

	"github.com/hullmark/hullmark/cluster"
)

// People are told of all kinds of keys in one order, and of each CA that is exchanged in steps there is all that they are told of a step.
func TestRotations(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Rotations(", ", " or "), "keyset, online-ca, kubelet-ca, etcd-ca, front-proxy-ca or root"},
		{Rotations("|", "|"), "keyset|online-ca|kubelet-ca|etcd-ca|front-proxy-ca|root"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	for _, name := range cluster.CANames() {
		if r := Rotation(name); !r.Valid() || !r.inSteps() || len(caSteps[name]) != len(caChanges) {
			t.Errorf("%s: valid %t, in steps %t, told of %d steps", name, r.Valid(), r.inSteps(), len(caSteps[name]))
		}
	}
	if Rotation("ca").Valid() || RotateKeyset.inSteps() {
		t.Error("another kind is taken")
	}
}
