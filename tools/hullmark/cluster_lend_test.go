package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// lend runs `hullmark cluster lend` for a machine.
func (s *site) lend(t *testing.T, name string, more ...string) (int, string) {
	t.Helper()
	s.write(t, "lent-passphrase", []byte("of whoever borrows it\n"))
	args := []string{
		"cluster", "lend", s.path(name), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"),
		"--lent-passphrase-file", s.path("lent-passphrase"), "--measurements", s.path("document.json"),
	}
	return hullmarkCLI(t, append(args, more...)...)
}

// Who has a file that was lent begins the cluster on the machine that it is for, and the operator goes on with it.
func TestClusterIsBegunByALentFile(t *testing.T) {
	s := newSite(t)
	ekid := s.node.ID.String()
	code, output := s.lend(t, "lent", "--ekid", ekid)
	wantExit(t, code, 0, output)
	back := func() (int, string) {
		return hullmarkCLI(t, "cluster", "take-back", s.path("lent"), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--lent-passphrase-file", s.path("lent-passphrase"))
	}
	code, output = back()
	wantExit(t, code, 0, output, "nothing was begun")
	lent := []string{"--cluster", s.path("lent"), "--passphrase-file", s.path("lent-passphrase")}
	for name, c := range map[string]struct {
		more []string
		says string
	}{
		"another name":    {[]string{"--name", "another"}, "lent"},
		"another machine": {[]string{"--ekid", strings.Repeat("ab", 32)}, "name the right machine"},
		"replaced":        {[]string{"--replace-first", "--name", "another"}, "lent"},
	} {
		code, output = s.init(t, append(lent, c.more...)...)
		wantExit(t, code, exitFailed, name+": "+output, c.says)
	}
	if s.node.Ticket() != nil {
		t.Fatal("the node was given a ticket")
	}
	code, output = s.init(t, lent...)
	wantExit(t, code, 0, output, "control-plane-1 is Ready")
	code, output = back()
	wantExit(t, code, 0, output, "runs on "+ekid)
	if c := s.open(t); c.First == nil || c.First.EKID != s.node.ID || c.Initialised == nil || c.Settings == nil {
		t.Errorf("the cluster file holds %+v", c.First)
	}
	first := s.node.Ticket()
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: first.Disk.UUID, Generation: first.Disk.Generation, Owner: first.Disk.Owner}
	code, output = s.init(t)
	wantExit(t, code, 0, output)
	code, output = s.lend(t, "again", "--ekid", ekid)
	wantExit(t, code, exitFailed, output, "has begun")
	if _, err := os.Stat(s.path("again")); err == nil {
		t.Error("a refused file was made")
	}
}

