//go:build powercut

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/powercut"
	"github.com/hullmark/hullmark/internal/vm"
)

var (
	powerRuns = flag.Int("n", 15, "how many runs to Ready TestPowerCuts does")
	powerSeed = flag.Uint64("seed", 1, "chooses when TestPowerCuts cuts the power, and what is lost")
	powerOut  = flag.String("out", "../../out", "folder with a built image")
)

// readyTime is how long a machine may take from power-on to Ready, where two of them are emulated on a busy machine.
const readyTime = 45 * time.Minute

// site is a cluster whose machines lose their power: a control plane, and workers that join one after the other.
type site struct {
	bench

	// document is what the machines are measured by.
	document string
	random   *rand.Rand
	network  *vm.Network
	operator *cluster.Cluster
	first    *powered
	worker   *powered // the one whose turn it is, if there is one
	workers  int
	// joins is how long kubeadm takes here to join.
	joins  time.Duration
	rows   []string
	inside int // runs that were cut within kubeadm
	cuts   int
}

// moment is when the power goes in a boot. Without watch it is some time, at most within, after begins has become true.
type moment struct {
	name   string
	watch  func(powercut.Record) (cut bool)
	begins func(phase string) bool
	within time.Duration
	// exact cuts the power at once, whether the disk has something to lose or not.
	exact bool
}

// Machines of a cluster lose their power, and with it what they had not flushed: at random moments and at steps of their first
// boot, their join and their reboots. Each comes back as the node that it was, or becomes the one that it was to be, without
// anything but the operator's ordinary init and recover.
func TestPowerCuts(t *testing.T) {
	if *powerRuns < 3 {
		t.Fatal("-n: want at least 3 runs: an init, a join, and a recovery")
	}
	s := newSite(t, "powercut", *powerRuns)
	t.Cleanup(func() { t.Logf("\n%s\n", strings.Join(s.rows, "\n")) })
	s.initRun(t, withinInit)
	for n := 1; n < *powerRuns-1 && !t.Failed(); n++ {
		if n%2 == 1 {
			s.joinRun(t, n/2)
		} else {
			s.rebootRun(t, n/2)
		}
	}
	if !t.Failed() {
		s.settled(t)
		s.recoverRun(t)
	}
	t.Logf("%d runs to Ready, of which %d were cut within kubeadm, %d cuts", len(s.rows), s.inside, s.cuts)
}

