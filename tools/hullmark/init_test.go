package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/pcrs"
)

// site is a cluster, a document and a node that booted it, as an operator has them.
type site struct {
	dir     string
	cluster *cluster.Cluster
	node    *nodetest.Node
	address string
}

func newSite(t *testing.T) *site {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	return newSiteOf(t, c)
}

// newSiteOf is a site of a cluster that was made already.
func newSiteOf(t *testing.T, c *cluster.Cluster) *site {
	t.Helper()
	s := &site{dir: t.TempDir(), cluster: c}
	const cheap = 4 // This passphrase guards nothing.
	if _, err := cluster.Create(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")), s.cluster, cheap); err != nil {
		t.Fatal(err)
	}
	s.node = nodetest.New(t, s.cluster.ID())
	s.node.Boot(t, "image")
	s.address = s.node.Serve(t, s.cluster.ID())
	document, err := nodetest.Document(t, "image").Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "document.json", document)
	s.write(t, "passphrase", []byte("correct horse\n"))
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(s.path(name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *site) open(t *testing.T) *cluster.Cluster {
	t.Helper()
	return s.openFile(t).Cluster
}

func (s *site) openFile(t *testing.T) *cluster.File {
	t.Helper()
	passphrase, err := readPassphraseFile(s.path("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.Open(s.path("cluster"), passphrase)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// init runs `hullmark init` with what every run needs.
func (s *site) init(t *testing.T, more ...string) (int, string) {
	t.Helper()
	args := []string{
		"init", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--node", s.address,
		"--measurements", s.path("document.json"), "--ekid", s.node.ID.String(), "--wait", "5s",
	}
	return hullmarkCLI(t, append(args, more...)...)
}

// hullmarkCLI runs the program in this process and returns its exit code and all that it said.
func hullmarkCLI(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var output bytes.Buffer
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(&output)
	root.SetErr(&output)
	err := root.ExecuteContext(t.Context())
	if err == nil {
		return 0, output.String()
	}
	return exitCode(err), output.String() + err.Error()
}

func wantExit(t *testing.T, code, want int, output string, contains ...string) {
	t.Helper()
	if code != want {
		t.Errorf("exit %d, want %d\n%s", code, want, output)
	}
	for _, text := range contains {
		if !strings.Contains(output, text) {
			t.Errorf("the output does not say %q:\n%s", text, output)
		}
	}
}

func TestInitTakesANodeToReady(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t, "--kubeconfig", s.path("admin.conf"))
	wantExit(t, code, 0, output, "PCR 4", "equal", "not against the host", "control-plane-1 is Ready")
	ticket, proceed := s.node.Ticket(), s.node.Proceed()
	if ticket == nil || !ticket.Disk.FormatAllowed || ticket.Disk.Epoch != (hullmark.EpochWindow{Committed: 0, Issued: 1}) {
		t.Fatalf("the ticket is %+v", ticket)
	}
	if !strings.Contains(string(proceed.GetKubeadmDocuments()), "192.0.2.7") {
		t.Error("the kubeadm documents do not name the node's own address")
	}
	if len(proceed.GetFiles()) < 12 || len(proceed.GetManifests()) != 3 {
		t.Errorf("M6 brought %d files and %d manifests", len(proceed.GetFiles()), len(proceed.GetManifests()))
	}
	info, err := os.Stat(s.path("admin.conf"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info, err)
	}
	after := s.open(t)
	if r := after.First; r == nil || r.Committed != 1 || r.Issued != 1 || after.Initialised == nil {
		t.Errorf("the cluster file holds %+v", after.First)
	}
	s.comeBack(t, ticket)
}

// comeBack powers the node off and runs init again: the same disk opens with the same key.
func (s *site) comeBack(t *testing.T, first *hullmark.Ticket) {
	t.Helper()
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: first.Disk.UUID, Generation: first.Disk.Generation, Owner: first.Disk.Owner}
	code, output := s.init(t)
	wantExit(t, code, 0, output)
	again := s.node.Ticket()
	if !again.Disk.Key.Equal(first.Disk.Key) || again.Disk.FormatAllowed {
		t.Error("the second ticket has another key, or allows formatting")
	}
	if e := again.Disk.Epoch; e.Committed != 1 || e.Issued < 1<<20 {
		t.Errorf("the second ticket's epoch is %+v", again.Disk.Epoch)
	}
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{9}}
	code, output = s.init(t)
	wantExit(t, code, exitDenied, output, "disk-replaced", "--new-disk")
}

func TestInitDryRunGivesNothing(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t, "--dry-run", "-o", "json")
	wantExit(t, code, 0, output)
	var r operate.Report
	if err := json.NewDecoder(strings.NewReader(output[strings.Index(output, "{"):])).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if !r.Accepted || len(r.Registers) != 15 || s.node.Ticket() != nil || s.open(t).First != nil {
		t.Errorf("accepted %v, %d registers, ticket %v", r.Accepted, len(r.Registers), s.node.Ticket())
	}
}

