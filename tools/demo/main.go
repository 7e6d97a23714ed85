// Demo shows the whole chain on this machine: it builds the image, boots it in
// a virtual machine, releases the state disk's key to it once its quote has
// shown the predicted registers, and ends with a Ready Kubernetes node.
//
// With --workers it goes on: the workers join by themselves, a pod of theirs is reached through a service, and nodes lose their power.
//
// Every step is a few hullmark and kubectl commands, printed before they run.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// demo is one run: its folders, its ports, and the machines while they are on. It is a script: its methods are
// the steps.
type demo struct {
	out     string // images and measurements
	state   string // the machines' folders, the cluster file and the kubeconfig
	config  string // a definition folder of the user's own, or empty
	keep    bool
	agent   string   // host port of the first node's agent
	api     string   // host port of the API server
	network *process // nil without workers
	first   *node
	workers []*node
	took    []string

	podNetwork   string
	confidential bool
	processor    *process // nil but for confidential machines

	upgrade  bool
	resumed  bool // the machines are an earlier run's
	releases map[string]*release
	shelf    string // where machines fetch releases
}

// step is a part of the demo that is timed.
type step struct {
	name string
	do   func(context.Context) error
}

func main() {
	var d demo
	var workers uint
	var parts string
	flag.StringVar(&d.out, "out", "out", "folder for the image and its measurements")
	flag.StringVar(&d.state, "state", "", "folder for the machine and the cluster (default: OUT/demo, or OUT/demo-cluster with workers); it must not hold an earlier demo; the default is emptied first")
	flag.StringVar(&d.config, "config", "", "definition folder of your own, layered over mkosi/")
	flag.BoolVar(&d.keep, "keep", false, "leave the machines running until interrupted")
	flag.UintVar(&workers, "workers", 0, "`NUMBER` of workers that join; each takes 2 GiB of memory")
	flag.StringVar(&d.podNetwork, "pod-network", "flannel", "`NETWORK` of the pods, as hullmark init has it")
	flag.BoolVar(&d.confidential, "confidential", false, "machines that play confidential ones, and what their host tries")
	flag.BoolVar(&d.upgrade, "upgrade", false, "releases that work, and some that do not, over a control plane and a worker")
	flag.StringVar(&parts, "parts", "", "of --upgrade, only these `PARTS`, on the machines that an earlier run has left (default: all, on new ones)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := d.run(ctx, workers, parts); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func (d *demo) run(ctx context.Context, workers uint, parts string) (err error) {
	began := time.Now()
	if d.confidential && os.Getenv(inside) == "" {
		// The build needs the network that there is.
		if err := d.step(ctx, step{"build and measure the image", d.build}); err != nil {
			return fmt.Errorf("build and measure the image: %w", err)
		}
		return d.enter(ctx)
	}
	if d.confidential {
		if err := setUpNetwork(); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	if d.upgrade {
		workers = 1
	}
	if err := d.prepare(workers > 0, parts != ""); err != nil {
		return err
	}
	d.plan(workers)
	defer func() { err = errors.Join(err, d.stop()) }()
	steps := []step{
		{"build and measure the image", d.build},
		{"make a cluster file", d.makeCluster},
		{"predict the machine's registers", d.predict},
		{"boot a machine", d.boot},
		{"await it, attest, release, init", d.release},
		{"ask the cluster", d.ask},
	}
	if workers > 0 {
		steps = append(steps, d.clusterSteps()...)
	}
	if d.confidential {
		steps = d.confidentialSteps()
	}
	if d.upgrade {
		if steps, err = d.upgradeSteps(parts); err != nil {
			return err
		}
	}
	for _, s := range steps {
		if err := d.step(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	fmt.Printf("\n%s Ready. Step by step:\n%s\n  %-32s %7.1f s\n", d.subject(), strings.Join(d.took, "\n"), "together", time.Since(began).Seconds())
	if d.keep {
		fmt.Printf("\nWhat runs keeps running; interrupt to switch it off.\n  KUBECONFIG=%s %s get pods -A\n", d.path("kubeconfig"), d.kubectlPath())
		<-ctx.Done()
	} else {
		fmt.Printf("\n%s\n", d.farewell())
	}
	return nil
}

// plan decides which machines there will be.
func (d *demo) plan(workers uint) {
	d.first = &node{name: "control-plane-1", folder: d.path("vm"), file: d.path("machine.json"), agent: d.agent}
	if d.upgrade {
		d.planReleases()
	}
	if workers == 0 {
		return
	}
	d.first.address = address(0)
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		d.workers = append(d.workers, &node{name: name, folder: d.path(name), file: d.path(name + ".json"), address: address(i + 1)})
	}
}

// farewell says what is left.
func (d *demo) farewell() string {
	if d.upgrade {
		return "The machines are switched off now, which takes a minute or two. --parts goes on with them, " + d.state + " has what they wrote."
	}
	if len(d.workers) > 0 || d.confidential {
		return "The machines are switched off now, which takes a minute or two. What they wrote is below " + d.state + "; --keep leaves them running."
	}
	return fmt.Sprintf(`The machine is switched off now; --keep leaves it running, and another demo replaces it. To start it again, and to let it go on:
  %[1]s vm %[2]s --dir %[3]s --machine %[4]s --forward %[5]s:7443 --forward %[6]s:6443
  %[1]s recover --cluster %[7]s --passphrase-file %[8]s --node 127.0.0.1:%[5]s
  %[9]s --kubeconfig %[10]s get nodes`,
		hullmarkPath(), d.image(), d.first.folder, d.first.file, d.agent, d.api, d.path("cluster"), d.path("passphrase"), d.kubectlPath(), d.path("kubeconfig"))
}

// subject begins the last sentence.
func (d *demo) subject() string {
	if len(d.workers) > 0 {
		return "The nodes are"
	}
	return "The node is"
}

// stop switches everything off, the machines at once.
func (d *demo) stop() error {
	ended := make(chan error)
	nodes := append(slices.Clone(d.workers), d.first)
	for _, n := range nodes {
		go func() { ended <- n.running.stop() }()
	}
	var err error
	for range nodes {
		err = errors.Join(err, <-ended)
	}
	return errors.Join(err, d.network.stop(), d.processor.stop())
}

// prepare makes the folder of this run, or takes that of an earlier one where parts of it are to go on.
func (d *demo) prepare(cluster, parts bool) (err error) {
	if d.state == "" {
		d.state = d.stateFolder(cluster)
		if _, err := os.Stat(d.path("steady.yaml")); err == nil && parts {
			d.resumed = true
			return d.ports()
		}
		if _, err := os.Stat(d.state); err == nil {
			fmt.Printf("%s holds an earlier demo, which this one replaces (--state keeps it)\n", d.state)
		}
		if err := os.RemoveAll(d.state); err != nil {
			return err
		}
	}
	if _, err := os.Stat(d.path("cluster")); err == nil {
		return fmt.Errorf("%s holds the cluster of an earlier demo: name another folder with --state, or remove it", d.state)
	}
	if err := os.MkdirAll(d.state, 0o700); err != nil {
		return err
	}
	return d.ports()
}

// stateFolder is where a run is kept until the next one of its kind.
func (d *demo) stateFolder(cluster bool) string {
	name := "demo"
	switch {
	case d.upgrade:
		name += "-upgrade"
	case d.confidential:
		name += "-confidential"
	case cluster:
		name += "-cluster"
	}
	return filepath.Join(d.out, name)
}

// ports chooses ports of this host for the first node's agent and the API server.
func (d *demo) ports() (err error) {
	if d.agent, err = freePort(); err != nil {
		return err
	}
	d.api, err = freePort()
	return err
}

func (d *demo) step(ctx context.Context, s step) error {
	fmt.Printf("\n== %s\n", s.name)
	start := time.Now()
	err := s.do(ctx)
	d.took = append(d.took, fmt.Sprintf("  %-32s %7.1f s", s.name, time.Since(start).Seconds()))
	return err
}

func (d *demo) build(ctx context.Context) error {
	args := []string{"build", "--relock", "--out", d.out}
	if d.config != "" {
		args = append(args, "--config", d.config)
	}
	return d.hullmark(ctx, args...)
}

// makeCluster protects the cluster file with a passphrase that only this demo's folder holds.
func (d *demo) makeCluster(ctx context.Context) error {
	passphrase := make([]byte, 16)
	if _, err := rand.Read(passphrase); err != nil {
		return err
	}
	if err := os.WriteFile(d.path("passphrase"), []byte(hex.EncodeToString(passphrase)+"\n"), 0o600); err != nil {
		return err
	}
	if err := d.hullmark(ctx, "cluster", "new", d.path("cluster"), "--passphrase-file", d.path("passphrase"), "--node-config", d.path("node.json")); err != nil {
		return err
	}
	if len(d.workers) > 0 {
		return d.nodeConfigs()
	}
	return nil
}

// predict describes the machine, lets its firmware start once for what cannot be derived, and predicts every register of the image on it.
func (d *demo) predict(ctx context.Context) error {
	if err := d.describe(d.first, map[string]any{"memoryMiB": 4096, "nodeConfig": "node.json"}); err != nil {
		return err
	}
	return d.measure(ctx, d.first, d.path("measurements.json"))
}

// describe writes a node's machine file.
func (d *demo) describe(n *node, machine map[string]any) error {
	tools, err := filepath.Abs(filepath.Join(d.built(), "tools"))
	if err != nil {
		return err
	}
	maps.Copy(machine, map[string]any{"schema": "hullmark.machine/v1", "tools": tools, "stateDisk": "10G"})
	return write(n.file, machine)
}

// write writes a JSON file and shows it.
func write(path string, content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n", path, text)
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

// measure predicts the registers of a node's machine.
func (d *demo) measure(ctx context.Context, n *node, document string) error {
	if err := d.hullmark(ctx, "learn", "--machine", n.file); err != nil {
		return err
	}
	return d.hullmark(ctx, "measure", d.image(), "--machine", n.file, "--out", document)
}

func (d *demo) boot(ctx context.Context) error {
	if len(d.workers) > 0 {
		if err := d.startNetwork(ctx); err != nil {
			return err
		}
	}
	return d.power(ctx, d.first)
}

// power switches a node's machine on.
func (d *demo) power(ctx context.Context, n *node) (err error) {
	args := []string{"vm", d.image(), "--dir", n.folder, "--machine", n.file}
	if n.address == "" {
		args = append(args, "--forward", d.agent+":7443", "--forward", d.api+":6443", "--no-reboot")
	} else {
		// A node whose join fails reboots and tries again. To switch off takes minutes where the processor is emulated.
		args = append(args, "--network", d.path("network"), "--grace", "5m")
	}
	n.running, err = start(ctx, n.folder+".log", filepath.Join(n.folder, "ek.id"), args...)
	return err
}

func (d *demo) release(ctx context.Context) error {
	ek, err := d.first.ek()
	if err != nil {
		return err
	}
	return d.hullmark(ctx, "init", "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"),
		"--node", "127.0.0.1:"+d.agent, "--measurements", d.path("measurements.json"),
		"--ekid", ek, "--ek-ca", d.path("vm", "ca.crt"),
		"--endpoint", "127.0.0.1:"+d.api, "--kubeconfig", d.path("kubeconfig"), "--profile", "slow", "--network", d.podNetwork)
}

func (d *demo) ask(ctx context.Context) error {
	if err := d.kubectl(ctx, "get", "nodes", "-o", "wide"); err != nil {
		return err
	}
	return d.kubectl(ctx, "get", "nodes", "-o", "jsonpath={range .items[*]}node uid {.metadata.uid}{\"\\n\"}{end}")
}

func (d *demo) kubectl(ctx context.Context, args ...string) error {
	args = append([]string{"--kubeconfig", d.path("kubeconfig")}, args...)
	fmt.Println("$", d.kubectlPath(), strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, d.kubectlPath(), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// built is the folder of the image that the machines begin with.
func (d *demo) built() string {
	if d.upgrade {
		return d.releases["base"].out(d)
	}
	return d.out
}

func (d *demo) image() string { return filepath.Join(d.built(), "hullmark.raw") }

// kubectlPath is the bundle's own kubectl, which `hullmark build` leaves beside the image.
func (d *demo) kubectlPath() string { return filepath.Join(d.built(), "kubectl") }

func (d *demo) hullmark(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, hullmarkPath(), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	fmt.Println("$", hullmarkPath(), strings.Join(args, " "))
	return cmd.Run()
}

func (d *demo) path(elements ...string) string {
	return filepath.Join(append([]string{d.state}, elements...)...)
}

// hullmarkPath is the program beside this one.
func hullmarkPath() string { return filepath.Join(filepath.Dir(os.Args[0]), "hullmark") }

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
