package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// newDownSite is a site whose cluster was initialised and then lost its power.
func newDownSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	if code, output := s.init(t); code != 0 {
		t.Fatal(output)
	}
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	s.node.LastBoot = "2026-11-20T04:05:06Z"
	return s
}

// recover runs `hullmark recover` with what every run needs.
func (s *site) recover(t *testing.T, more ...string) (int, string) {
	t.Helper()
	args := []string{"recover", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--node", s.address, "--wait", "5s"}
	return hullmarkCLI(t, append(args, more...)...)
}

func TestRecoverBringsTheControlPlaneBack(t *testing.T) {
	s := newDownSite(t)
	first := s.node.Ticket()
	code, output := s.recover(t, "--yes")
	wantExit(t, code, 0, output, "PCR 4", "equal", "at epoch 1, last boot 2026-11-20T04:05:06Z", "at epoch 1 or later; the cluster file tells no copy since 20", "s ago), when init or recover saw it last", "control-plane-1 is Ready")
	if heard := s.open(t).Epochs[s.node.ID].Heard; time.Since(heard) > time.Hour {
		t.Errorf("the window began at %v", heard)
	}
	ticket := s.node.Ticket()
	if ticket.Kind != hullmark.Recover || ticket.Disk.FormatAllowed || ticket.Disk.Epoch != (hullmark.EpochWindow{Unchecked: true}) || !ticket.Disk.Key.Equal(first.Disk.Key) {
		t.Errorf("the ticket is %+v", ticket)
	}
	if s.node.Epoch != 1 {
		t.Errorf("the disk's epoch went to %d", s.node.Epoch)
	}
	proceed := s.node.Proceed()
	if proceed.GetNodeName() != "control-plane-1" || proceed.GetRole() != string(hullmark.ControlPlane) || len(proceed.GetKubeadmDocuments())+len(proceed.GetManifests()) != 0 {
		t.Errorf("M6 says %s, %s, %d bytes of kubeadm documents, %d manifests", proceed.GetNodeName(), proceed.GetRole(), len(proceed.GetKubeadmDocuments()), len(proceed.GetManifests()))
	}
	want := s.files(t)
	if got := len(proceed.GetFiles()); got != len(want) {
		t.Errorf("M6 brought %d files, want %d", got, len(want))
	}
	for _, file := range proceed.GetFiles() {
		if !bytes.Equal(file.GetContent(), want[file.GetPath()]) {
			t.Errorf("M6 brought another %s", file.GetPath())
		}
	}
}

// A policy's endpoint goes to the control plane that is recovered, whose join service hands it on.
func TestRecoverBringsTheEndpoint(t *testing.T) {
	s := newDownSite(t)
	policy, err := s.open(t).OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	policy.Version++
	policy.Endpoint = &measurements.Endpoint{Address: "api.example.net:6443", Names: []string{"203.0.113.7"}}
	text, err := policy.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "policy.json", text)
	code, output := hullmarkCLI(t, "policy", "sign", s.path("policy.json"), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output)
	code, output = s.recover(t, "--yes")
	wantExit(t, code, 0, output, "control-plane-1 is Ready")
	p := s.node.Proceed()
	if p.GetEndpoint() != policy.Endpoint.Address || !slices.Equal(p.GetNames(), policy.Endpoint.Names) {
		t.Errorf("M6 says %s, %q", p.GetEndpoint(), p.GetNames())
	}
	settings, err := joinservice.ParseSettings(s.files(t)["/var/lib/hullmark/settings.json"])
	if err != nil || settings.ControlPlaneEndpoint != p.GetEndpoint() || !slices.Equal(settings.Names, p.GetNames()) {
		t.Errorf("the settings are %+v, %v", settings, err)
	}
	code, output = hullmarkCLI(t, "cluster", "kubeconfig", s.path("kubeconfig-2"), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output)
	if text, err := os.ReadFile(s.path("kubeconfig-2")); err != nil || !strings.Contains(string(text), "server: https://api.example.net:6443\n") {
		t.Errorf("the kubeconfig names another endpoint: %v", err)
	}
}