// newSite makes a cluster file, and a network for so many machines, in a folder of that name in the one with the image. What is there is
// an earlier campaign's.
func newSite(t *testing.T, name string, machines int) *site {
	dir, err := filepath.Abs(filepath.Join(*powerOut, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	s := &site{bench: bench{out: filepath.Dir(dir), dir: dir}}
	s.document = s.measurements()
	config := s.newCluster(t, "cluster")
	s.open(t, vm.NetworkConfig{}, machines)
	base, err := hullmark.ParseNodeConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	base.Gateway, base.NameServers = "10.0.2.2", []string{"10.0.2.3"}
	s.first = s.machine(t, "control-plane-1", 0, base, 2, 4096)
	return s
}

// open opens the site's cluster file, and starts its network.
func (s *site) open(t *testing.T, c vm.NetworkConfig, machines int) {
	t.Helper()
	s.random, s.joins = rand.New(rand.NewPCG(*powerSeed, 0)), 30*time.Second
	s.operator = s.clusterFile(t)
	c.Dir, c.Tools = s.path("network"), s.tools()
	for i := range machines {
		for _, port := range machinePorts {
			c.Forwards = append(c.Forwards, vm.Forward{Address: machineAddress(i), Guest: port})
		}
	}
	var err error
	if s.network, err = vm.StartNetwork(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// clusterFile reads what the cluster file holds by now.
func (s *site) clusterFile(t *testing.T) *cluster.Cluster {
	t.Helper()
	passphrase, err := os.ReadFile(s.path("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte(strings.TrimSpace(string(passphrase)))))
	if err != nil {
		t.Fatal(err)
	}
	return file.Cluster
}

// machinePorts are those of a machine that are reached from this host: its agent's, its API server's and its member of etcd's.
var machinePorts = []uint16{7443, 6443, 2379}

func machineAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 2, byte(21 + i)}) }

func onHost(f vm.Forward) string { return fmt.Sprintf("127.0.0.1:%d", f.Host) }

// machine describes the i-th machine, which is off.
func (s *site) machine(t *testing.T, name string, i int, c hullmark.NodeConfig, cpus, memory int) *powered {
	t.Helper()
	c.Addresses = []string{machineAddress(i).String() + "/24"}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	config := vm.Config{Dir: s.path(name), Image: s.image(), Networks: []string{s.network.Dir()}, NodeConfig: text}
	config.Tools, config.CPUs, config.MemoryMiB = s.tools(), cpus, memory
	forwards := s.network.Forwards()[len(machinePorts)*i:]
	return &powered{name: name, config: config, agent: onHost(forwards[0]), api: onHost(forwards[1]), etcd: onHost(forwards[2])}
}

// newWorker describes a machine that nobody has seen yet.
func (s *site) newWorker(t *testing.T) *powered {
	t.Helper()
	s.workers++
	base, err := hullmark.ParseNodeConfig(s.first.config.NodeConfig)
	if err != nil {
		t.Fatal(err)
	}
	base.Endpoints = []string{machineAddress(0).String() + ":7444"}
	return s.machine(t, fmt.Sprintf("worker-%d", s.workers), s.workers, base, 1, 2048)
}

// clusterFlags are those of every verb that opens the cluster file.
func (s *site) clusterFlags() []string {
	return []string{"--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase")}
}

// firstBootMoments are in a boot from a blank disk, by what is written to it; chosen is a random number of records.
var firstBootMoments = []struct {
	name  string
	watch func(chosen int) func(powercut.Record) (cut bool)
}{
	{"at a random write of a first boot", randomWrite},
	{"when record B is written, and not flushed", func(int) func(powercut.Record) bool {
		written := false
		return func(r powercut.Record) bool {
			written = written || len(r.Data) > 0 && r.Offset == statedisk.OffsetB
			return written && r.Flush
		}
	}},
	{"before a flush after a random write of a first boot", func(chosen int) func(powercut.Record) bool {
		return func(r powercut.Record) bool { chosen--; return chosen <= 0 && r.Flush }
	}},
	{"before the LUKS area is written", func(int) func(powercut.Record) bool {
		return func(r powercut.Record) bool { return len(r.Data) > 0 && r.Offset < statedisk.OffsetA }
	}},
}

func randomWrite(chosen int) func(powercut.Record) bool {
	return func(powercut.Record) bool { chosen--; return chosen == 0 }
}

// firstBoot is a moment while a disk is formatted and used first.
func (s *site) firstBoot(i int) moment {
	m := firstBootMoments[i%len(firstBootMoments)]
	return moment{name: m.name, watch: m.watch(1 + s.random.IntN(900))}
}

// anyTime is a random time after power-on.
func anyTime(within time.Duration) moment {
	return moment{name: "random time of a boot", within: within, begins: func(string) bool { return true }}
}

// whileReady is some time after the node has become Ready.
var whileReady = moment{name: "while it is Ready", begins: func(phase string) bool { return phase == firstboot.StepReady }, within: 40 * time.Second}

// initRun begins the cluster through cuts; after each the operator runs init again.
func (s *site) initRun(t *testing.T, cuts ...moment) {
	t.Helper()
	s.run(t, "first boot of the control plane", s.first, cuts, func(ctx context.Context) error { return s.init(ctx) })
}

// withinInit is some time of kubeadm init.
var withinInit = moment{name: "within kubeadm init", begins: inKubeadm, within: 2 * time.Minute}

// init runs hullmark init for the first machine.
func (s *site) init(ctx context.Context, more ...string) error {
	ek, err := s.first.ek()
	if err != nil {
		return err
	}
	args := append(s.clusterFlags(), "init", "--node", s.first.agent, "--measurements", s.document, "--ekid", ek,
		"--ek-ca", filepath.Join(s.first.Dir(), vm.CAFile), "--endpoint", s.first.api, "--kubeconfig", s.path("kubeconfig"), "--profile", "slow",
		"--control-plane", machineAddress(0).String()+":6443")
	return s.cli(ctx, append(args, more...)...)
}

// recover runs hullmark recover for the first machine.
func (s *site) recover(ctx context.Context) error {
	ek, err := s.first.ek()
	if err != nil {
		return err
	}
	return s.cli(ctx, append(s.clusterFlags(), "recover", "--node", s.first.agent, "--ekid", ek, "--yes")...)
}

// joinRun lets a new worker join, and cuts its power within kubeadm join; every other one's in its first boot before.
func (s *site) joinRun(t *testing.T, i int) {
	var cuts []moment
	if i%2 == 1 {
		cuts = append(cuts, s.firstBoot(i/2))
	}
	s.join(t, append(cuts, moment{name: "within kubeadm join", begins: inKubeadm, within: s.joins})...)
}

// join lets a new worker join through cuts, in the place of the one before.
func (s *site) join(t *testing.T, cuts ...moment) {
	if s.worker != nil {
		if err := s.worker.switchOff(); err != nil {
			t.Fatal(err)
		}
	}
	s.worker = s.newWorker(t)
	admitted := false
	s.run(t, "join", s.worker, cuts, func(ctx context.Context) error {
		if admitted {
			return nil
		}
		admitted = true
		ek, err := s.worker.ek()
		if err != nil {
			return err
		}
		return errors.Join(
			s.cli(ctx, append(s.clusterFlags(), "policy", "add", "member", "--ekid", ek, "--role", "worker", "--name", s.worker.name)...),
			s.cli(ctx, append(s.clusterFlags(), "policy", "push", "--server", s.first.api, "--wait", "10m")...))
	})
	// A cut is to come before kubeadm ends.
	if took := s.worker.status.kubeadm(); took > 0 {
		s.joins = took * 3 / 4
	}
}

// rebootRun cuts the power of a worker that is Ready; every other time that of its boot after this, too.
func (s *site) rebootRun(t *testing.T, i int) {
	cuts := []moment{whileReady}
	if i%2 == 0 {
		cuts = append(cuts, anyTime(90*time.Second))
	}
	s.run(t, "reboot", s.worker, cuts, byItself)
}

// byItself is an operator who does nothing.
func byItself(context.Context) error { return nil }

// recoverRun cuts the control plane's power while objects are made, and again in the boot after that. What the API server has
// acknowledged is there afterwards.
func (s *site) recoverRun(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	acknowledged := make(chan []string)
	go func() {
		var names []string
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("acknowledged-%d", i)
			if _, err := s.ask(ctx, "create", "configmap", name); err == nil {
				names = append(names, "configmap/"+name)
			} else {
				time.Sleep(5 * time.Second)
			}
		}
		acknowledged <- names
	}()
	cuts := []moment{
		whileReady, anyTime(3 * time.Minute),
	}
	s.run(t, "recovery of the control plane", s.first, cuts, s.recover)
	stop()
	names := <-acknowledged
	kept, err := s.ask(t.Context(), "get", "configmaps", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !slices.Contains(strings.Fields(kept), name) {
			t.Errorf("%s was acknowledged, and is lost", name)
		}
	}
	t.Logf("%d objects were acknowledged while the power was cut, and are there", len(names))
	if len(names) == 0 {
		t.Error("no object was acknowledged")
	}
}

// run takes a machine to Ready through cuts: each of them ends a boot, the first of which may be one that was Ready before.
// Each boot has what its operator does.
func (s *site) run(t *testing.T, what string, p *powered, cuts []moment, operator func(context.Context) error) {
	t.Helper()
	began := time.Now()
	what = fmt.Sprintf("run %2d: %s of %s", len(s.rows)+1, what, p.name)
	t.Log(what)
	defer func() {
		if t.Failed() {
			s.keepJournal(t, p)
			if p != s.first {
				s.keepJournal(t, s.first) // Often it is the control plane that a worker waits for.
			}
			t.Logf("%s failed; console, journal and state disk are in %s, what the operator's commands said in %s", what, p.config.Dir, s.path("hullmark.log"))
		}
	}()
	var row []string
	for i, m := range cuts {
		operating := func() error { return nil }
		if i > 0 || p.boot == "" {
			operating = s.boot(t, p, m, operator)
		}
		row = append(row, s.cutAt(t, p, m))
		_ = operating() // It has lost its node.
	}
	if err := s.boot(t, p, moment{}, operator)(); err != nil {
		t.Fatal(err)
	}
	s.awaitReady(t, p)
	row = append(row, fmt.Sprintf("then %s; Ready in %.0f s", p.status.story(), time.Since(p.on).Seconds()))
	s.rows = append(s.rows, fmt.Sprintf("%s, %.0f s\n        %s", what, time.Since(began).Seconds(), strings.Join(row, "\n        ")))
	t.Log(s.rows[len(s.rows)-1])
}

// boot switches a machine on, and lets its operator do his part. What it returns waits for that.
func (s *site) boot(t *testing.T, p *powered, m moment, operator func(context.Context) error) (wait func() error) {
	t.Helper()
	p.switchOn(t, s.operator, m.watch)
	ctx, cancel := context.WithTimeout(t.Context(), readyTime)
	go func() {
		select {
		case <-p.disk.Gone():
			cancel()
		case <-ctx.Done():
		}
	}()
	done := make(chan error, 1)
	go func() { done <- operator(ctx) }()
	return func() error {
		defer cancel()
		return <-done
	}
}

// cutAt waits for the moment, cuts the power, and says what was going on.
func (s *site) cutAt(t *testing.T, p *powered, m moment) string {
	t.Helper()
	s.awaitMoment(t, p, m)
	if !m.exact && s.random.IntN(4) > 0 {
		// An idle disk has nothing to lose most of the time.
		p.armed.Store(true)
		select {
		case <-p.disk.Gone():
		case <-time.After(10 * time.Second):
		}
	}
	d, said := p.status.now()
	phase := phaseOf(d)
	if len(said) == 0 {
		phase = "before the agent"
	}
	after := time.Since(p.on)
	loss, err := p.cut(s.random)
	if err != nil {
		t.Fatal(err)
	}
	s.cuts++
	if inKubeadm(phase) {
		s.inside++
	}
	row := fmt.Sprintf("cut %s, %.0f s after power-on, in %s: %s", m.name, after.Seconds(), phase, loss)
	t.Logf("%s: %s", p.name, row)
	return row
}

func (s *site) awaitMoment(t *testing.T, p *powered, m moment) {
	t.Helper()
	deadline := time.After(readyTime)
	if m.watch != nil {
		select {
		case <-p.disk.Gone():
		case <-deadline:
			t.Fatalf("%s did not come to the moment %q", p.name, m.name)
		}
		return
	}
	for {
		d, said := p.status.now()
		if m.begins(phaseOf(d)) {
			break
		}
		if len(said) > 0 && d.Ready {
			t.Fatalf("%s is Ready, and did not come to the moment %q", p.name, m.name)
		}
		select {
		case <-p.Done():
			t.Fatalf("%s ended: %v", p.name, p.Wait())
		case <-deadline:
			t.Fatalf("%s did not come to the moment %q", p.name, m.name)
		case <-time.After(200 * time.Millisecond):
		}
	}
	if m.within > 0 {
		time.Sleep(time.Duration(s.random.Int64N(int64(m.within))))
	}
}

// awaitReady waits until the cluster knows the node as Ready in this boot, and as the same one as before.
func (s *site) awaitReady(t *testing.T, p *powered) {
	t.Helper()
	for deadline := p.on.Add(readyTime); ; time.Sleep(3 * time.Second) {
		d, _ := p.status.now()
		answer, err := s.ask(t.Context(), "get", "node", p.name, "-o", `jsonpath={.metadata.uid} {.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")].status}`)
		fields := strings.Fields(answer)
		if err == nil && len(fields) == 3 && d.Ready && fields[2] == "True" && fields[1] != p.boot {
			if p.uid != "" && p.uid != fields[0] {
				t.Fatalf("%s came back as another Node: uid %s, it was %s", p.name, fields[0], p.uid)
			}
			p.uid, p.boot = fields[0], fields[1]
			return
		}
		select {
		case <-p.Done():
			t.Fatalf("%s ended: %v", p.name, p.Wait())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not Ready %v after power-on; it is in %s (%v), and the API says %q, %v", p.name, readyTime, phaseOf(d), d.Condition, answer, err)
		}
	}
}

// settled checks that the cluster holds every machine as ready once, and that no token is left of a join that was cut.
func (s *site) settled(t *testing.T) {
	var nodes, tokens, records string
	for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(10 * time.Second) {
		var errs [3]error
		nodes, errs[0] = s.ask(t.Context(), "get", "nodes", "-o", "name")
		tokens, errs[1] = s.ask(t.Context(), "get", "secrets", "-n", "kube-system", "--field-selector", "type=bootstrap.kubernetes.io/token", "-o", "name")
		var out []byte
		out, errs[2] = exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), append(s.clusterFlags(), "node", "list", "--server", s.first.api)...).Output()
		records = string(out)
		if errors.Join(errs[:]...) == nil && tokens == "" && len(strings.Fields(nodes)) == 1+s.workers && strings.Count(records, " ready ") >= s.workers {
			t.Logf("%d Nodes, no token\n%s", 1+s.workers, records)
			return
		}
	}
	t.Errorf("of %d workers and a control plane the cluster has %s; tokens %q; records:\n%s", s.workers, nodes, tokens, records)
}

