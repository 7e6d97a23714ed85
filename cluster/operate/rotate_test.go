package operate

import (
	"errors"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
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

// While a cluster file is lent the exchange of a CA that is in the lent one is not begun, whether the API answers or not. The CA of
// kubelets is for nodes alone, and an exchange that was begun goes on.
func TestLentFileKeepsItsCAs(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	api, err := Connect(&cluster.File{Cluster: c}, APIOptions{Server: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	machine := hullmark.EKID{7}
	for lent, node := range map[bool]*hullmark.EKID{false: nil, true: &machine} {
		c.LentFor = node
		for _, name := range cluster.CANames() {
			_, err := api.Rotate(t.Context(), Rotation(name), RotateOptions{})
			refused := lent && name != cluster.KubeletCA
			if err == nil || errors.Is(err, ErrDenied) != refused || strings.Contains(err.Error(), "is lent, for machine "+machine.String()) != refused {
				t.Errorf("%s, lent %t: %v", name, lent, err)
			}
			if c.Exchange(name) != cluster.ExchangeSteady {
				t.Errorf("%s, lent %t: a step was taken", name, lent)
			}
		}
	}
	if err := c.TrustCA(cluster.EtcdCA); err != nil {
		t.Fatal(err)
	}
	if err := checkLent(c, cluster.EtcdCA); err != nil {
		t.Errorf("an exchange that was begun: %v", err)
	}
}

// A step waits for each control plane whose record says another rotation, and is refused where no record is of a control plane.
func TestControlPlanesThatAreBehind(t *testing.T) {
	plane := func(name string, rotation uint64) joinservice.Machine {
		return joinservice.Machine{Name: name, Role: hullmark.ControlPlane, Rotation: rotation}
	}
	worker := joinservice.Machine{Name: "worker-1", Role: hullmark.Worker}
	behind, err := planesBehind([]joinservice.Machine{plane("held", 2), worker, plane("earlier", 1), plane("none", 0), plane("later", 3)}, 2)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"held": "", "worker-1": "", "earlier": "it holds the keys of rotation 1, not 2", "none": "it holds the keys of rotation 0, not 2", "later": "this cluster file knows of no more than 2",
	} {
		if got := behind[name]; (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for what, machines := range map[string][]joinservice.Machine{"no record": nil, "a worker's record alone": {worker}} {
		if _, err := planesBehind(machines, 0); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "no record of any control plane") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
