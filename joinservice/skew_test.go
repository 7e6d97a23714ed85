package joinservice_test

import (
	"errors"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm/step"
	"github.com/hullmark/hullmark/measurements"
)

// release returns a version, or none.
func release(t *testing.T, text string) hullmark.Version {
	t.Helper()
	if text == "" {
		return hullmark.Version{}
	}
	v, err := hullmark.ParseVersion(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A ticket is given among versions that work with each other.
func TestAdmitHoldsToTheVersions(t *testing.T) {
	for name, c := range map[string]struct {
		role    hullmark.Role
		image   string
		disk    hullmark.DiskClaim
		servers []string
		refused bool
	}{
		"the only one":                      {hullmark.ControlPlane, "v1.36.3", ready(), nil, false},
		"a control plane one ahead":         {hullmark.ControlPlane, "v1.36.3", ready(), []string{"v1.35.4", "v1.36.3"}, false},
		"one behind":                        {hullmark.ControlPlane, "v1.35.4", ready(), []string{"v1.36.3"}, false},
		"two ahead":                         {hullmark.ControlPlane, "v1.37.0", ready(), []string{"v1.36.3", "v1.35.4"}, true},
		"two behind":                        {hullmark.ControlPlane, "v1.34.1", ready(), []string{"v1.36.3"}, true},
		"one more of the same release":      {hullmark.ControlPlane, "v1.36.3", blank(), []string{"v1.36.3"}, false},
		"one more of another patch":         {hullmark.ControlPlane, "v1.36.3", blank(), []string{"v1.36.3", "v1.36.2"}, true},
		"a worker as old as they":           {hullmark.Worker, "v1.36.3", ready(), []string{"v1.36.2", "v1.36.3"}, false},
		"a worker newer than the oldest":    {hullmark.Worker, "v1.36.3", ready(), []string{"v1.36.3", "v1.35.9"}, true},
		"a new worker that is":              {hullmark.Worker, "v1.36.3", blank(), []string{"v1.35.9"}, true},
		"a worker three behind":             {hullmark.Worker, "v1.33.9", ready(), []string{"v1.36.3"}, false},
		"a worker four behind":              {hullmark.Worker, "v1.32.9", ready(), []string{"v1.36.3"}, true},
		"releases that say nothing":         {hullmark.Worker, "image", ready(), []string{"", ""}, false},
		"a worker that says nothing":        {hullmark.Worker, "image", ready(), []string{"v1.36.3"}, true},
		"a control plane that says nothing": {hullmark.Worker, "v1.36.3", ready(), []string{"v1.36.3", ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAuthorizer(t)
			document := nodetest.Document(t, c.image)
			rule := member("first")
			rule.Role = c.role
			var err error
			if a.Policy, err = joinservice.FirstPolicy(measurements.Policy{}, document, rule); err != nil {
				t.Fatal(err)
			}
			a.Documents = []measurements.Document{document}
			for i, server := range c.servers {
				a.Servers = append(a.Servers, step.Seen{Node: string(rune('a' + i)), Version: release(t, server)})
			}
			kind := hullmark.Rejoin
			if c.disk.State == hullmark.DiskBlank {
				kind = hullmark.Join
			}
			admission, err := a.Admit(kind, claims(t, c.image, c.disk), &joinservice.Record{Disk: disk, Issued: 1})
			var condition *hullmark.Condition
			if c.refused && (!errors.As(err, &condition) || condition.Code != step.CodeSkew || !condition.Retry || condition.Next == "") || !c.refused && err != nil {
				t.Errorf("got %v, want it refused: %v", err, c.refused)
			}
			if c.refused && admission.Ticket.Disk.Key.Len() != 0 {
				t.Error("a refused machine got a key")
			}
		})
	}
}

var plane = hullmark.EKID{0xc0}

// plane records a control plane, as its own ticket has left it.
func (s *site) plane(t *testing.T, change func(*joinservice.Machine)) {
	t.Helper()
	m, v, err := s.records.Load(t.Context(), plane)
	if err != nil {
		t.Fatal(err)
	}
	m.Name, m.Role, m.State = "control-plane-1", hullmark.ControlPlane, joinservice.MachineReady
	change(&m)
	if _, err := s.records.Store(t.Context(), m, v); err != nil {
		t.Fatal(err)
	}
	s.start(t) // A service that has read it before goes by that for a while.
}

// The service goes by what the records say of the control planes that the policy names: by the version that each was admitted with, and of
// a record from before that was kept by its document.
func TestServiceGatesVersions(t *testing.T) {
	s := newSite(t)
	s.accept(t, func(p *measurements.Policy) {
		p.Members = append(p.Members, measurements.Member{EKID: plane, Role: hullmark.ControlPlane, Name: "control-plane-1"}, measurements.Member{EKID: hullmark.EKID{0xc1}, Role: hullmark.ControlPlane, Name: "never-seen"})
	}, "v1.35.4", "v1.36.3")
	s.node.Reboot(t, "v1.36.3")
	s.plane(t, func(m *joinservice.Machine) { m.Kubernetes = release(t, "v1.35.4") })
	s.denied(t, step.CodeSkew, true, "newer than the API server of control-plane-1", "control-plane-1")

	s.plane(t, func(m *joinservice.Machine) { m.Kubernetes = release(t, "v1.36.3") })
	s.node.Reboot(t, "v1.36.3")
	if m := s.join(t); m.Kubernetes != release(t, "v1.36.3") {
		t.Errorf("the record says %v", m.Kubernetes)
	}

	document, err := nodetest.Document(t, "v1.35.4").Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.plane(t, func(m *joinservice.Machine) { m.Kubernetes, m.Document = hullmark.Version{}, document })
	s.node.Reboot(t, "v1.36.3")
	s.reboot()
	s.denied(t, step.CodeSkew, true, "newer than the API server")

	// A document that was withdrawn since says nothing any more; the record does.
	s.accept(t, func(*measurements.Policy) {}, "v1.36.3")
	s.plane(t, func(m *joinservice.Machine) { m.Kubernetes = release(t, "v1.36.1") })
	s.node.Reboot(t, "v1.36.3")
	s.join(t)
}

// A control plane that comes back by another release is known by that at once.
func TestGateFollowsAControlPlane(t *testing.T) {
	s := newSite(t)
	other := nodetest.New(t, s.cluster.ID())
	s.accept(t, func(p *measurements.Policy) {
		p.Members = append(p.Members, measurements.Member{EKID: other.ID, Role: hullmark.ControlPlane, Name: "control-plane-1"})
	}, "v1.35.4", "v1.36.3")
	s.node.Reboot(t, "v1.36.3")
	if _, err := s.records.Store(t.Context(), joinservice.Machine{
		EKID: other.ID, Name: "control-plane-1", Role: hullmark.ControlPlane, Kubernetes: release(t, "v1.35.4"), Record: joinservice.Record{Disk: hullmark.UUID{9}, Committed: 1, Issued: 1},
	}, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.records.Claim(t.Context(), "control-plane-1", other.ID); err != nil {
		t.Fatal(err)
	}
	s.denied(t, step.CodeSkew, true, "newer than the API server", "control-plane-1")
	other.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{9}, Generation: 1, Owner: other.ID}
	other.Epoch = 1
	other.Boot(t, "v1.36.3")
	if err := other.Dial(t.Context(), s.address, s.cluster.ID()); err != nil || other.Denied() != nil {
		t.Fatalf("%v, denied: %v", err, other.Denied())
	}
	s.node.Reboot(t, "v1.36.3")
	s.join(t)
}
