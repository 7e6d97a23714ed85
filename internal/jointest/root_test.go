package jointest

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice"
)

// comesBack reboots the machine with a configuration that names a root, and returns its record once it is Ready.
func (s *Site) comesBack(t *testing.T, root hullmark.ClusterRoot) joinservice.Machine {
	t.Helper()
	s.Reboot(t, root)
	s.Serve(t)
	end := s.Boot(t)
	s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	end()
	m, _, err := s.Records.Load(t.Context(), s.EKID)
	if err != nil || m.State != joinservice.MachineReady {
		t.Fatalf("the service keeps %+v, %v", m, err)
	}
	return m
}

// A machine that joined before the cluster's root was exchanged comes back with the configuration that it has, and with one
// that names the new root. It opens its disk by the same key. Once the old root is given up, it obeys nobody by the old
// configuration.
func TestRootIsExchanged(t *testing.T) {
	s := New(t, hullmark.Worker)
	s.Serve(t)
	end := s.Boot(t)
	s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	end()
	key, first := s.Disk.Key, s.Cluster.ID()

	signed := s.Service.Policy.Signed()
	s.Cluster.Policy, s.Cluster.Documents = signed.Envelope, signed.Documents
	if err := s.Cluster.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	store, warning, err := joinservice.OpenPolicyStore(s.Cluster.ID(), s.policy(), servicefiles.Plain(filepath.Join(t.TempDir(), "policy")))
	if err != nil || warning != nil {
		t.Fatal(err, warning)
	}
	s.newService(t, store, hullmark.Worker)
	if m := s.comesBack(t, first); m.Root != (hullmark.ClusterRoot{}) || !bytes.Equal(s.Disk.Key, key) {
		t.Errorf("by the old configuration: root %s, the same key: %t", m.Root, bytes.Equal(s.Disk.Key, key))
	}
	if m := s.comesBack(t, s.Cluster.ID()); m.Root != s.Cluster.ID() || !bytes.Equal(s.Disk.Key, key) {
		t.Errorf("by the new configuration: root %s, the same key: %t", m.Root, bytes.Equal(s.Disk.Key, key))
	}

	if err := s.Cluster.ForgetRoot(); err != nil {
		t.Fatal(err)
	}
	if taken, err := store.Offer(s.policy()); !taken || err != nil {
		t.Fatal(taken, err)
	}
	tickets := len(s.Disk.Grants)
	s.Reboot(t, first)
	s.Serve(t)
	end = s.Boot(t)
	d := s.Await(t, "a condition", func(d firstboot.Document) bool { return d.Condition != nil })
	end()
	if c := d.Condition; c.Code != "root-mismatch" || c.Expected != first.String() || c.Got != s.Cluster.ID().String() || c.Retry || d.Ready || len(s.Disk.Grants) != tickets {
		t.Errorf("by a configuration of the root that was given up: %+v, ready %t, %d tickets", c, d.Ready, len(s.Disk.Grants)-tickets)
	}
	if m := s.comesBack(t, s.Cluster.ID()); m.Root != s.Cluster.ID() || !bytes.Equal(s.Disk.Key, key) {
		t.Errorf("by the new configuration, once the old root is given up: root %s, the same key: %t", m.Root, bytes.Equal(s.Disk.Key, key))
	}
}

// policy is the last one that the cluster's root signed.
func (s *Site) policy() joinservice.SignedPolicy {
	return joinservice.SignedPolicy{Envelope: s.Cluster.Policy, Documents: s.Cluster.Documents}
}
