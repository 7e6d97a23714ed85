package cluster

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

var changing = []hullmark.Permission{hullmark.MayChange, hullmark.MayLook}

// changes has an operator change the policy in his file.
func changes(f *OperatorFile, edit func(*measurements.Policy)) error {
	policy, err := f.Grant.Known.OpenPolicy()
	if err != nil {
		return err
	}
	policy.Version++
	edit(&policy)
	return f.Update(func(g *Grant) error { return g.ChangePolicy(policy) })
}

// Whoever serves the API has nobody give up what he changed for a policy that is older than what the root signed of those that he knows.
func TestOperatorsChangeIsNotDroppedForAnOlderPolicy(t *testing.T) {
	f := running(t)
	before := f.Cluster.Policy
	dora, _ := operatorFile(t, f, granting("dora", changing))
	base := f.Cluster.Policy
	if err := changes(dora, admitWorker("x")); err != nil {
		t.Fatal(err)
	}
	own := dora.Grant.Known.Policy
	drop := func(policy []byte) error {
		return dora.Update(func(g *Grant) error { return g.Drop(policy, f.Cluster.Documents) })
	}
	for what, policy := range map[string][]byte{"an older one": before, "another cluster's": running(t).Cluster.Policy, "none": nil} {
		if err := drop(policy); err == nil || !bytes.Equal(dora.Grant.Known.Policy, own) || dora.Grant.Follows == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := drop(base); err != nil || !bytes.Equal(dora.Grant.Known.Policy, base) || dora.Grant.Follows != nil {
		t.Errorf("the one that the root signed last: %v", err)
	}
}

func admitWorker(name string) func(*measurements.Policy) {
	return func(p *measurements.Policy) {
		p.Members = append(p.Members, measurements.Member{EKID: hullmark.EKID{byte(len(name)), name[0]}, Role: hullmark.Worker, Name: name})
	}
}

// What an operator changes goes on with the cluster file, which takes it up, and ends with his withdrawal.
func TestOperatorsChangesAreTakenUp(t *testing.T) {
	f := running(t)
	dora, path := operatorFile(t, f, granting("dora", changing))
	erin, _ := operatorFile(t, f, granting("erin", changing))
	if err := dora.Update(func(g *Grant) error { return g.Take(f.Cluster.Policy, f.Cluster.Documents) }); err != nil {
		t.Fatal(err)
	}
	inForce := f.Cluster.Policy
	for _, name := range []string{"x", "yy"} {
		if err := changes(dora, admitWorker(name)); err != nil {
			t.Fatal(err)
		}
	}
	_, read, err := OpenAny(path, secret("his own"))
	if err != nil {
		t.Fatal(err)
	}
	changed := read.Grant.Known
	if !read.Grant.MayReplace(inForce) || read.Grant.MayReplace(changed.Policy) || erin.Grant.MayReplace(inForce) {
		t.Error("which policy he changed is not known")
	}
	for what, edit := range map[string]func(*measurements.Policy){
		"more for himself": func(p *measurements.Policy) {
			p.Operators[0].May = []hullmark.Permission{hullmark.MayChange, hullmark.MayLook, hullmark.MayRecover}
		},
		"a control plane": func(p *measurements.Policy) {
			p.Members = append(p.Members, measurements.Member{EKID: hullmark.EKID{9}, Role: hullmark.ControlPlane, Name: "mine"})
		},
		"a reset": func(p *measurements.Policy) { p.Resets = append(p.Resets, measurements.Reset{EKID: firstMachine}) },
	} {
		if err := changes(read, edit); !errors.Is(err, hullmark.ErrReserved) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if by, err := f.Cluster.Changes(inForce); by != "" || err != nil {
		t.Errorf("his own policy: %q, %v", by, err)
	}
	if by, err := f.Cluster.Changes(changed.Policy); by != "dora" || err != nil {
		t.Fatalf("changed by %q, %v", by, err)
	}
	behind := copyOf(t, f)
	if err := f.Update(func(c *Cluster) error { return c.TakeChanges(changed.Policy, nil) }); err == nil {
		t.Error("changes without their documents are taken up")
	}
	if err := f.Update(func(c *Cluster) error { return c.TakeChanges(changed.Policy, changed.Documents) }); err != nil {
		t.Fatal(err)
	}
	if err := f.Cluster.CheckCopy(changed.Policy, "", false); err != nil {
		t.Errorf("a file that took the changes up: %v", err)
	}
	policy, err := f.Cluster.OpenPolicy()
	if err != nil || len(policy.Members) != 4 {
		t.Fatalf("%d members, %v", len(policy.Members), err)
	}

	// A copy that changed the same policy, and did not take them up.
	raise(t, behind, 2)
	if by, err := behind.Cluster.Changes(changed.Policy); by != "" || err != nil {
		t.Errorf("to a file with changes of its own: %q, %v", by, err)
	}
	if err := behind.Cluster.CheckCopy(changed.Policy, "", false); !errors.Is(err, ErrOlderCopy) || !strings.Contains(err.Error(), "operator dora changed") {
		t.Errorf("a file with changes of its own: %v", err)
	}
	if err := behind.Cluster.CheckCopy(changed.Policy, "", true); err != nil {
		t.Errorf("that goes on: %v", err)
	}

	// Withdrawn, he signs nothing that comes after.
	if err := f.Update(func(c *Cluster) error {
		policy, err := c.OpenPolicy()
		if err != nil {
			return err
		}
		policy.Version++
		policy.Operators = nil
		return c.SetPolicy(policy)
	}); err != nil {
		t.Fatal(err)
	}
	after, err := f.Cluster.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	last := policy
	last.Version = after.Version
	if err := changes(read, func(p *measurements.Policy) { *p = last }); err == nil {
		t.Errorf("he signs version %d", last.Version)
	}
	if err := read.Update(func(g *Grant) error { return g.Drop(f.Cluster.Policy, f.Cluster.Documents) }); err != nil {
		t.Fatal(err)
	}
	if err := read.Update(func(g *Grant) error { return g.Drop(inForce, f.Cluster.Documents) }); err == nil {
		t.Error("he takes an older policy for the newest, with nothing changed")
	}
	if err := changes(read, admitWorker("zzz")); !errors.Is(err, hullmark.ErrReserved) {
		t.Errorf("withdrawn, he changes the policy: %v", err)
	}
	raise(t, f, 2)
	if one, err := f.Cluster.OpenPolicy(); err != nil || one.Version != after.Version+1 {
		t.Errorf("without operators who may change it, version %d follows %d, %v", one.Version, after.Version, err)
	}
}