// files are those that a control plane of the cluster keeps.
func (s *site) files(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := s.open(t).Files()
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string][]byte{}
	for _, file := range files {
		byPath[file.GetPath()] = file.GetContent()
	}
	return byPath
}

func TestRecoverThenInit(t *testing.T) {
	s := newDownSite(t)
	s.node.Epoch = 7 // Other control planes have let it in six times since.
	code, output := s.recover(t, "--yes", "--ekid", s.node.ID.String(), "--measurements", s.path("document.json"), "-o", "json")
	wantExit(t, code, 0, output, `"accepted": true`, "at epoch 7")
	if known := s.open(t).Epochs[s.node.ID]; known.Disk != s.node.Disk.UUID || known.Epoch != 7 || known.Etcd == (hullmark.EtcdState{}) {
		t.Errorf("the cluster file knows %+v", known)
	}
	code, output = s.init(t)
	wantExit(t, code, 0, output)
	if e := s.node.Ticket().Disk.Epoch; e.Committed != 7 || e.Issued <= 7+1<<20 || s.node.Epoch != e.Issued {
		t.Errorf("init after it gave %+v", e)
	}
}

func TestRecoverRefusesAnOlderDisk(t *testing.T) {
	s := newDownSite(t)
	s.node.Epoch = 0
	code, output := s.recover(t, "--yes")
	wantExit(t, code, exitDenied, output, "rollback-detected", "at epoch 1 or later", "at epoch 0", "--accept-rollback")
	if told := s.node.Denied(); told == nil || told.Code != "rollback-detected" {
		t.Errorf("the node was told %+v", told)
	}
	before := s.open(t).Epochs[s.node.ID]
	code, output = s.recover(t, "--yes", "--accept-rollback")
	wantExit(t, code, 0, output, "as you said", "control-plane-1 is Ready")
	if after := s.open(t).Epochs[s.node.ID]; before.Epoch != 1 || after.Epoch != 0 {
		t.Errorf("the cluster file went from %+v to %+v", before, after)
	}
	code, output = s.recover(t, "--yes")
	wantExit(t, code, 0, output)
}

func TestRecoverRefusesAnotherDisk(t *testing.T) {
	s := newDownSite(t)
	s.node.Disk.UUID, s.node.Epoch = hullmark.UUID{8}, 9
	code, output := s.recover(t, "--yes")
	wantExit(t, code, exitDenied, output, "rollback-detected", "not the state disk that the cluster file knows")
}

func TestRecoverRefuses(t *testing.T) {
	s := newDownSite(t)
	ready := s.node.Disk
	for name, c := range map[string]struct {
		prepare func(*nodetest.Node)
		code    string
	}{
		"a blank disk":                 {func(n *nodetest.Node) { n.Disk = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{9}} }, "disk-not-ready"},
		"another machine's disk":       {func(n *nodetest.Node) { n.Disk.Owner = hullmark.EKID{1} }, "disk-owner"},
		"a disk that was never Ready":  {func(n *nodetest.Node) { n.Unjoined = true }, "not-initialised"},
		"a quote over another channel": {func(n *nodetest.Node) { n.ForeignChannel = true }, "quote-not-bound"},
	} {
		t.Run(name, func(t *testing.T) {
			s.node.Disk, s.node.Unjoined, s.node.ForeignChannel = ready, false, false
			c.prepare(s.node)
			before := s.node.Proceed()
			code, output := s.recover(t, "--yes")
			wantExit(t, code, exitDenied, output, c.code, "next:")
			if s.node.Proceed() != before {
				t.Error("the node was told to go on")
			}
		})
	}
	s.node.Disk, s.node.Unjoined, s.node.ForeignChannel = ready, false, false
	code, output := s.recover(t, "--yes")
	wantExit(t, code, 0, output)
}

