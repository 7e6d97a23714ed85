package cluster

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
)

var firstMachine, otherMachine = hullmark.EKID{1}, hullmark.EKID{2}

// lend lends a cluster for a machine, and returns the file that whoever borrows it opens.
func lend(t *testing.T, f *File, node hullmark.EKID, replace bool) (*File, error) {
	t.Helper()
	var lent *Cluster
	if err := f.Update(func(c *Cluster) (err error) {
		lent, err = c.Lend(Loan{Document: nodetest.Document(t, "image"), Node: node, Name: "cp-" + node.String()[:2], ReplaceFirst: replace})
		return err
	}); err != nil {
		return nil, err
	}
	path := filepath.Join(t.TempDir(), "lent")
	if _, err := Create(path, secret("of whoever borrows it"), lent, cheap); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(path, secret("of whoever borrows it"))
	if err != nil {
		t.Fatal(err)
	}
	return opened, nil
}

func mustLend(t *testing.T, f *File, node hullmark.EKID, replace bool) *File {
	t.Helper()
	lent, err := lend(t, f, node, replace)
	if err != nil {
		t.Fatal(err)
	}
	return lent
}

// begins does with a file what init does.
func begins(f *File, node hullmark.EKID, issued uint64) error {
	return f.Update(func(c *Cluster) error {
		if _, err := c.Record(node); err != nil {
			return err
		}
		c.SetRecord(node, joinservice.Record{Disk: hullmark.UUID{7}, Issued: issued})
		c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443"}
		if err := c.Commit(node, hullmark.UUID{7}, issued, hullmark.EtcdState{}); err != nil {
			return err
		}
		c.Initialised = &node
		return nil
	})
}

