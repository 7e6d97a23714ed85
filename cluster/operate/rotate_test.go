package operate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// People are told of all kinds of keys in one order, and of each CA that is exchanged in steps there is all that they are told of a step.
func TestRotations(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Rotations(", ", " or "), "keyset, online-ca, kubelet-ca, etcd-ca, front-proxy-ca, kubernetes-ca or root"},
		{Rotations("|", "|"), "keyset|online-ca|kubelet-ca|etcd-ca|front-proxy-ca|kubernetes-ca|root"},
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

// Beside control planes the next Kubernetes CA signs no earlier than all workers trust it, and the former one goes no earlier than no
// kubelet is known by a certificate of it. In the end, and before another exchange, all workers trust the present one. A worker without a
// certificate is not waited for, and no control plane is left behind.
func TestNodesThatAreBehind(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	former, now, none := joinservice.AuthorityID(c.Kubernetes.Certificate), time.Now(), hullmark.CADigest{}
	credential := func(issuer string) []joinservice.Credential {
		return []joinservice.Credential{{Fingerprint: "a", Ends: now.Add(time.Hour), Issuer: issuer}}
	}
	for _, step := range []struct {
		do            func(cluster.CAName) error
		workers, ends bool // what the next step waits for
	}{{nil, false, false}, {c.TrustCA, true, false}, {c.SignWithCA, false, true}, {c.DropCA, true, false}} {
		if step.do != nil {
			if err := step.do(cluster.KubernetesCA); err != nil {
				t.Fatal(err)
			}
		}
		policy, err := c.OpenPolicy()
		if err != nil {
			t.Fatal(err)
		}
		committed, present := policy.KubernetesCA, joinservice.AuthorityID(c.Kubernetes.Certificate)
		worker := func(name string, ca hullmark.CADigest, issuer string, ends time.Duration) joinservice.Machine {
			return joinservice.Machine{Name: name, Role: hullmark.Worker, KubernetesCA: ca, Credentials: credential(issuer), CertificateEnds: now.Add(ends)}
		}
		off := worker("off", none, present, -time.Second)
		off.Credentials = nil
		behind := map[string]string{"plane": "it says so already"}
		addNodes(behind, []joinservice.Machine{
			{Name: "plane", Role: hullmark.ControlPlane, Credentials: credential(former)},
			{Name: "other", Role: hullmark.ControlPlane, Credentials: credential(present)},
			worker("booted", committed, present, time.Hour), worker("running", hullmark.CADigest{9}, present, time.Hour), worker("known", committed, "0c", time.Hour), off,
		}, c, committed, now)
		at := c.Exchange(cluster.KubernetesCA)
		for name, want := range map[string]bool{"plane": true, "other": false, "booted": false, "off": false, "known": step.ends} {
			if (behind[name] != "") != want {
				t.Errorf("%s: %s is in the way: %q", at, name, behind[name])
			}
		}
		if want := step.workers || committed == none; (behind["running"] != "") != want {
			t.Errorf("%s: a worker that trusts something else is in the way: %q", at, behind["running"])
		}
		if behind["plane"] != "it says so already" {
			t.Errorf("%s: of the control plane it is said: %q", at, behind["plane"])
		}
	}
	machines := []joinservice.Machine{{Name: "plane", Role: hullmark.ControlPlane}, {Name: "worker-1", Role: hullmark.Worker}}
	if err := checkExcept(machines, []string{"worker-1"}); err != nil {
		t.Error(err)
	}
	if err := checkExcept(machines, []string{"worker-1", "plane"}); !errors.Is(err, ErrUsage) {
		t.Errorf("a control plane is left behind: %v", err)
	}
}