// restart gives the site another machine, or the same cluster a machine that booted another image.
func (s *site) restart(t *testing.T, image string) {
	t.Helper()
	disk := s.node.Disk
	s.node = nodetest.New(t, s.cluster.ID())
	s.node.Boot(t, image)
	s.node.Disk, s.node.Epoch = disk, 1
	s.address = s.node.Serve(t, s.cluster.ID())
}

func TestRecoverOfAnotherImage(t *testing.T) {
	s := newDownSite(t)
	s.restart(t, "another")
	if err := s.update(t, func(c *cluster.Cluster) error { return admit(c, s.node.ID, "control-plane-2") }); err != nil {
		t.Fatal(err)
	}
	code, output := s.recover(t, "--yes", "--ekid", s.node.ID.String())
	wantExit(t, code, exitMismatch, output, "PCR 4 (sha256): want", "(node 1) describes")
	if s.node.Ticket() != nil {
		t.Error("a node of another image got a ticket")
	}
}

func TestRecoverOfAStranger(t *testing.T) {
	s := newDownSite(t)
	s.restart(t, "image") // A machine with perfect registers, whose EK no policy names.
	code, output := s.recover(t, "--yes")
	wantExit(t, code, exitDenied, output, "ek-unexpected")
	code, output = s.recover(t, "--yes", "--ekid", s.node.ID.String())
	wantExit(t, code, exitDenied, output, "not-a-member")
	if err := s.update(t, func(c *cluster.Cluster) error { return admit(c, s.node.ID, "control-plane-2") }); err != nil {
		t.Fatal(err)
	}
	code, output = s.recover(t, "--yes")
	wantExit(t, code, exitUsage, output, "--ekid", "control-plane-1", "control-plane-2 "+s.node.ID.String())
	s.node.Disk.Owner = s.node.ID
	code, output = s.recover(t, "--yes", "--ekid", s.node.ID.String())
	wantExit(t, code, 0, output, "knows nothing of this machine's disk", "control-plane-2 is Ready")
	if s.node.Ticket() == nil {
		t.Error("the positive control got no ticket")
	}
}

// update changes the site's cluster file.
func (s *site) update(t *testing.T, change func(*cluster.Cluster) error) error {
	t.Helper()
	file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		return err
	}
	return file.Update(change)
}

// admit makes a machine a control plane.
func admit(c *cluster.Cluster, node hullmark.EKID, name string) error {
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	policy.Version++
	policy.Members = append(policy.Members, measurements.Member{EKID: node, Role: hullmark.ControlPlane, Name: name})
	return c.SetPolicy(policy)
}

func TestRecoverOfAnotherCluster(t *testing.T) {
	s, other := newDownSite(t), newDownSite(t)
	code, output := s.recover(t, "--yes", "--cluster", other.path("cluster"))
	wantExit(t, code, exitDenied, output, "refuses this operator")
}

func TestRecoverReportsTheNodesFailure(t *testing.T) {
	s := newDownSite(t)
	s.node.Fail = &hullmark.Condition{Code: "not-ready", Step: "READY", Title: "it took too long", Next: "try again"}
	code, output := s.recover(t, "--yes")
	wantExit(t, code, exitFailed, output, "not-ready", "step:     READY")
}

func TestRecoverUsage(t *testing.T) {
	s := newDownSite(t)
	document, err := nodetest.Document(t, "another").Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "another.json", document)
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"nobody to ask":        {nil, exitUsage, "--yes"},
		"no EK id":             {[]string{"--yes", "--ekid", "zz"}, exitUsage, "--ekid"},
		"unknown output":       {[]string{"--yes", "-o", "yaml"}, exitUsage, "text or json"},
		"not reached":          {[]string{"--yes", "--node", "127.0.0.1:1", "--wait", "1s"}, exitUnreachable, "not reached"},
		"an unknown document":  {[]string{"--yes", "--measurements", s.path("another.json")}, exitFailed, "does not accept this document"},
		"a document not there": {[]string{"--yes", "--measurements", s.path("absent")}, exitFailed, "absent"},
	} {
		code, output := s.recover(t, c.args...)
		if code != c.code || !strings.Contains(output, c.says) {
			t.Errorf("%s: exit %d, want %d\n%s", name, code, c.code, output)
		}
	}
	fresh := newSite(t)
	code, output := fresh.recover(t, "--yes")
	wantExit(t, code, exitFailed, output, "names no control plane", "hullmark init")
}