// ask asks the first control plane's API server by the bundle's kubectl.
func (s *site) ask(ctx context.Context, args ...string) (string, error) {
	return s.askAt(ctx, s.first, args...)
}

// askAt asks a control plane's own API server.
func (s *site) askAt(ctx context.Context, p *powered, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	to := []string{"--kubeconfig", s.path("kubeconfig"), "--server", "https://" + p.api, "--request-timeout", "30s"}
	out, err := exec.CommandContext(ctx, filepath.Join(s.out, "kubectl"), append(to, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// cli runs the hullmark program, whose output is in a log.
func (s *site) cli(ctx context.Context, args ...string) error {
	log, err := os.OpenFile(s.path("hullmark.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	fmt.Fprintln(log, "$ hullmark", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "bin", "hullmark"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("hullmark %s: %w; read %s", strings.Join(args, " "), err, log.Name())
	}
	return nil
}

// keepJournal asks a machine for its journal, if it still answers.
func (s *site) keepJournal(t *testing.T, p *powered) {
	t.Helper()
	file := filepath.Join(p.config.Dir, "journal.log")
	out, err := exec.Command(filepath.Join("..", "..", "bin", "hullmark"), append(s.clusterFlags(), "node", "logs", "--node", p.agent, "--wait", "5m")...).CombinedOutput()
	if err := errors.Join(err, os.WriteFile(file, out, 0o600)); err != nil {
		t.Logf("the journal of %s is not whole in %s: %v", p.name, file, err)
	}
}
