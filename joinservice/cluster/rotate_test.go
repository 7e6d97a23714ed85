package cluster

import (
	"bytes"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// rotatable is a cluster file with a policy.
func rotatable(t *testing.T) *File {
	t.Helper()
	f := newFile(t)
	if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 4}) }); err != nil {
		t.Fatal(err)
	}
	return f
}

// A rotation is in the file, in the policy and in what control planes get, all at once.
func TestRotate(t *testing.T) {
	f := rotatable(t)
	before := contents(t, f.Cluster)
	disk := func(c *Cluster, generation uint32) hullmark.Secret {
		key, err := c.Keys.DiskKey(generation, c.ID(), hullmark.NodeID{1}, hullmark.UUID{2})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	old := disk(f.Cluster, 1)
	for _, change := range []func(*Cluster) error{(*Cluster).RotateKeyset, (*Cluster).RotateOnlineCA} {
		if err := f.Update(change); err != nil {
			t.Fatal(err)
		}
	}
	c := reopen(t, f).Cluster
	policy, err := c.OpenPolicy()
	if err != nil || policy.Version != 6 || policy.Rotation != 2 {
		t.Fatalf("the policy has version %d and rotation %d: %v", policy.Version, policy.Rotation, err)
	}
	after := contents(t, c)
	for path, content := range after {
		changed := !bytes.Equal(content, before[path])
		switch path {
		case stateDir + "keyset.json", stateDir + "online-ca.crt", stateDir + "online-ca.key", stateDir + "policy", stateDir + "rotation":
			if !changed {
				t.Errorf("%s is as before", path)
			}
		default:
			if changed {
				t.Errorf("%s was exchanged", path)
			}
		}
	}
	if string(before[stateDir+"rotation"]) != "0" || string(after[stateDir+"rotation"]) != "2" {
		t.Errorf("the rotation was %s, now it is %s", before[stateDir+"rotation"], after[stateDir+"rotation"])
	}
	held, err := keys.Parse(after[stateDir+"keyset.json"])
	if err != nil || held.Current() != 2 || !disk(c, 1).Equal(old) || disk(c, 2).Equal(old) {
		t.Errorf("control planes hold generation %d, or an old disk's key changed: %v", held.Current(), err)
	}
	if _, err := attest.NewService(c.Root.Certificate, c.Online.Certificate, c.Online.Key); err != nil {
		t.Errorf("the new online CA signs no service: %v", err)
	}
	if err := c.Online.Certificate.CheckSignatureFrom(c.Root.Certificate); err != nil {
		t.Error(err)
	}
}

// The number that says which keys are the newest never falls, not by hand either.
func TestRotationNeverFalls(t *testing.T) {
	f := rotatable(t)
	if err := f.Update((*Cluster).RotateKeyset); err != nil {
		t.Fatal(err)
	}
	if err := f.Cluster.SetPolicy(measurements.Policy{Version: 9}); err == nil {
		t.Error("a policy of a lower rotation was signed")
	}
	if err := f.Cluster.SetPolicy(measurements.Policy{Version: 9, Rotation: 1}); err != nil {
		t.Error(err)
	}
}

// Before there is a control plane there is nothing to exchange, and a keeper has to wrap the new generation before anybody gets it.
func TestRotateRefuses(t *testing.T) {
	f := newFile(t)
	if err := f.Update((*Cluster).RotateKeyset); err == nil || reopen(t, f).Cluster.Keys.Current() != 1 {
		t.Errorf("without a policy: %v", err)
	}
	f = rotatable(t)
	access, credentials := localAccess(t, "k")
	set := func(c *Cluster) error { return c.SetKeeper(t.Context(), access, "local://", credentials.Secret, nil) }
	for _, change := range []func(*Cluster) error{set, (*Cluster).RotateKeyset} {
		if err := f.Update(change); err != nil {
			t.Fatal(err)
		}
	}
	f.Cluster.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443"}
	if _, err := f.Cluster.Files(); err == nil {
		t.Error("control planes got a keyset without its newest generation")
	}
	if err := f.Update(set); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Cluster.Files(); err != nil {
		t.Error(err)
	}
}