func TestAsk(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, " y \n": true, "y": true, "\n": false, "n\n": false, "": false, "yesterday\n": false} {
		var notes bytes.Buffer
		err := ask(strings.NewReader(answer), &notes, "Sure?")
		var condition *hullmark.Condition
		if (err == nil) != want || err != nil && (!errors.As(err, &condition) || condition.Code != "operator-declined") {
			t.Errorf("%q: got %v", answer, err)
		}
		if notes.String() != "Sure? [y/N] " {
			t.Errorf("asked %q", notes.String())
		}
	}
}

func TestInitBringsSettingsAndDocuments(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t, "--control-plane", "api.example:6443", "--profile", "slow")
	wantExit(t, code, 0, output)
	found := map[string][]byte{}
	for _, file := range s.node.Proceed().GetFiles() {
		found[file.GetPath()] = file.GetContent()
	}
	settings, err := joinservice.ParseSettings(found["/var/lib/hullmark/settings.json"])
	if err != nil || !reflect.DeepEqual(settings, joinservice.Settings{ControlPlaneEndpoint: "api.example:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}, Profile: "slow"}) {
		t.Errorf("settings %+v, %v", settings, err)
	}
	policy, err := measurements.OpenPolicy(found["/var/lib/hullmark/policy"], s.cluster.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, accepted := range policy.Documents {
		if !json.Valid(found["/var/lib/hullmark/documents/"+accepted.Document.String()+".json"]) {
			t.Errorf("document %s is missing", accepted.Document)
		}
	}
	if len(policy.Documents) != 1 {
		t.Errorf("the policy accepts %d documents", len(policy.Documents))
	}
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	code, output = s.init(t)
	wantExit(t, code, 0, output)
	if got := s.open(t).Settings; got == nil || !reflect.DeepEqual(*got, settings) {
		t.Errorf("init of a cluster that runs changed its settings to %+v", got)
	}
}

// The newest epoch, with an older copy of etcd's files: init and recover refuse it, and recover goes on only where the operator
// accepts what may be lost.
func TestRecoverOfAForgetfulMember(t *testing.T) {
	s := newDownSite(t)
	full := hullmark.EtcdState{Cluster: 1, Member: 2, Term: 3, Vote: 2, Commit: 90, Last: 100, LastTerm: 3}
	says := full
	s.node.Etcd = func() hullmark.EtcdState { return says }
	err := s.update(t, func(c *cluster.Cluster) error { c.KeepEtcdMember(s.node.ID, full); return nil })
	if err != nil {
		t.Fatal(err)
	}
	says.Last = 99
	code, output := s.recover(t, "--yes")
	wantExit(t, code, exitDenied, output, "rollback-detected", "index 100", "index 99", "--accept-rollback")
	code, output = s.init(t)
	wantExit(t, code, exitDenied, output, "rollback-detected", "--accept-rollback")
	code, output = s.recover(t, "--yes", "--accept-rollback")
	wantExit(t, code, 0, output)
	if got := s.open(t).Epochs[s.node.ID].Etcd; got != says {
		t.Errorf("the cluster file knows %+v", got)
	}
	says = full
	code, output = s.recover(t, "--yes")
	wantExit(t, code, 0, output)
	if got := s.open(t).Epochs[s.node.ID].Etcd; got != full {
		t.Errorf("the cluster file knows %+v", got)
	}
}