func TestInitOfAnotherImage(t *testing.T) {
	s := newSite(t)
	document, err := nodetest.Document(t, "another").Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "document.json", document)
	for _, more := range [][]string{nil, {"--dry-run"}} {
		code, output := s.init(t, more...)
		wantExit(t, code, exitMismatch, output, "PCR 4 (sha256): want", "differs")
	}
	if s.node.Ticket() != nil || s.open(t).First != nil {
		t.Error("a node of another image got a ticket, or a record")
	}
}

func TestInitDenies(t *testing.T) {
	s := newSite(t)
	for name, c := range map[string]struct {
		prepare func(*nodetest.Node)
		code    string
	}{
		"a quote over another channel": {func(n *nodetest.Node) { n.ForeignChannel = true }, "quote-not-bound"},
		"changed register values":      {func(n *nodetest.Node) { n.EditProof = func(p *wire.Proof) { p.PcrValues[0] ^= 1 } }, "quote-digest"},
		"another version":              {func(n *nodetest.Node) { n.EditHello = func(h *wire.Hello) { h.Version = 9 } }, "version-unsupported"},
		"a ready disk without record": {func(n *nodetest.Node) {
			n.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{7}, Generation: 1, Owner: s.node.ID}
		}, "record-missing"},
		"another machine's disk": {func(n *nodetest.Node) {
			n.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{7}, Generation: 1, Owner: hullmark.EKID{1}}
		}, "disk-owner"},
	} {
		t.Run(name, func(t *testing.T) {
			s.node.EditHello, s.node.EditProof, s.node.ForeignChannel = nil, nil, false
			s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{7}}
			c.prepare(s.node)
			code, output := s.init(t)
			wantExit(t, code, exitDenied, output, c.code, "next:")
			if s.node.Ticket() != nil {
				t.Error("the node got a ticket")
			}
		})
	}
}

func TestInitOfAnotherEK(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t, "--ekid", strings.Repeat("ab", 32))
	wantExit(t, code, exitDenied, output, "ek-unexpected")
	if told := s.node.Denied(); told == nil || told.Code != "denied" || strings.Contains(told.Title, "ab") {
		t.Errorf("the machine was told %+v", told)
	}
}

func TestInitReportsTheNodesFailure(t *testing.T) {
	s := newSite(t)
	s.node.Fail = &hullmark.Condition{Code: "kubeadm-failed", Step: "KUBEADM", Title: "it failed", Next: "try again"}
	code, output := s.init(t)
	wantExit(t, code, exitFailed, output, "kubeadm-failed", "step:     KUBEADM", "next:     try again")
	if after := s.open(t); after.Initialised != nil || after.First.Committed != 1 {
		t.Error("a failed init was recorded as finished, or its epoch was lost")
	}
}

func TestInitByAStranger(t *testing.T) {
	s := newSite(t)
	stranger := newSite(t)
	code, output := s.init(t, "--cluster", stranger.path("cluster"))
	wantExit(t, code, exitDenied, output, "refuses this operator")
}

func TestInitOfAnotherFirstNode(t *testing.T) {
	s := newSite(t)
	if code, output := s.init(t); code != 0 {
		t.Fatal(output)
	}
	first := s.node
	s.node = nodetest.New(t, s.cluster.ID())
	s.node.Boot(t, "image")
	s.address = s.node.Serve(t, s.cluster.ID())
	code, output := s.init(t, "--name", "control-plane-2")
	wantExit(t, code, exitDenied, output, "other-first-node", first.ID.String())
	// It may have its rule already, as one of several control planes.
	add := []string{"policy", "add", "member", "--ekid", s.node.ID.String(), "--role", "control-plane", "--name", "control-plane-2"}
	if code, output := hullmarkCLI(t, append(add, "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))...); code != 0 {
		t.Fatal(output)
	}
	code, output = s.init(t, "--name", "control-plane-2", "--replace-first")
	wantExit(t, code, 0, output)
	policy, err := s.open(t).OpenPolicy()
	if err != nil || len(policy.Members) != 1 || policy.Members[0].EKID != s.node.ID || !policy.Denies(first.ID) {
		t.Errorf("the policy is %+v, %v", policy, err)
	}
}

func TestInitNotReached(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t, "--node", "127.0.0.1:1", "--wait", "1s")
	wantExit(t, code, exitUnreachable, output, "not reached within 1s")
}