// A file that is sealed to a program is for that alone; the operator takes it back without a passphrase. The node is told what the
// infrastructure calls it.
func TestClusterLendToARecipient(t *testing.T) {
	s := newSite(t)
	borrower, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	lend := func(more ...string) (int, string) {
		args := []string{
			"cluster", "lend", s.path("lent"), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--measurements", s.path("document.json"),
			"--ekid", s.node.ID.String(), "--provider-id", "rack://7/1",
		}
		return hullmarkCLI(t, append(args, more...)...)
	}
	code, output := lend("--recipient", "age1nobody", "--for", "fleet/prod")
	wantExit(t, code, exitUsage, output, "--recipient")
	code, output = lend("--recipient", borrower.Recipient().String())
	wantExit(t, code, exitUsage, output, "--for")
	code, output = lend("--for", "fleet/prod", "--lent-passphrase-file", s.path("passphrase"))
	wantExit(t, code, exitUsage, output, "add --recipient")
	code, output = lend("--recipient", borrower.Recipient().String(), "--for", "fleet/prod", "--lent-passphrase-file", s.path("passphrase"))
	wantExit(t, code, exitUsage, output, "passphrase")
	if s.open(t).LentFor != nil {
		t.Error("a refused call lent it")
	}
	code, output = lend("--recipient", borrower.Recipient().String(), "--for", "fleet/prod")
	wantExit(t, code, 0, output)
	sealed, err := os.ReadFile(s.path("lent"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.OpenSealed(sealed, borrower, onDisk(s.path("lent")))
	if err != nil {
		t.Fatal(err)
	}
	if err := operate.Init(t.Context(), file, operate.InitOptions{
		Target:   operate.Target{Node: operate.Node{Address: s.address, Wait: time.Minute}, Anchor: verifier.Anchor{EKID: &s.node.ID}},
		Document: nodetest.Document(t, "image"), Name: "control-plane-1", Endpoint: "127.0.0.1:6443",
		Kubernetes: operate.Kubernetes{Flannel: true, PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"), ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12")},
	}); err != nil {
		t.Fatal(err)
	}
	if documents := string(s.node.Proceed().GetKubeadmDocuments()); !strings.Contains(documents, "rack://7/1") {
		t.Errorf("the kubelet is not told of the provider ID: %s", documents)
	}
	code, output = hullmarkCLI(t, "cluster", "take-back", s.path("lent"), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output, "runs on "+s.node.ID.String())
}

func TestClusterNewWithAuthorities(t *testing.T) {
	s := newSite(t)
	code, output := hullmarkCLI(t, "cluster", "new", s.path("new"), "--passphrase-file", s.path("passphrase"), "--pki", t.TempDir())
	wantExit(t, code, exitFailed, output, "--pki", "sa.key")
	if _, err := os.Stat(s.path("new")); err == nil {
		t.Error("a refused file was made")
	}
	key, err := x509.MarshalECPrivateKey(s.cluster.ServiceAccount)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "sa.key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}))
	code, output = hullmarkCLI(t, "cluster", "new", s.path("new"), "--passphrase-file", s.path("passphrase"), "--pki", s.dir)
	wantExit(t, code, 0, output, "sa", "cluster root")
}

// onDisk is a file as the place of a lent cluster file.
type onDisk string

func (o onDisk) Replace(encrypted []byte) error { return os.WriteFile(string(o), encrypted, 0o600) }

func TestClusterLendRefuses(t *testing.T) {
	s := newSite(t)
	ekid, other := s.node.ID.String(), strings.Repeat("cd", 32)
	code, output := s.lend(t, "lent", "--ekid", ekid)
	wantExit(t, code, 0, output)
	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"a second machine":     {exitFailed, "--replace-first", []string{"--ekid", other, "--name", "cp-2"}},
		"no machine":           {exitUsage, "--ekid", []string{"--ekid", "12"}},
		"no name":              {exitUsage, "--name", []string{"--ekid", ekid, "--name", "A_B"}},
		"another's name":       {exitFailed, "name the right machine", []string{"--ekid", ekid, "--name", "taken"}},
		"a file that is there": {exitFailed, "exists", []string{"--ekid", ekid}},
	} {
		file := "out-" + strings.ReplaceAll(name, " ", "-")
		if name == "a file that is there" {
			file = "lent"
		}
		if name == "another's name" {
			s.member(t, "taken")
		}
		code, output := s.lend(t, file, c.args...)
		wantExit(t, code, c.code, name+": "+output, c.says)
	}
	code, output = s.lend(t, "second", "--ekid", other, "--name", "cp-2", "--replace-first")
	wantExit(t, code, 0, output)
	code, output = hullmarkCLI(t, "cluster", "take-back", s.path("lent"), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--lent-passphrase-file", s.path("lent-passphrase"))
	wantExit(t, code, exitFailed, output, "given up")
}

// member names a machine in the policy.
func (s *site) member(t *testing.T, name string) {
	t.Helper()
	if err := s.update(t, func(c *cluster.Cluster) error {
		policy, err := c.OpenPolicy()
		if err != nil {
			return err
		}
		policy.Version++
		policy.Members = append(policy.Members, measurements.Member{EKID: hullmark.EKID{9}, Role: hullmark.ControlPlane, Name: name})
		return c.SetPolicy(policy)
	}); err != nil {
		t.Fatal(err)
	}
}
