package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
)

const (
	// answerTime bounds how long the cluster is waited for: on machines that emulate their processors everything takes minutes.
	answerTime = 25 * time.Minute
	// answerEvery is how often it is asked; each question is work for an emulated API server.
	answerEvery = 5 * time.Second
)

// The demo's network, as hullmark vm network makes it.
const (
	router   = "10.0.2.2"
	resolver = "10.0.2.3"
	// moved is a second address of the control plane, to which its endpoint moves.
	moved = "10.0.2.20"
)

// address is the address of the i-th machine in the demo's network.
func address(i uint) string { return fmt.Sprintf("10.0.2.%d", 21+i) }

// clusterSteps are the life of a cluster, from its first worker to a power cut.
func (d *demo) clusterSteps() []step {
	steps := []step{{"predict the workers' registers", d.predictWorkers}}
	for _, w := range d.workers {
		steps = append(steps, step{w.name + " joins by itself", func(ctx context.Context) error { return d.join(ctx, w) }})
	}
	return append(
		steps,
		step{"a pod answers across nodes", d.serve},
		step{"its log is read, a program run in it", d.look},
		step{d.workers[0].name + " is switched off and on", d.reboot},
		step{"the pod answers again", d.reach},
		step{"the endpoint is to move", d.moveEndpoint},
		step{"all power is cut, recover", d.recover},
		step{"the endpoint has moved", d.moveEndpoint},
		step{"the pod answers once more", d.reach},
		step{"ask the cluster at the end", d.ask},
		step{"ask the records and a node", d.askRecords},
		step{d.workers[0].name + " gets an empty disk", d.replaceDisk},
		step{"the pod answers from there", d.reach},
	)
}

// askRecords shows what the join service keeps of the machines, that it left no token, what a node says of itself, and whether
// a worker says that it went over to the new endpoint.
func (d *demo) askRecords(ctx context.Context) error {
	file := d.clusterFile()
	if err := d.hullmark(ctx, append([]string{"node", "list", "--server", "127.0.0.1:" + d.api, "--wait", "10m"}, file...)...); err != nil {
		return err
	}
	tokens := []string{"get", "secrets", "--namespace", "kube-system", "--field-selector", "type=bootstrap.kubernetes.io/token", "-o", "jsonpath=tokens: {.items[*].metadata.name}"}
	d.show(tokens)
	answer, err := d.kubectlOutput(ctx, tokens)
	if err != nil {
		return err
	}
	fmt.Println(answer)
	if err := d.hullmark(ctx, append([]string{"node", "status", "--node", "127.0.0.1:" + d.agent}, file...)...); err != nil {
		return err
	}
	return d.findInLogs(ctx, d.workers[0], "the control plane is reached at")
}

// findInLogs prints the lines of a worker's log of this boot that hold the text, if there are any.
func (d *demo) findInLogs(ctx context.Context, w *node, text string) error {
	args := append([]string{"node", "logs"}, d.toNode(w)...)
	fmt.Printf("$ %s %s | grep '%s'\n", hullmarkPath(), strings.Join(args, " "), text)
	cmd := exec.CommandContext(ctx, hullmarkPath(), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, text) {
			fmt.Print(line)
		}
	}
	return nil
}

