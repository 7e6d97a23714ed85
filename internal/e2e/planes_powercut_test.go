//go:build powercut

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// planesDir is where TestPlanes keeps its machines, which its parts go on with.
const planesDir = "planes"

// planes is a cluster that a cluster document describes, of an image that is signed for Secure Boot, in a network that leads nowhere. It
// grows to three control planes.
type planes struct {
	*site
	// first of the site, second and third are the control planes, storage is the worker.
	second, third, storage *powered
}

// A cluster grows to three control planes, and what a cluster document says reaches its machines: of labels, taints, files, hooks and
// kubeadm's documents. Their firmware starts only what is signed, and from their first boot on they reach nothing but each other.
// The second control plane loses its power while it joins, and gets in. Each comes back by the other, and by the operator when both are
// gone; and by one another once there are three.
func TestPlanes(t *testing.T) {
	p := &planes{}
	all := []step{{"first", p.begin}, {"worker", p.work}, {"second", p.joinSecond}, {"third", p.joinThird}}
	steps := chosen(t, all)
	p.site = p.open(t, steps[0].name == all[0].name)
	t.Cleanup(func() { t.Logf("\n%s\n", strings.Join(p.rows, "\n")) })
	if steps[0].name == "third" {
		p.allBack(t, p.first, p.second)
	} else if steps[0].name != "first" {
		p.allBack(t, p.first)
	}
	for _, step := range steps {
		began := time.Now()
		step.do(t)
		t.Logf("part %s: %.0f s", step.name, time.Since(began).Seconds())
	}
	for _, m := range p.all() {
		if m.Machine != nil && !m.ended() {
			if err := m.switchOff(); err != nil {
				t.Error(err)
			}
		}
	}
}

// all are the machines, in the order of their addresses.
func (p *planes) all() []*powered { return []*powered{p.first, p.second, p.third, p.storage} }

