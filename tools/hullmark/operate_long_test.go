//go:build long

package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/canary"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// operatePage follows docs/operate.md: its commands run as they stand, in its order, by a shell. Two machines are doubles with
// TPM emulators, the API is a real one. Nothing but the passphrase's own file shows a key afterwards.
type operatePage struct {
	apiSite
	worker        *nodetest.Node
	workerAddress string
	fresh         []byte // the cluster file before the cluster was begun
	kept          bool   // the worker's record is there
	noted         bool   // the Node of a control plane is there

	watch *canary.Watch // of the machine's processes, from when the keys are made
	first canary.Secrets
}

func TestOperatePage(t *testing.T) {
	root := t.TempDir()
	p := &operatePage{apiSite: apiSite{site: site{dir: filepath.Join(root, "out")}}}
	for _, dir := range []string{"machine", "worker", "../home", "../tmp"} {
		if err := os.MkdirAll(p.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	linkProgram(t, root)
	p.write(t, "passphrase", []byte(rand.Text()+"\n"))
	lines := commandsOf(t, "operate.md")
	if len(lines) < 34 {
		t.Errorf("the page has %d commands", len(lines))
	}
	for _, line := range lines {
		p.before(t, line)
		p.shell(t, root, line)
		p.after(t, line)
	}
	wantSeen(t, p.watch, "bin/hullmark")
	objects := p.objects(t)
	for _, secrets := range []canary.Secrets{p.first, p.canaries(t)} { // Some keys were exchanged.
		search := newSearch(t, secrets)
		wantOnly(t, search.Text("the API's objects", objects))
		wantOnly(t, tree(t, search, root), p.path("passphrase"))
	}
}

// shell runs one line of the page, whose example addresses are where the doubles and the API are.
func (p *operatePage) shell(t *testing.T, root, line string) {
	t.Helper()
	replace := []string{"--node 192.0.2.7", "--node " + p.address, "--node 192.0.2.8", "--node " + p.workerAddress}
	path := os.Getenv("PATH")
	if p.env != nil {
		replace = append(replace, "192.0.2.7:6443", p.env.Address, "--member 192.0.2.7", "--member "+strings.TrimPrefix(p.env.EtcdURL(), "https://"))
		path = p.env.Programs() + ":" + path
	}
	args := []string{"bash", "-eu", "-o", "pipefail", "-c", strings.NewReplacer(replace...).Replace(line)}
	if strings.Contains(line, " recover ") { // It asks on a terminal.
		args = []string{"script", "--quiet", "--return", "--command", args[len(args)-1], "/dev/null"}
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Stdin = root, strings.NewReader("yes\n")
	cmd.Env = append(os.Environ(), "PATH="+path, "OLD="+p.id(p.worker), "NEW="+hullmark.EKID{9}.String(), "DIGEST="+p.digest(t, "first"),
		"HOME="+filepath.Join(root, "home"), "TMPDIR="+filepath.Join(root, "tmp"))
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("$ %s   # %v", line, time.Since(began).Round(100*time.Millisecond))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("said.%d", began.UnixNano())), out, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *operatePage) id(n *nodetest.Node) string {
	if n == nil {
		return ""
	}
	return n.ID.String()
}

func (p *operatePage) digest(t *testing.T, image string) string {
	t.Helper()
	id, err := nodetest.Document(t, image).Digest()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// document makes out/hullmark.json that of an image of a security version.
func (p *operatePage) document(t *testing.T, image string, svn uint32) {
	t.Helper()
	document := nodetest.Document(t, image)
	document.SVN = svn
	text, err := document.Encode()
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, "hullmark.json", text)
}

// before does what the page takes to have happened before a command.
func (p *operatePage) before(t *testing.T, line string) {
	t.Helper()
	switch {
	case strings.Contains(line, "cluster lend"): // The page tells of a cluster that was not begun yet.
		p.write(t, "cluster", p.fresh)
		p.write(t, "lent-passphrase", []byte(rand.Text()+"\n"))
		p.node.Disk, p.node.Epoch = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{9}}, 0
	case strings.Contains(line, " recover "): // the power was cut
		grant := p.node.Ticket().Disk
		p.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	case strings.Contains(line, "--etcd-backup"): // the disk is gone, and the release is one that the policy still takes
		p.node.Disk, p.node.Epoch = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{8}}, 0
		p.document(t, "first", 2)
	case strings.Contains(line, "policy add group"): // the provider's CA
		p.write(t, "ek-ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cluster.Root.Certificate.Raw}))
	case strings.Contains(line, "policy add document"): // a new release was built
		p.document(t, "second", 1)
	case strings.Contains(line, "policy sign"): // somebody edited it
		var policy map[string]any
		text, err := os.ReadFile(p.path("policy.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &policy); err != nil {
			t.Fatal(err)
		}
		policy["version"] = policy["version"].(float64) + 1
		if text, err = json.Marshal(policy); err != nil {
			t.Fatal(err)
		}
		p.write(t, "policy.json", text)
	case strings.Contains(line, "endpoint set") && !p.noted: // kubeadm and the addons left what they leave
		p.noted = true
		p.leaveControlPlane(t)
	case strings.Contains(line, "rotate etcd-ca"): // The page tells of a cluster whose file was never lent.
		p.neverLent(t)
		p.bootPlane(t)
	case strings.Contains(line, "cluster rotate ") && strings.Contains(line, "-ca "): // The control plane was booted since the step before.
		p.bootPlane(t)
	case strings.Contains(line, "forget-root"): // Each machine came back with a configuration that names the new root.
		p.renameRoot(t)
	case strings.Contains(line, "node reset"): // The page tells of a worker anew, which is a member.
		p.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+p.worker.ID.String())
	}
}

// renameRoot boots the machines with the present root in their configurations.
func (p *operatePage) renameRoot(t *testing.T) {
	t.Helper()
	old, root := p.cluster.ID(), p.open(t).ID()
	for n, address := range map[*nodetest.Node]*string{p.node: &p.address, p.worker: &p.workerAddress} {
		n.Config = bytes.ReplaceAll(n.Config, []byte(old.String()), []byte(root.String()))
		n.Reboot(t, "first")
		*address = n.Serve(t, root)
	}
	p.names(t, p.worker.ID, root)
	p.names(t, p.node.ID, root)
}

// neverLent takes out of the cluster file that it was lent.
func (p *operatePage) neverLent(t *testing.T) {
	t.Helper()
	if err := p.openFile(t).Update(func(c *cluster.Cluster) error {
		c.LentFor = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// bootPlane has the control plane's record say that it holds the keys of the newest rotation.
func (p *operatePage) bootPlane(t *testing.T) {
	t.Helper()
	policy, err := p.open(t).OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	if _, version, err := p.client.Load(t.Context(), p.node.ID); err != nil {
		t.Fatal(err)
	} else if version == "" {
		p.keep(t, joinservice.Machine{EKID: p.node.ID, Name: "control-plane-1", Role: hullmark.ControlPlane, State: joinservice.MachineReady})
	}
	p.holds(t, p.node.ID, policy.Rotation)
}

// after brings about what a command is to bring about beyond this machine.
func (p *operatePage) after(t *testing.T, line string) {
	t.Helper()
	switch {
	case strings.Contains(line, "cluster new"):
		p.start(t)
	case strings.Contains(line, "--etcd-backup"):
		announced, sum := p.node.Proceed().GetSnapshot(), sha256.Sum256(p.node.Snapshot())
		if !bytes.Equal(announced.GetSha256(), sum[:]) {
			t.Errorf("the node was sent %d bytes of %x, and announced were %v", len(p.node.Snapshot()), sum, announced)
		}
	case strings.Contains(line, "hullmark init"): // and kubeadm did what it does
		for _, manifest := range p.node.Proceed().GetManifests() {
			if err := p.env.Apply(t.Context(), manifest); err != nil {
				t.Fatal(err)
			}
		}
	case strings.Contains(line, "endpoint set"):
		p.inForce(t, func(m measurements.Policy) bool {
			return m.Endpoint != nil && m.Endpoint.Address == "api.example.net:6443"
		})
	case strings.Contains(line, "policy push") && !p.kept: // The worker joins.
		p.keep(t, joinservice.Machine{
			EKID: p.worker.ID, Name: "worker-1", Role: hullmark.Worker, Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}, State: joinservice.MachineReady,
			Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 1, Issued: 1},
		})
		p.kept = true
	case strings.Contains(line, "rotate root"):
		p.inForce(t, func(m measurements.Policy) bool {
			return m.FirstRoot == p.cluster.ID() && len(m.CrossCertificates) == 2
		})
	case strings.Contains(line, "forget-root"):
		p.inForce(t, func(m measurements.Policy) bool {
			return m.FirstRoot == p.cluster.ID() && len(m.CrossCertificates) == 0
		})
	case strings.Contains(line, "policy sign"):
		p.inForce(t, func(m measurements.Policy) bool {
			return m.MinimumSVN == 2 && len(m.Documents) == 1 && len(m.Members) == 1
		})
	case strings.Contains(line, "node remove"):
		if _, version, err := p.client.Load(t.Context(), hullmark.EKID{9}); version != "" || err != nil {
			t.Errorf("the record is still there: %q, %v", version, err)
		}
	}
}

// inForce checks the cluster file's policy.
func (p *operatePage) inForce(t *testing.T, right func(measurements.Policy) bool) {
	t.Helper()
	policy, err := p.open(t).OpenPolicy()
	if err != nil || !right(policy) {
		t.Errorf("the policy is %+v, %v", policy, err)
	}
}

// start switches two machines of the new cluster on, and its API.
func (p *operatePage) start(t *testing.T) {
	t.Helper()
	p.cluster = p.open(t)
	var err error
	if p.fresh, err = os.ReadFile(p.path("cluster")); err != nil {
		t.Fatal(err)
	}
	root := p.cluster.ID()
	p.node, p.worker = nodetest.New(t, root), nodetest.New(t, root)
	p.node.Boot(t, "first")
	p.worker.Boot(t, "first")
	p.address, p.workerAddress = p.node.Serve(t, root), p.worker.Serve(t, root)
	p.write(t, "machine/ek.id", []byte(p.node.ID.String()+"\n"))
	p.write(t, "worker/ek.id", []byte(p.worker.ID.String()+"\n"))
	p.document(t, "first", 1)
	p.first = p.canaries(t)
	p.watch = newSearch(t, p.first).Watch()
	r, err := testenv.StartFor(t.Context(), t.TempDir(), p.cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	p.env = r
	config, err := r.Config(registry.User)
	if err != nil {
		t.Fatal(err)
	}
	if p.client, err = registry.New(config); err != nil {
		t.Fatal(err)
	}
}
