package cluster

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// rotateKeyset is for a file without a keeper.
func rotateKeyset(t *testing.T) func(*Cluster) error {
	return func(c *Cluster) error { return c.RotateKeyset(t.Context(), nil) }
}

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
	for _, change := range []func(*Cluster) error{rotateKeyset(t), (*Cluster).RotateOnlineCA} {
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
		without := strings.HasPrefix(path, stateDir+"keeper.") // There is none.
		if want := (hullmark.Rotated(path) || path == stateDir+"policy") && !without; changed != want {
			t.Errorf("%s was exchanged: %t", path, changed)
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
	if err := f.Update(rotateKeyset(t)); err != nil {
		t.Fatal(err)
	}
	if err := f.Cluster.SetPolicy(measurements.Policy{Version: 9}); err == nil {
		t.Error("a policy of a lower rotation was signed")
	}
	if err := f.Cluster.SetPolicy(measurements.Policy{Version: 9, Rotation: 1}); err != nil {
		t.Error(err)
	}
}

// Before there is a control plane there is nothing to exchange.
func TestRotateNeedsAPolicy(t *testing.T) {
	f := newFile(t)
	if err := f.Update(rotateKeyset(t)); err == nil || reopen(t, f).Cluster.Keys.Current() != 1 {
		t.Errorf("without a policy: %v", err)
	}
}

// A keeper wraps the new generation before anybody is told of it; if it does not, nothing is exchanged.
func TestKeeperWrapsTheNewGeneration(t *testing.T) {
	f := rotatable(t)
	access, credentials := localAccess(t, "k")
	if err := f.Update(func(c *Cluster) error {
		return c.SetKeeper(t.Context(), access, "local://", credentials.Secret, []byte("authority"))
	}); err != nil {
		t.Fatal(err)
	}
	away := keys.Access{Open: func(context.Context, string) (keys.Keeper, error) { return nil, keys.Refused("no") }}
	if err := f.Update(func(c *Cluster) error {
		return c.RotateKeyset(t.Context(), func(Keeper) keys.Access { return away })
	}); err == nil {
		t.Error("the keyset was exchanged without its keeper")
	}
	if policy, err := reopen(t, f).Cluster.OpenPolicy(); err != nil || policy.Rotation != 0 {
		t.Errorf("rotation %d was signed: %v", policy.Rotation, err)
	}
	if err := f.Update(func(c *Cluster) error {
		return c.RotateKeyset(t.Context(), func(k Keeper) keys.Access {
			if !k.Secret.Equal(credentials.Secret) || string(k.CA) != "authority" {
				t.Error("the keeper is shown something else")
			}
			return access
		})
	}); err != nil {
		t.Fatal(err)
	}
	c := reopen(t, f).Cluster
	held, err := access.Load(t.Context(), contents(t, c)[stateDir+"keyset.json"], c.ID())
	if err != nil || held.Current() != 2 {
		t.Errorf("control planes get generation %d: %v", held.Current(), err)
	}
}