func TestInitNeedsAPlaceForTheKubeconfig(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t, "--kubeconfig", s.path("absent/kubeconfig"))
	wantExit(t, code, exitFailed, output, "--kubeconfig", "absent")
	if s.node.Ticket() != nil {
		t.Error("the node got a ticket, and its kubeconfig no place")
	}
}

func TestInitUsage(t *testing.T) {
	s := newSite(t)
	for name, more := range map[string][]string{
		"no EK id":        {"--ekid", "zz"},
		"unknown output":  {"-o", "yaml"},
		"no network":      {"--network", "none"},
		"bad pod subnet":  {"--pod-subnet", "x"},
		"unknown profile": {"--profile", "fast"},
		"no DNS label":    {"--name", "Bad_Name"},
		"no such port":    {"--node", "127.0.0.1:99999"},
		"negative wait":   {"--wait", "-1s"},
		"unknown network": {"--network", "other"},
		"bad node name":   {"--endpoint", "no-port"},
		"advertise no IP": {"--advertise-address", "name"},
	} {
		if code, output := s.init(t, more...); code != exitUsage {
			t.Errorf("%s: exit %d, want %d\n%s", name, code, exitUsage, output)
		}
	}
}

func TestNodeVerbs(t *testing.T) {
	s := newSite(t)
	flags := []string{"--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--node", s.address}
	code, output := hullmarkCLI(t, append([]string{"node", "status"}, flags...)...)
	wantExit(t, code, 0, output, `"state": "ATTEST"`)
	code, output = hullmarkCLI(t, append([]string{"node", "logs"}, flags...)...)
	wantExit(t, code, 0, output, "first line\n", "second[2J line")
	if strings.Contains(output, "\x1b") {
		t.Error("an escape character reached the terminal")
	}
}