// open makes the cluster file and the keys for Secure Boot, or takes those of an earlier run, and describes the machines.
func (p *planes) open(t *testing.T, anew bool) *site {
	dir, err := filepath.Abs(filepath.Join(*powerOut, planesDir))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{bench: bench{out: dir + "-image", dir: dir}, document: filepath.Join(dir, "signed.json")}
	if anew {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		s.newCluster(t, "cluster")
		keys := s.newKeys(t, "keys")
		s.sign(t, s.image(), keys, "signed.raw")
		cli(t, 0, "measure", s.path("signed.raw"), "--firmware", s.ovmf("OVMF_CODE_4M.secboot.fd"), "--vars", filepath.Join(keys, "OVMF_VARS_4M.fd"), "--out", s.document)
	}
	machines := []struct {
		place **powered
		name  string
		cpus  int
	}{{&s.first, "control-plane-1", 2}, {&p.second, "control-plane-2", 2}, {&p.third, "control-plane-3", 2}, {&p.storage, "storage-1", 1}}
	s.open(t, vm.NetworkConfig{Isolated: true}, len(machines))
	text, err := os.ReadFile(s.path("cluster.json"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := hullmark.ParseNodeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range machines {
		machine := s.machine(t, m.name, i, config, m.cpus, 3072)
		machine.config.Image, machine.config.SecureBoot = s.path("signed.raw"), true
		machine.config.Firmware.Code, machine.config.Firmware.Vars = s.ovmf("OVMF_CODE_4M.secboot.fd"), s.path("keys", "OVMF_VARS_4M.fd")
		if !anew {
			machine.config.NodeConfig = s.rendered(t, m.name)
		}
		*m.place = machine
	}
	return s
}

// rendered is the node configuration that was rendered for a machine, with a name server. Without one CoreDNS does not start; this one
// answers nobody here.
func (s *site) rendered(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(s.path("rendered", "nodes", name, "node-config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := hullmark.ParseNodeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	config.NameServers = []string{"10.0.2.3"}
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	return text
}

// render makes policy, kubeadm's documents and node configurations of the cluster document, which names the machines.
func (p *planes) render(t *testing.T) {
	words := map[string]string{"root": p.operator.ID().String(), "kubernetes": kubeadm.Version}
	for _, m := range p.all() {
		m.identify(t, p.site)
		ek, err := m.ek()
		if err != nil {
			t.Fatal(err)
		}
		words[m.name] = ek
	}
	text, err := os.ReadFile(filepath.Join("testdata", "planes", "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	document := os.Expand(string(text), func(word string) string { return words[word] })
	if err := os.WriteFile(p.path("cluster.yaml"), []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	bundle, err := filepath.EvalSymlinks(filepath.Join(p.out, "kubectl"))
	if err != nil {
		t.Fatal(err)
	}
	cli(t, 0, "render", p.path("cluster.yaml"), "--kubeadm", filepath.Join(filepath.Dir(bundle), "kubeadm"), "--out", p.path("rendered"))
	cli(t, 0, append([]string{"policy", "sign", p.path("rendered", "policy.json")}, p.clusterFlags()...)...)
	for _, m := range p.all() {
		m.config.NodeConfig = p.rendered(t, m.name)
	}
}

// begin makes the first control plane.
func (p *planes) begin(t *testing.T) {
	p.render(t)
	p.run(t, "first boot", p.first, nil, func(ctx context.Context) error {
		return p.init(ctx, "--kubeadm", p.path("rendered", "init.yaml"))
	})
	p.checkRegisters(t, p.first)
	p.checkControlPlane(t, p.first)
	p.await(t, "cluster DNS is available", func(ctx context.Context) (bool, error) {
		answer, err := p.ask(ctx, "get", "deployment", "coredns", "--namespace", "kube-system", "-o", "jsonpath={.spec.replicas} {.status.availableReplicas}")
		wanted, available, _ := strings.Cut(answer, " ")
		return wanted != "" && wanted == available, err
	})
}

// work lets the worker join, looks at it, and switches it off: the control planes need the processors.
func (p *planes) work(t *testing.T) {
	p.run(t, "join", p.storage, nil, byItself)
	p.checkRegisters(t, p.storage)
	p.checkNode(t, p.storage, "storage")
	if want := "/etc/kubernetes/site/rack.yaml:rack: 7"; !strings.Contains(p.journal(t, p.storage), want) {
		t.Errorf("the pool's hook did not find the pool's file: its journal has no %q", want)
	}
	p.says(t, p.first, `[{"effect":"NoSchedule","key":"example.com/storage","value":"only"}]`, "get", "node", p.storage.name, "-o", "jsonpath={.spec.taints}")
	if config := p.answer(t, p.first, "get", "--raw", "/api/v1/nodes/"+p.storage.name+"/proxy/configz"); !strings.Contains(config, `"verbosity":3`) {
		t.Errorf("the kubelet does not log as the pool's own JoinConfiguration says: %s", config)
	}
	if err := p.storage.switchOff(); err != nil {
		t.Fatal(err)
	}
}

// joinSecond lets the second control plane lose its power while its kubelet begins, and as a learner of etcd, and get in. Each of the two
// goes, with which etcd has no quorum, and comes back by the other: the second in good order, the first by a power cut. Then all power
// is lost, and the operator recovers the first, through which the second comes back.
func (p *planes) joinSecond(t *testing.T) {
	learns := func(string) bool {
		members, err := p.members(t.Context(), p.first)
		return err == nil && len(members) == 2 && slices.ContainsFunc(members, func(m member) bool { return m.learner })
	}
	p.run(t, "join", p.second, []moment{
		{name: "within kubeadm join", begins: inKubeadm, within: 10 * time.Second, exact: true},
		{name: "as a learner of etcd", begins: learns, exact: true},
	}, byItself)
	p.checkRegisters(t, p.second)
	p.checkControlPlane(t, p.second)
	p.checkMembers(t, p.first, p.second)
	if err := p.second.switchOff(); err != nil {
		t.Fatal(err)
	}
	p.run(t, "reboot", p.second, nil, byItself)
	p.checkMembers(t, p.first, p.second)
	p.await(t, "the join service of the second has read all records", func(context.Context) (bool, error) {
		return strings.Contains(p.journal(t, p.second), "all records were read"), nil
	})
	p.run(t, "reboot", p.first, []moment{{name: "when it is Ready", begins: func(string) bool { return true }, exact: true}}, byItself)
	p.checkMembers(t, p.first, p.second)
	for _, m := range []*powered{p.first, p.second} {
		loss, err := m.cut(p.random)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: its power is cut, as all others': %s", m.name, loss)
	}
	p.allBack(t, p.first, p.second)
}

// joinThird lets the third control plane join. Now each of the others comes back by itself, and etcd goes on meanwhile.
func (p *planes) joinThird(t *testing.T) {
	p.run(t, "join", p.third, nil, byItself)
	p.checkControlPlane(t, p.third)
	p.checkMembers(t, p.first, p.second, p.third)
	for _, m := range []*powered{p.second, p.first} {
		if err := m.switchOff(); err != nil {
			t.Fatal(err)
		}
		p.run(t, "reboot", m, nil, byItself)
	}
	p.checkMembers(t, p.first, p.second, p.third)
}

// allBack switches machines on, of which the operator recovers the first. The others come back by it.
func (p *planes) allBack(t *testing.T, machines ...*powered) {
	t.Helper()
	for _, m := range machines {
		m.switchOn(t, p.operator, nil)
	}
	if err := p.recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		p.awaitReady(t, m)
		p.rows = append(p.rows, fmt.Sprintf("%s came back: %s; Ready in %.0f s", m.name, m.status.story(), time.Since(m.on).Seconds()))
	}
	p.checkMembers(t, machines...)
}

// checkControlPlane holds a control plane to the cluster document, and its API server to answering.
func (p *planes) checkControlPlane(t *testing.T, m *powered) {
	t.Helper()
	p.checkNode(t, m, "control")
	p.says(t, m, "ok", "get", "--raw", "/readyz")
	name := "asked-of-" + m.name
	p.answer(t, m, "get", "configmap", name, "--ignore-not-found")
	logs := p.answer(t, m, "logs", "--namespace", "kube-system", "kube-apiserver-"+m.name)
	if !strings.Contains(logs, `"apiVersion":"audit.k8s.io/v1"`) || !strings.Contains(logs, name) {
		t.Errorf("the API server of %s does not audit as the document says", m.name)
	}
}

// checkNode holds a Node to the cluster document: its labels, and what the user's own KubeletConfiguration says.
func (p *planes) checkNode(t *testing.T, m *powered, part string) {
	t.Helper()
	p.says(t, p.first, part, "get", "node", m.name, "-o", `jsonpath={.metadata.labels.example\.com/part}`)
	p.says(t, p.first, "60", "get", "node", m.name, "-o", "jsonpath={.status.allocatable.pods}")
}

// registerLine is what a hook of the image says of a register.
var registerLine = regexp.MustCompile(`pcr-sha256/(\d+):([0-9A-F]{64})`)

// checkRegisters reads registers of a node that runs, as a hook has shown them after the fuse was blown: the firmware has started a signed
// image by the keys that were enrolled; the configuration is measured; and PCR 15 is what the protocol says.
func (p *planes) checkRegisters(t *testing.T, m *powered) {
	t.Helper()
	text, err := os.ReadFile(p.document)
	if err != nil {
		t.Fatal(err)
	}
	document, err := measurements.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	root := p.operator.ID()
	config := sha256.Sum256(m.config.NodeConfig)
	want := map[string]string{
		"7":  strings.ToUpper(document.Values(pcrs.SHA256)[7].String()),
		"8":  extendedOnce("hullmark/v1/config\x00", config[:]),
		"15": extendedOnce("hullmark/v1/cluster\x00", root[:]),
	}
	for _, found := range registerLine.FindAllStringSubmatch(p.journal(t, m), -1) {
		number, value := found[1], found[2]
		if value != want[number] {
			t.Errorf("%s: PCR %s is %s, want %s", m.name, number, value, want[number])
		}
		t.Logf("%s: PCR %s is %s", m.name, number, value)
		delete(want, number)
	}
	if len(want) > 0 {
		t.Errorf("the hook of %s did not show all registers: %v are missing", m.name, want)
	}
}

// extendedOnce is a register of zeros that was extended by one event's data (TPM 2.0 part 3, TPM2_PCR_Event).
func extendedOnce(label string, data []byte) string {
	event := sha256.Sum256(append([]byte(label), data...))
	value := sha256.Sum256(append(make([]byte, sha256.Size), event[:]...))
	return strings.ToUpper(hex.EncodeToString(value[:]))
}

// member is what etcd says of a member.
type member struct {
	name    string
	learner bool
}

// members asks a control plane's member of etcd for all, as a quorum knows them.
func (p *planes) members(ctx context.Context, m *powered) (found []member, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tls, err := p.operator.EtcdClient(time.Now(), time.Hour)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{"https://" + m.etcd}, TLS: tls, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	for _, each := range list.Members {
		found = append(found, member{each.GetName(), each.GetIsLearner()})
	}
	return found, nil
}

// checkMembers checks that etcd has a member on each of the machines that votes and answers, and no other.
func (p *planes) checkMembers(t *testing.T, machines ...*powered) {
	t.Helper()
	var want []member
	for _, m := range machines {
		want = append(want, member{name: m.name})
	}
	for _, m := range machines {
		p.await(t, fmt.Sprintf("the member of etcd on %s knows %v", m.name, want), func(ctx context.Context) (bool, error) {
			found, err := p.members(ctx, m)
			slices.SortFunc(found, func(a, b member) int { return strings.Compare(a.name, b.name) })
			return slices.Equal(found, want), err
		})
	}
}

// answer asks an API server until it answers.
func (p *planes) answer(t *testing.T, m *powered, args ...string) (answer string) {
	t.Helper()
	p.await(t, m.name+" answers kubectl "+strings.Join(args, " "), func(ctx context.Context) (_ bool, err error) {
		answer, err = p.askAt(ctx, m, args...)
		return err == nil, err
	})
	return answer
}

// says waits until an API server gives the answer that is wanted.
func (p *planes) says(t *testing.T, m *powered, want string, args ...string) {
	t.Helper()
	p.await(t, m.name+" answers "+want+" to kubectl "+strings.Join(args, " "), func(ctx context.Context) (bool, error) {
		answer, err := p.askAt(ctx, m, args...)
		if err == nil && answer != want {
			err = fmt.Errorf("it answers %q", answer)
		}
		return err == nil, err
	})
}

// journal is a node's, of this boot.
func (p *planes) journal(t *testing.T, m *powered) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), append(p.clusterFlags(), "node", "logs", "--node", m.agent)...).Output()
	if err != nil {
		t.Fatalf("the journal of %s: %v", m.name, err)
	}
	return string(out)
}