// nodeConfigs gives each node an address of its own, and the workers the join service's.
func (d *demo) nodeConfigs() error {
	text, err := os.ReadFile(d.path("node.json"))
	if err != nil {
		return err
	}
	config, err := hullmark.ParseNodeConfig(text)
	if err != nil {
		return err
	}
	config.Gateway, config.NameServers = router, []string{resolver}
	config.Addresses = []string{d.first.address + "/24", moved + "/24"}
	if err := write(d.path("node.json"), config); err != nil {
		return err
	}
	config.Endpoints = []string{d.first.address + ":7444"}
	for _, w := range d.workers {
		config.Addresses = []string{w.address + "/24"}
		if err := write(d.path(w.name+".node.json"), config); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) startNetwork(ctx context.Context) (err error) {
	dir := d.path("network")
	args := []string{
		"vm", "network", dir, "--tools", filepath.Join(d.built(), "tools"),
		"--forward", d.agent + ":" + d.first.address + ":7443", "--forward", d.api + ":" + d.first.address + ":6443",
	}
	for _, w := range d.workers {
		if w.agent, err = freePort(); err != nil {
			return err
		}
		args = append(args, "--forward", w.agent+":"+w.address+":7443")
	}
	for _, n := range d.nodes() {
		if !d.upgrade {
			break
		}
		if n.outside, err = freePort(); err != nil {
			return err
		}
		args = append(args, "--forward", n.outside+":"+n.address+":"+outside)
	}
	d.network, err = start(ctx, dir+".log", filepath.Join(dir, "run", "segment"), args...)
	return err
}

// predictWorkers describes the workers' machines, which are all alike but for their configuration, and accepts what such a
// machine measures. Before that it notes which node the first one is, and lets that one settle: on two processors that are
// emulated, a second machine's boot beside the cluster's first pods can starve the API server.
func (d *demo) predictWorkers(ctx context.Context) error {
	if err := d.awaitReady(ctx, d.first); err != nil {
		return err
	}
	if err := d.settle(ctx); err != nil {
		return err
	}
	for _, w := range d.workers {
		// One processor each: an emulated one takes a whole real one, and the control plane needs the other.
		if err := d.describe(w, map[string]any{"cpus": 1, "memoryMiB": 2048, "nodeConfig": w.name + ".node.json", "learned": "workers.learned.json"}); err != nil {
			return err
		}
	}
	document := d.path("workers.measurements.json")
	if err := d.measure(ctx, d.workers[0], document); err != nil {
		return err
	}
	return d.policy(ctx, "add", "document", document)
}

// settle waits until all of cluster DNS, which is started last, is available.
func (d *demo) settle(ctx context.Context) error {
	ctx, cancel := d.attended(ctx)
	defer cancel()
	all := func(answer string) (bool, error) {
		wanted, available, _ := strings.Cut(answer, " ")
		return wanted != "" && wanted == available, nil
	}
	return d.until(ctx, all, "get", "deployment", "coredns", "--namespace", "kube-system", "-o", "jsonpath={.spec.replicas} {.status.availableReplicas}")
}

// policy changes the cluster file's policy.
func (d *demo) policy(ctx context.Context, args ...string) error {
	args = append([]string{"policy"}, args...)
	return d.hullmark(ctx, append(args, d.clusterFile()...)...)
}

// join names a worker in the policy and waits for it. Nobody tells the worker.
func (d *demo) join(ctx context.Context, w *node) error {
	// The machine's TPM, and so its name, is made when it is switched on.
	if err := d.power(ctx, w); err != nil {
		return err
	}
	ek, err := w.ek()
	if err != nil {
		return err
	}
	if err := d.policy(ctx, "add", "member", "--ekid", ek, "--role", "worker", "--name", w.name); err != nil {
		return err
	}
	if err := d.policy(ctx, "push", "--server", "127.0.0.1:"+d.api, "--wait", "10m"); err != nil {
		return err
	}
	return d.awaitReady(ctx, w)
}

// reboot shows what it took a worker's agent to join, and switches the worker off and on. Nobody tells it how to come back.
func (d *demo) reboot(ctx context.Context) error {
	w := d.workers[0]
	if err := d.findInLogs(ctx, w, "the agent took"); err != nil {
		return err
	}
	fmt.Printf("$ kill -TERM %d   # %s's power button\n", w.running.cmd.Process.Pid, w.name)
	if err := w.running.stop(); err != nil {
		return err
	}
	if err := d.power(ctx, w); err != nil {
		return err
	}
	return d.awaitReady(ctx, w)
}

// replaceDisk gives a worker an empty disk in the place of its own. The operator signs that for this once, and the worker joins
// anew: as another Node.
func (d *demo) replaceDisk(ctx context.Context) error {
	w := d.workers[0]
	if err := w.cut(ctx); err != nil {
		return err
	}
	disk := filepath.Join(w.folder, "state.raw")
	fmt.Println("$ rm", disk)
	if err := os.Remove(disk); err != nil {
		return err
	}
	if err := d.hullmark(ctx, "node", "reset", w.name, "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"),
		"--server", "127.0.0.1:"+d.api, "--wait", "10m"); err != nil {
		return err
	}
	if err := d.power(ctx, w); err != nil {
		return err
	}
	w.uid = ""
	return d.awaitReady(ctx, w)
}

