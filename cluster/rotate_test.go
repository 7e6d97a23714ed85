package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/joinservice"
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
		key, err := c.Keys.DiskKey(generation, c.ID(), hullmark.EKID{1}, hullmark.UUID{2})
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
		if want := hullmark.Rotated(path) && path != stateDir+"root.crt" && !strings.HasPrefix(path, pkiDir) && !strings.HasPrefix(path, hullmark.DocumentsFolder) && !without; changed != want {
			t.Errorf("%s was exchanged: %t", path, changed)
		}
	}
	was, err := hullmark.ParseKeyRotation(before[stateDir+"rotation"])
	if err != nil || was.Number != 0 {
		t.Errorf("the rotation was %d: %v", was.Number, err)
	}
	is, err := hullmark.ParseKeyRotation(after[stateDir+"rotation"])
	if err != nil || is.Number != 2 || is.Blind.Equal(was.Blind) {
		t.Errorf("the rotation is %d: %v", is.Number, err)
	}
	content := func(path string) []byte { return after[path] }
	if policy.Keys != hullmark.DigestKeys(is, content) {
		t.Error("the policy commits to other keys than control planes get")
	}
	held, err := keys.Parse(after[stateDir+"keyset.json"])
	if err != nil || held.Current() != 2 || !disk(c, 1).Equal(old) || disk(c, 2).Equal(old) {
		t.Errorf("control planes hold generation %d, or an old disk's key changed: %v", held.Current(), err)
	}
	if _, err := channel.NewService(c.Root.Certificate, c.Online.Certificate, c.Online.Key); err != nil {
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
	if policy, err := reopen(t, f).Cluster.OpenPolicy(); err != nil || policy.Rotation != 1 {
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

// Another root comes with all that it signs, and what is bound to the first one stays.
func TestRotateRoot(t *testing.T) {
	f := rotatable(t)
	before, first := contents(t, f.Cluster), f.Cluster.ID()
	disk := func() hullmark.Secret {
		policy, err := f.Cluster.OpenPolicy()
		if err != nil {
			t.Fatal(err)
		}
		key, err := f.Cluster.Keys.DiskKey(1, policy.First(f.Cluster.ID()), hullmark.EKID{1}, hullmark.UUID{2})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	old := disk()
	pinned := []hullmark.ClusterRoot{first}
	for range hullmark.MaxCrossCertificates {
		if err := f.Update((*Cluster).RotateRoot); err != nil {
			t.Fatal(err)
		}
		f = reopen(t, f)
		pinned = append(pinned, f.Cluster.ID())
		if !disk().Equal(old) {
			t.Error("a disk's key changed")
		}
		obeys(t, f.Cluster, true, pinned...)
	}
	policy, err := f.Cluster.OpenPolicy()
	if err != nil || policy.Version != 6 || policy.Rotation != 2 || policy.FirstRoot != first {
		t.Fatalf("the policy has version %d, rotation %d and first root %s: %v", policy.Version, policy.Rotation, policy.FirstRoot, err)
	}
	for path, content := range contents(t, f.Cluster) {
		want := slices.Contains([]string{"root.crt", "policy", "online-ca.crt", "online-ca.key", "rotation"}, strings.TrimPrefix(path, stateDir))
		if changed := !bytes.Equal(content, before[path]); changed != want {
			t.Errorf("%s was exchanged: %t", path, changed)
		}
	}
	if err := f.Update((*Cluster).RotateRoot); err == nil || !strings.Contains(err.Error(), "hullmark cluster forget-root") {
		t.Errorf("one cross-certificate more than there may be: %v", err)
	}

	for len(pinned) > 1 {
		if err := f.Update((*Cluster).ForgetRoot); err != nil {
			t.Fatal(err)
		}
		f = reopen(t, f)
		obeys(t, f.Cluster, false, pinned[0])
		pinned = pinned[1:]
		obeys(t, f.Cluster, true, pinned...)
	}
	if !disk().Equal(old) {
		t.Error("a disk's key changed when the roots were given up")
	}
	if err := f.Update((*Cluster).ForgetRoot); err == nil {
		t.Error("the present root was given up")
	}
	if err := f.Update((*Cluster).RotateRoot); err != nil {
		t.Error(err)
	}
}

// obeys looks at whether nodes whose configurations name these roots obey the cluster's operator.
func obeys(t *testing.T, c *Cluster, want bool, pinned ...hullmark.ClusterRoot) {
	t.Helper()
	operator, err := c.Operator(channel.VerbInit, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	var chain []*x509.Certificate
	for _, der := range operator.Certificate {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, certificate)
	}
	roots, err := c.Roots()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range pinned {
		if err := channel.CheckOperator(chain, root); (err == nil) != want || slices.Contains(roots, root) != want {
			t.Errorf("a node of root %s: %v; the roots are %v", root, err, roots)
		}
	}
}

// The earlier root's key is nowhere in the file.
func TestRotateRootKeepsNoOldKey(t *testing.T) {
	f := rotatable(t)
	private, err := f.Cluster.Root.Key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	has := func() bool {
		plain, err := f.Cluster.encode()
		if err != nil {
			t.Fatal(err)
		}
		var d map[string]any
		if err := json.Unmarshal(plain, &d); err != nil {
			t.Fatal(err)
		}
		return anyHolds(d, private)
	}
	if !has() {
		t.Fatal("the present root's key is not found")
	}
	if err := f.Update((*Cluster).RotateRoot); err != nil {
		t.Fatal(err)
	}
	f = reopen(t, f)
	if has() {
		t.Error("the earlier root's key is in the file")
	}
}

// anyHolds reports whether a text of a JSON value holds these bytes in base64.
func anyHolds(value any, content []byte) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, e := range v {
			if anyHolds(e, content) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return anyHolds(e, content) })
	case string:
		decoded, err := base64.StdEncoding.DecodeString(v)
		return err == nil && bytes.Contains(decoded, content)
	}
	return false
}