// A file that was lent has no root key, and what the root signed for it is good for init of one machine alone.
func TestLentFileSignsNothing(t *testing.T) {
	f := newFile(t)
	private, err := f.Cluster.Root.Key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	lent := mustLend(t, f, firstMachine, false).Cluster
	for name, c := range map[string]*Cluster{"the file": f.Cluster, "the one that was lent": lent} {
		plain, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		var d map[string]any
		if err := json.Unmarshal(plain, &d); err != nil {
			t.Fatal(err)
		}
		if found := anyHolds(d, private); found != (c == f.Cluster) {
			t.Errorf("%s holds the root's key: %v", name, found)
		}
	}
	operator, err := lent.Operator(channel.VerbInit, firstMachine)
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.CheckOperator([]*x509.Certificate{operator.Leaf, lent.Root.Certificate}, f.Cluster.ID()); err != nil {
		t.Error(err)
	}
	scope, err := channel.LeafScope(operator.Leaf)
	if err != nil || scope.Verb != channel.VerbBegin || scope.EKID != firstMachine {
		t.Errorf("%+v, %v", scope, err)
	}
	policy, err := lent.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	if err := lent.SetPolicy(policy, nodetest.Document(t, "image")); err != nil {
		t.Errorf("the policy as it is: %v", err)
	}
	policy.Version++
	for name, refused := range map[string]func() error{
		"another machine": func() error { _, err := lent.Operator(channel.VerbInit, otherMachine); return err },
		"any machine":     func() error { _, err := lent.Operator(channel.VerbInit, hullmark.EKID{}); return err },
		"logs":            func() error { _, err := lent.Operator(channel.VerbLogs, firstMachine); return err },
		"a policy":        func() error { return lent.SetPolicy(policy, nodetest.Document(t, "image")) },
		"another root":    lent.RotateRoot,
		"lending it again": func() error {
			_, err := lent.Lend(Loan{Document: nodetest.Document(t, "image"), Node: firstMachine, Name: "cp-01"})
			return err
		},
		"its own return": func() error { return lent.TakeBack(lent) },
	} {
		if err := refused(); !errors.Is(err, ErrLent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What was done with a lent file is noted in the one that it was lent from, and nothing that is noted there already is lowered.
func TestTakeBack(t *testing.T) {
	f := newFile(t)
	lent := mustLend(t, f, firstMachine, false)
	back := func() error { return f.Update(func(c *Cluster) error { return c.TakeBack(lent.Cluster) }) }
	if err := back(); err != nil || f.Cluster.First != nil {
		t.Fatalf("nothing was begun, but %v, %v", f.Cluster.First, err)
	}
	if err := begins(lent, firstMachine, 1); err != nil {
		t.Fatal(err)
	}
	early := *lent.Cluster
	early.Initialised = nil
	for range 2 { // once more is harmless
		if err := back(); err != nil {
			t.Fatal(err)
		}
	}
	c, l := reopen(t, f).Cluster, lent.Cluster
	if !reflect.DeepEqual(c.First, l.First) || !reflect.DeepEqual(c.Initialised, l.Initialised) || !reflect.DeepEqual(c.Epochs, l.Epochs) || !reflect.DeepEqual(c.Settings, l.Settings) || c.Root.Key == nil {
		t.Errorf("%+v", c)
	}
	for _, replace := range []bool{false, true} {
		for _, node := range []hullmark.EKID{firstMachine, otherMachine} {
			if _, err := lend(t, f, node, replace); err == nil || !strings.Contains(err.Error(), "has begun") {
				t.Errorf("a cluster that has begun was lent for %v: %v", node, err)
			}
		}
	}
	// The operator went on with the file itself; an earlier copy of the lent one comes back.
	if err := begins(f, firstMachine, 2); err != nil {
		t.Fatal(err)
	}
	if err := f.Update(func(c *Cluster) error {
		c.KeepEtcdMember(firstMachine, hullmark.EtcdState{Member: 1, Cluster: 2, Term: 3})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := *reopen(t, f).Cluster
	if err := f.Update(func(c *Cluster) error { return c.TakeBack(&early) }); err != nil {
		t.Fatal(err)
	}
	if got := f.Cluster; !reflect.DeepEqual(got.First, want.First) || !reflect.DeepEqual(got.Initialised, want.Initialised) || !reflect.DeepEqual(got.Epochs, want.Epochs) {
		t.Errorf("an earlier copy changed %+v to %+v", want.First, got.First)
	}
}

// A lent file is the borrower's to write: what cannot have come of init is refused.
func TestTakeBackOfNonsense(t *testing.T) {
	f := newFile(t)
	lent := mustLend(t, f, firstMachine, false)
	if err := begins(lent, firstMachine, 1); err != nil {
		t.Fatal(err)
	}
	other := otherMachine
	for name, change := range map[string]func(c *Cluster){
		"as it is":              func(*Cluster) {},
		"another first node":    func(c *Cluster) { c.First.EKID = other },
		"another that is Ready": func(c *Cluster) { c.Initialised = &other },
		"no ticket":             func(c *Cluster) { c.First.Issued, c.First.Committed = 0, 0 },
		"the last number":       func(c *Cluster) { c.First.Issued = 1<<64 - 1 },
		"a number to come":      func(c *Cluster) { c.First.Committed = 2 },
		"nothing committed":     func(c *Cluster) { c.First.Committed = 0 },
		"no settings":           func(c *Cluster) { c.Settings = nil },
		"no epoch":              func(c *Cluster) { c.Epochs = nil },
		"another disk's epoch": func(c *Cluster) {
			c.Epochs = map[hullmark.EKID]DiskEpoch{firstMachine: {Disk: hullmark.UUID{9}, Epoch: 1}}
		},
	} {
		changed := *lent.Cluster
		first := *changed.First
		changed.First = &first
		change(&changed)
		target := *f.Cluster
		if err := target.TakeBack(&changed); (err == nil) != (name == "as it is") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file is lent for one machine at a time, which no other takes the place of unless it is given up; and then it does not come back.
func TestLendForOneMachine(t *testing.T) {
	f := newFile(t)
	first := mustLend(t, f, firstMachine, false)
	mustLend(t, f, firstMachine, false) // as when the first copy was lost
	mustLend(t, f, firstMachine, true)
	if _, err := lend(t, f, otherMachine, false); err == nil || !strings.Contains(err.Error(), "--replace-first") {
		t.Errorf("lent for two machines: %v", err)
	}
	if _, err := f.Cluster.Record(otherMachine); err == nil {
		t.Error("init by the file itself begins on another machine than it is lent for")
	}
	if err := begins(first, firstMachine, 1); err != nil {
		t.Fatal(err)
	}
	other := mustLend(t, f, otherMachine, true)
	policy, err := other.Cluster.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	if _, member := policy.Member(firstMachine); member || !policy.Denies(firstMachine) {
		t.Error("the machine that was given up is a member")
	}
	if err := f.Update(func(c *Cluster) error { return c.TakeBack(first.Cluster) }); err == nil || !strings.Contains(err.Error(), "given up") {
		t.Errorf("the machine that was given up came back: %v", err)
	}
	if err := begins(other, otherMachine, 1); err != nil {
		t.Error(err)
	}
	if err := f.Update(func(c *Cluster) error { return c.TakeBack(other.Cluster) }); err != nil {
		t.Error(err)
	}
	stranger := newFile(t)
	if err := stranger.Update(func(c *Cluster) error { return c.TakeBack(other.Cluster) }); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("another cluster's file: %v", err)
	}
	if err := f.Update(func(c *Cluster) error { return c.TakeBack(stranger.Cluster) }); err == nil || !strings.Contains(err.Error(), "no file that was lent") {
		t.Errorf("a whole file: %v", err)
	}
	// Another machine takes over the first one's disk.
	third := hullmark.EKID{3}
	if err := f.Update(func(c *Cluster) error { c.Rebind(otherMachine, third); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Cluster.Record(third); err != nil {
		t.Error(err)
	}
}

// A lent file is strictly read: a lease for something else, or beside the root's key, is no file.
func TestLeaseIsStrict(t *testing.T) {
	f := newFile(t)
	lent := mustLend(t, f, firstMachine, false).Cluster
	wide, err := channel.NewOperator(f.Cluster.Root.Certificate, f.Cluster.Root.Key, channel.Scope{Verb: channel.VerbInit, EKID: firstMachine})
	if err != nil {
		t.Fatal(err)
	}
	foreign := newFile(t).Cluster
	for name, change := range map[string]func(c *Cluster){
		"as it is":                  func(*Cluster) {},
		"another verb's":            func(c *Cluster) { c.Lease.Certificate = wide.Leaf },
		"another key's":             func(c *Cluster) { c.Lease.Key = c.Online.Key },
		"of another cluster's root": func(c *Cluster) { c.Root.Certificate = foreign.Root.Certificate },
	} {
		changed, lease := *lent, *lent.Lease
		changed.Lease = &lease
		change(&changed)
		plain, err := changed.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(plain); (err == nil) != (name == "as it is") {
			t.Errorf("%s: %v", name, err)
		}
	}
	plain, err := f.Cluster.encode()
	if err != nil {
		t.Fatal(err)
	}
	leased, err := lent.encode()
	if err != nil {
		t.Fatal(err)
	}
	_, lease, _ := bytes.Cut(leased, []byte(`"lease":`))
	lease, _, _ = bytes.Cut(lease, []byte(`}`))
	both := bytes.Replace(plain, []byte(`"online":`), []byte(`"lease":`+string(lease)+`},"online":`), 1)
	if _, err := decode(both); err == nil || !strings.Contains(err.Error(), "lease") {
		t.Errorf("a lease beside the root's key: %v", err)
	}
}

// secretStore is where a program keeps a file that was lent to it.
type secretStore struct {
	held    []byte
	changed bool
}

func (s *secretStore) Replace(encrypted []byte) error {
	if s.changed {
		return errors.New("somebody changed it")
	}
	s.held = bytes.Clone(encrypted)
	return nil
}

// A file that is sealed to a program is opened by that and by the lender, also after the program wrote it, and by nobody else.
func TestSealedToABorrower(t *testing.T) {
	f := newFile(t)
	borrower, stranger := newIdentity(t), newIdentity(t)
	var lent *Cluster
	if err := f.Update(func(c *Cluster) (err error) {
		lent, err = c.Lend(Loan{Document: nodetest.Document(t, "image"), Node: firstMachine, Name: "cp-01", ProviderID: "rack://1"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sealed")
	if err := CreateSealed(path, borrower.Recipient(), lent); err != nil {
		t.Fatal(err)
	}
	if err := CreateSealed(path+"-whole", borrower.Recipient(), f.Cluster); err == nil {
		t.Error("a file with the root's key was sealed to a borrower")
	}
	if sealed, err := IsSealed(path); err != nil || !sealed {
		t.Errorf("sealed: %v, %v", sealed, err)
	}
	if sealed, err := IsSealed(f.store.(*onDisk).path); err != nil || sealed {
		t.Errorf("the lender's own file is sealed: %v, %v", sealed, err)
	}
	encrypted, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSealed(encrypted, stranger, &secretStore{}); !errors.Is(err, ErrSealed) {
		t.Errorf("a stranger: %v", err)
	}
	store := &secretStore{}
	opened, err := OpenSealed(encrypted, borrower, store)
	if err != nil {
		t.Fatal(err)
	}
	id, err := nodetest.Document(t, "image").Digest()
	if err != nil || opened.Cluster.Lease.Document != id {
		t.Errorf("lent with document %s, want %s, %v", opened.Cluster.Lease.Document, id, err)
	}
	policy, err := opened.Cluster.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	if member, _ := policy.Member(firstMachine); member.ProviderID != "rack://1" {
		t.Errorf("the policy says %+v", member)
	}
	if err := begins(opened, firstMachine, 1); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, store.held, 0o600); err != nil {
		t.Fatal(err)
	}
	back, err := f.Cluster.OpenLent(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Update(func(c *Cluster) error { return c.TakeBack(back.Cluster) }); err != nil || f.Cluster.Initialised == nil {
		t.Errorf("taken back: %v", err)
	}
	if _, err := newFile(t).Cluster.OpenLent(path); err == nil {
		t.Error("another cluster's file opened it")
	}
	before := *opened.Cluster
	if store.changed = true; opened.Update(func(c *Cluster) error { c.First = nil; return nil }) == nil || opened.Cluster.First == nil {
		t.Errorf("what was not stored counts: %+v", before.First)
	}
	for cut := range len(encrypted) {
		if cut%97 != 0 {
			continue
		}
		if _, err := OpenSealed(encrypted[:cut], borrower, store); err == nil {
			t.Errorf("%d of %d bytes were opened", cut, len(encrypted))
		}
	}
}

func newIdentity(t *testing.T) *age.X25519Identity {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return identity
}