// recover cuts the power of all, switches all on, and tells the control plane to go on; the workers follow.
func (d *demo) recover(ctx context.Context) error {
	all := d.nodes()
	for _, n := range all {
		if err := n.cut(ctx); err != nil {
			return err
		}
	}
	for _, n := range all {
		if err := d.power(ctx, n); err != nil {
			return err
		}
	}
	if err := d.hullmark(ctx, "recover", "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"), "--node", "127.0.0.1:"+d.agent, "--yes"); err != nil {
		return err
	}
	return d.awaitReady(ctx, all...)
}

// moveEndpoint lets all nodes reach the API server at another address, from their next boots on.
func (d *demo) moveEndpoint(ctx context.Context) error {
	return d.hullmark(ctx, "endpoint", "set", moved+":6443", "--server", "127.0.0.1:"+d.api, "--wait", "10m",
		"--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"))
}

// awaitReady waits until nodes are Ready in another boot than they last were. They must be the same Node objects as then.
func (d *demo) awaitReady(ctx context.Context, nodes ...*node) error {
	return d.awaitReadyFor(ctx, answerTime, nodes...)
}

func (d *demo) awaitReadyFor(ctx context.Context, patience time.Duration, nodes ...*node) error {
	ctx, cancel := d.attendedFor(ctx, patience)
	defer cancel()
	for _, n := range nodes {
		err := d.until(ctx, n.ready, "get", "node", n.name, "-o",
			`jsonpath={.metadata.uid} {.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")].status}`)
		if err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
		fmt.Printf("%s is Ready: node uid %s, boot %s\n", n.name, n.uid, n.boot)
	}
	return nil
}

// ready reads what the API says of a node: its uid, its boot, and whether it is Ready.
func (n *node) ready(answer string) (bool, error) {
	fields := strings.Fields(answer)
	if len(fields) != 3 {
		return false, nil
	}
	if n.uid != "" && fields[0] != n.uid {
		return false, fmt.Errorf("the node's uid is %s, and was %s before: it came back as another", fields[0], n.uid)
	}
	// Of a node that is gone the API says for a while that it is Ready.
	if fields[1] == n.boot || fields[2] != "True" {
		return false, nil
	}
	n.uid, n.boot = fields[0], fields[1]
	return true, nil
}

// attended returns a context that ends when a machine ends, or when time is up.
func (d *demo) attended(ctx context.Context) (context.Context, context.CancelFunc) {
	return d.attendedFor(ctx, answerTime)
}

func (d *demo) attendedFor(ctx context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	for _, n := range d.nodes() {
		if n.running == nil { // its turn has not come
			continue
		}
		go func() {
			select {
			case <-n.running.done:
				cancel(fmt.Errorf("%s's machine ended; read %s", n.name, n.running.log.Name()))
			case <-ctx.Done():
			}
		}()
	}
	timed, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no such answer within %v", patience))
	return timed, func() {
		stop()
		cancel(nil)
	}
}

// until asks by kubectl until the answer is what is waited for. An API server that does not answer is asked again.
func (d *demo) until(ctx context.Context, right func(answer string) (bool, error), args ...string) error {
	d.show(args)
	for {
		answer, failure := d.kubectlOutput(ctx, args)
		ok, err := right(answer)
		if err != nil {
			return err
		}
		if failure == nil && ok {
			fmt.Println(answer)
			return nil
		}
		if err := pause(ctx, answerEvery); err != nil {
			return errors.Join(fmt.Errorf("%w; the last answer: %q", err, answer), failure)
		}
	}
}

func (d *demo) show(args []string) {
	fmt.Println("$", d.kubectlPath(), "--kubeconfig", d.path("kubeconfig"), strings.Join(args, " "))
}

// kubectlOutput returns what kubectl prints; the error has what it complains of.
func (d *demo) kubectlOutput(ctx context.Context, args []string) (string, error) {
	out, err := exec.CommandContext(ctx, d.kubectlPath(), append([]string{"--kubeconfig", d.path("kubeconfig"), "--request-timeout", "30s"}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("kubectl: %w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}