func TestClusterNew(t *testing.T) {
	s := &site{dir: t.TempDir()}
	s.write(t, "passphrase", []byte("correct horse\n"))
	code, output := hullmarkCLI(t, "cluster", "new", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--node-config", s.path("node.json"))
	root := s.open(t).ID()
	wantExit(t, code, 0, output, root.String())
	text, err := os.ReadFile(s.path("node.json"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := hullmark.ParseNodeConfig(text)
	if err != nil || config.ClusterRoot != root {
		t.Errorf("node config %s: %v", text, err)
	}
	code, output = hullmarkCLI(t, "cluster", "new", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, exitFailed, output, "exists")
}

func TestClusterKubeconfig(t *testing.T) {
	s := newSite(t)
	code, output := hullmarkCLI(t, "cluster", "kubeconfig", s.path("k"), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--endpoint", "192.0.2.1:6443")
	wantExit(t, code, 0, output)
	if text, err := os.ReadFile(s.path("k")); err != nil || !strings.Contains(string(text), "https://192.0.2.1:6443") {
		t.Errorf("kubeconfig %q: %v", text, err)
	}
	// An older one is replaced, and nothing else is.
	for name, want := range map[string]int{"k": 0, "cluster": exitUsage, "passphrase": exitUsage} {
		before, err := os.ReadFile(s.path(name))
		if err != nil {
			t.Fatal(err)
		}
		code, output := hullmarkCLI(t, "cluster", "kubeconfig", s.path(name), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--endpoint", "192.0.2.2:6443")
		wantExit(t, code, want, output)
		after, err := os.ReadFile(s.path(name))
		if err != nil || bytes.Equal(before, after) != (want != 0) || want != 0 && !strings.Contains(output, "no kubeconfig") {
			t.Errorf("%s: %s, %v", name, output, err)
		}
	}
}

func TestReadPassphraseFile(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{"secret\nmore": "secret", "secret": "secret", "secret\r\n": "secret", "": "", "\nx": ""} {
		path := filepath.Join(dir, "p")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readPassphrase(path, io.Discard, "")
		if (err == nil) != (want != "") || string(got.Expose()) != want {
			t.Errorf("%q: got %q, %v", content, got.Expose(), err)
		}
	}
}

// Where there are other control planes, they know how recent a disk has to be: init brings back a single one alone.
func TestInitOfOneOfSeveral(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t)
	wantExit(t, code, 0, output)
	first := s.node.Ticket()
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: first.Disk.UUID, Generation: first.Disk.Generation, Owner: first.Disk.Owner}
	code, output = s.init(t)
	wantExit(t, code, 0, output)
	code, output = hullmarkCLI(t, "policy", "add", "member", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"),
		"--ekid", strings.Repeat("ab", 32), "--name", "control-plane-2", "--role", "control-plane")
	wantExit(t, code, 0, output)
	code, output = s.init(t)
	wantExit(t, code, exitDenied, output, "other-control-planes", "hullmark recover")
	if s.node.Proceed() != nil && len(s.node.Proceed().GetFiles()) > 0 && s.node.Denied() == nil {
		t.Error("the node was let go on")
	}
}

// TestSaveLog takes a node's event log if it leads to what the node quotes, and no other.
func TestSaveLog(t *testing.T) {
	s := newSite(t)
	file := s.path("machine.log")
	log := headerOnly(pcrs.SHA256)
	for _, e := range nodetest.Document(t, "image").Prediction().Log.Events {
		log = appendEvent(log, e)
	}
	s.node.EventLog = appendEvent(log, eventOf(5, pcrs.EvEFIAction, "what never happened"))
	code, output := s.init(t, "--dry-run", "--save-log", file)
	wantExit(t, code, exitFailed, output, "PCR 5: it leads to", "was cut off, or is of another boot")
	if _, err := os.Stat(file); err == nil {
		t.Error("a log that leads elsewhere was written")
	}
	s.node.EventLog = []byte("no log")
	code, output = s.init(t, "--dry-run", "--save-log", file)
	wantExit(t, code, exitFailed, output, "the node's event log: read event log")

	s.node.EventLog = log
	code, output = s.init(t, "--dry-run", "--save-log", file)
	wantExit(t, code, 0, output, "leads to PCR 0 to 7, as the TPM of "+s.node.ID.String(), "enforced: 1,4,7,9,11,12,13;")
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, log) {
		t.Errorf("%d bytes were written, %v", len(got), err)
	}
}

// headerOnly is the beginning of a crypto-agile log with one bank (PFP §10.4.5.1).
func headerOnly(bank pcrs.Bank) []byte {
	spec := append([]byte("Spec ID Event03\x00"), 0, 0, 0, 0, 0, 2, 0, 2)
	spec = binary.LittleEndian.AppendUint32(spec, 1)
	spec = binary.LittleEndian.AppendUint16(spec, uint16(bank))
	spec = append(binary.LittleEndian.AppendUint16(spec, uint16(bank.Size())), 0)
	b := binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(pcrs.EvNoAction))
	b = append(b, make([]byte, pcrs.SHA1.Size())...)
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(spec))), spec...)
}

// appendEvent adds an event to a log with SHA-256 alone; one without data gets what its source names.
func appendEvent(log []byte, e pcrs.Event) []byte {
	data := e.Data
	if data == nil {
		data = []byte(e.From().Name)
	}
	log = binary.LittleEndian.AppendUint32(log, uint32(e.Register))
	log = binary.LittleEndian.AppendUint32(log, uint32(e.Type))
	log = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(log, 1), uint16(pcrs.SHA256))
	log = append(log, e.Digests[pcrs.SHA256]...)
	return append(binary.LittleEndian.AppendUint32(log, uint32(len(data))), data...)
}

func TestInitEnforces(t *testing.T) {
	s := newSite(t)
	code, output := s.init(t, "--enforce", "none")
	wantExit(t, code, 0, output, "enforced: 4,7,9,11,12,13;", "not enforced: PCR 1, which the document predicts (--enforce 1)")
	code, output = s.init(t, "--enforce", "5")
	wantExit(t, code, exitUsage, output, "--enforce 5: the document does not predict it")
	policy, err := s.open(t).OpenPolicy()
	if err != nil || len(policy.Documents) != 1 || len(policy.Documents[0].Enforce) != 0 {
		t.Errorf("%+v, %v", policy.Documents, err)
	}
}