// Only an exchange changes the cross-certificates, not an edited policy.
func TestCrossCertificatesAreNotEdited(t *testing.T) {
	f := rotatable(t)
	if err := f.Update((*Cluster).RotateRoot); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*measurements.Policy){
		"none":               func(p *measurements.Policy) { p.CrossCertificates = nil },
		"another first root": func(p *measurements.Policy) { p.FirstRoot = hullmark.ClusterRoot{1} },
		"others": func(p *measurements.Policy) {
			p.CrossCertificates = [][]byte{p.CrossCertificates[1], p.CrossCertificates[0]}
		},
	} {
		policy, err := f.Cluster.OpenPolicy()
		if err != nil {
			t.Fatal(err)
		}
		policy.Version++
		if err := new(*f.Cluster).SetPolicy(policy); err != nil {
			t.Errorf("the positive control of %s: %v", name, err)
		}
		edit(&policy)
		if err := new(*f.Cluster).SetPolicy(policy); err == nil || !strings.Contains(err.Error(), "cross-certificates") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A keeper's keyset is bound to the first root, and is not wrapped anew.
func TestRotateRootLeavesTheKeeper(t *testing.T) {
	f := rotatable(t)
	access, credentials := localAccess(t, "k")
	set := func(c *Cluster) error {
		return c.SetKeeper(t.Context(), access, "local://", credentials.Secret, nil)
	}
	first := f.Cluster.ID()
	for _, change := range []func(*Cluster) error{set, (*Cluster).RotateRoot, set} {
		if err := f.Update(change); err != nil {
			t.Fatal(err)
		}
		if _, err := access.Load(t.Context(), contents(t, f.Cluster)[stateDir+"keyset.json"], first); err != nil {
			t.Error(err)
		}
	}
}

// Which root the first node's configuration names outlasts what else is recorded of it.
func TestKeepRoot(t *testing.T) {
	node, root := hullmark.EKID{1}, hullmark.ClusterRoot{2}
	f := newFile(t)
	for _, change := range []func(c *Cluster){
		func(c *Cluster) { c.SetRecord(node, joinservice.Record{Issued: 1}); c.KeepRoot(node, root) },
		func(c *Cluster) { c.KeepRoot(hullmark.EKID{9}, hullmark.ClusterRoot{9}) },
		func(c *Cluster) { c.SetRecord(node, joinservice.Record{Issued: 2}) },
		func(c *Cluster) { c.KeepEpoch(node, DiskEpoch{Epoch: 3}) },
	} {
		if err := f.Update(func(c *Cluster) error { change(c); return nil }); err != nil {
			t.Fatal(err)
		}
		if got := reopen(t, f).Cluster.First.Root; got != root {
			t.Errorf("root %s", got)
		}
	}
}
