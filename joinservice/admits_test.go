package joinservice_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// What its kubelet's certificates hang on: a machine of its own rule is admitted as long as that rule is what it was.
func TestMemberIsAdmittedAsRecorded(t *testing.T) {
	s := newSite(t)
	m := s.join(t)
	if err := s.policy.Admits(m); err != nil || m.EKCertificate != nil {
		t.Fatalf("a member that joined: %v", err)
	}
	stranger := m
	stranger.EKID = hullmark.EKID{9}
	if err := s.policy.Admits(stranger); err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("a stranger's record: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*measurements.Policy)
		says   string
	}{
		"its rule is removed": {func(p *measurements.Policy) { p.Members = nil }, "no more"},
		"another name": {func(p *measurements.Policy) {
			p.Members = []measurements.Member{{EKID: m.EKID, Role: hullmark.Worker, Name: "worker-2"}}
		}, "worker-2 by now"},
		"another role": {func(p *measurements.Policy) {
			p.Members = []measurements.Member{{EKID: m.EKID, Role: hullmark.ControlPlane, Name: m.Name}}
		}, "control-plane"},
		"its name, of another machine": {func(p *measurements.Policy) {
			p.Members = []measurements.Member{{EKID: hullmark.EKID{9}, Role: hullmark.Worker, Name: m.Name}}
		}, "no more"},
		"as it was": {func(p *measurements.Policy) { p.Members = []measurements.Member{worker(m.EKID)} }, ""},
	} {
		s.accept(t, c.change, "image")
		err := s.policy.Admits(m)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
		wantRules(t, s, m, err)
	}
}

// A machine of a group is held to the group as it is now, by its certificate in the record.
func TestGroupsMachineIsAdmittedAsRecorded(t *testing.T) {
	s, p := groupSite(t)
	s.node.EditHello = p.vouch(t, mine)
	m := s.join(t)
	if err := s.policy.Admits(m); err != nil {
		t.Fatal(err)
	}
	groups := func(change func(*measurements.Group)) func(*measurements.Policy) {
		return func(policy *measurements.Policy) {
			g := p.group("cloud")
			change(&g)
			policy.Groups, policy.Denied = []measurements.Group{g}, nil
		}
	}
	for name, c := range map[string]struct {
		change func(*measurements.Policy)
		legal  bool
	}{
		"no group":             {func(policy *measurements.Policy) { policy.Groups = nil }, false},
		"denied":               {func(policy *measurements.Policy) { policy.Denied = []hullmark.EKID{m.EKID} }, false},
		"another authority":    {groups(func(g *measurements.Group) { g.Authorities = newProvider(t, true).group("cloud").Authorities }), false},
		"another subject":      {groups(func(g *measurements.Group) { g.Subject[0].Value = "their-project" }), false},
		"a group of that name": {groups(func(g *measurements.Group) { g.Name = "other" }), false},
		"a longer list":        {groups(func(g *measurements.Group) { g.Max = 9 }), true},
		"one more authority": {groups(func(g *measurements.Group) {
			g.Authorities = append(g.Authorities, newProvider(t, true).named(t, "newer").certificate.Raw)
		}), true},
		"a rule of the machine": {func(policy *measurements.Policy) {
			policy.Groups, policy.Members = nil, []measurements.Member{{EKID: m.EKID, Role: hullmark.Worker, Name: m.Name}}
		}, true},
	} {
		s.accept(t, groups(func(*measurements.Group) {}), "image") // as at first
		s.accept(t, func(policy *measurements.Policy) { policy.Members = nil; c.change(policy) }, "image")
		err := s.policy.Admits(m)
		if c.legal != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		wantRules(t, s, m, err)
	}
	s.accept(t, func(policy *measurements.Policy) { // as at first, whichever came last
		policy.Members = nil
		groups(func(*measurements.Group) {})(policy)
	}, "image")
	for name, change := range map[string]func(*joinservice.Machine){
		"no certificate":               func(m *joinservice.Machine) { m.EKCertificate = nil },
		"one that cannot be read":      func(m *joinservice.Machine) { m.EKCertificate = m.EKCertificate[1:] },
		"one of somebody else's group": func(m *joinservice.Machine) { m.EKCertificate = newProvider(t, true).certificate.Raw },
		"another name":                 func(m *joinservice.Machine) { m.Name = "cloud-other" },
	} {
		other := m
		change(&other)
		if err := s.policy.Admits(other); err == nil {
			t.Errorf("%s: admitted", name)
		}
	}
}

// wantRules has an operator's program hold a record to the policy in force as the join service did.
func wantRules(t *testing.T, s *site, m joinservice.Machine, want error) {
	t.Helper()
	if err := joinservice.NewRules(s.policy.Policy(), s.cluster.ID()).Admits(m); fmt.Sprint(err) != fmt.Sprint(want) {
		t.Errorf("the policy's rules say %v, the join service %v", err, want)
	}
}
