// Demo shows the whole chain on this machine: it builds the image, boots it in
// a virtual machine, releases the state disk's key to it once its quote has
// shown the predicted registers, and ends with a Ready Kubernetes node.
//
// Every step is one hullmark command, printed before it runs.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// demo is one run: its folders, its ports, and the machine while it is on.
type demo struct {
	out     string // images and measurements
	state   string // the machine's folder, the cluster file and the kubeconfig
	config  string // a definition folder of the user's own, or empty
	keep    bool
	agent   string // host port of the node's agent
	api     string // host port of the API server
	machine *machine
	took    []string
}

func main() {
	var d demo
	flag.StringVar(&d.out, "out", "out", "folder for the image and its measurements")
	flag.StringVar(&d.state, "state", "", "folder for the machine and the cluster (default: OUT/demo); it must not hold an earlier demo; the default is emptied first")
	flag.StringVar(&d.config, "config", "", "definition folder of your own, layered over mkosi/")
	flag.BoolVar(&d.keep, "keep", false, "leave the machine running until interrupted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func (d *demo) run(ctx context.Context) (err error) {
	began := time.Now()
	if err := d.prepare(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.machine.stop()) }()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"build and measure the image", d.build},
		{"make a cluster file", d.makeCluster},
		{"predict the machine's registers", d.predict},
		{"boot a machine", d.boot},
		{"await it, attest, release, init", d.release},
		{"ask the cluster", d.kubectl},
	} {
		if err := d.step(ctx, step.name, step.do); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	fmt.Printf("\nThe node is Ready. Step by step:\n%s\n  %-32s %7.1f s\n", strings.Join(d.took, "\n"), "together", time.Since(began).Seconds())
	if d.keep {
		fmt.Printf("\nThe machine keeps running; interrupt to switch it off.\n  KUBECONFIG=%s %s get pods -A\n", d.path("kubeconfig"), d.kubectlPath())
		<-ctx.Done()
	} else {
		fmt.Printf("\nThe machine is switched off now. It is %s; docs/boot.md says how to start it, and how to ask it again.\n", d.path("vm"))
	}
	return nil
}

func (d *demo) prepare() (err error) {
	if d.state == "" {
		d.state = filepath.Join(d.out, "demo")
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
	if d.agent, err = freePort(); err != nil {
		return err
	}
	d.api, err = freePort()
	return err
}

func (d *demo) step(ctx context.Context, name string, do func(context.Context) error) error {
	fmt.Printf("\n== %s\n", name)
	start := time.Now()
	err := do(ctx)
	d.took = append(d.took, fmt.Sprintf("  %-32s %7.1f s", name, time.Since(start).Seconds()))
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
	return d.hullmark(ctx, "cluster", "new", d.path("cluster"), "--passphrase-file", d.path("passphrase"), "--node-config", d.path("node.json"))
}

// predict describes the machine, lets its firmware start once for what cannot be derived, and predicts every register of the image on it.
func (d *demo) predict(ctx context.Context) error {
	tools, err := filepath.Abs(filepath.Join(d.out, "tools"))
	if err != nil {
		return err
	}
	machine, err := json.MarshalIndent(map[string]any{
		"schema": "hullmark.machine/v1", "tools": tools, "memoryMiB": 4096, "stateDisk": "10G", "nodeConfig": "node.json",
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.path("machine.json"), append(machine, '\n'), 0o600); err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n", d.path("machine.json"), machine)
	if err := d.hullmark(ctx, "learn", "--machine", d.path("machine.json")); err != nil {
		return err
	}
	return d.hullmark(ctx, "measure", d.image(), "--machine", d.path("machine.json"), "--out", d.path("measurements.json"))
}

func (d *demo) boot(ctx context.Context) (err error) {
	d.machine, err = startMachine(ctx, d.path("vm"), "vm", d.image(), "--dir", d.path("vm"), "--machine", d.path("machine.json"),
		"--forward", d.agent+":7443", "--forward", d.api+":6443", "--no-reboot")
	return err
}

func (d *demo) release(ctx context.Context) error {
	ek, err := os.ReadFile(d.path("vm", "ek.id"))
	if err != nil {
		return err
	}
	return d.hullmark(ctx, "init", "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"),
		"--node", "127.0.0.1:"+d.agent, "--measurements", d.path("measurements.json"),
		"--ek", strings.TrimSpace(string(ek)), "--ek-ca", d.path("vm", "ca.crt"),
		"--endpoint", "127.0.0.1:"+d.api, "--kubeconfig", d.path("kubeconfig"), "--profile", "slow")
}

func (d *demo) kubectl(ctx context.Context) error {
	for _, args := range [][]string{
		{"get", "nodes", "-o", "wide"},
		{"get", "nodes", "-o", "jsonpath=node uid {.items[0].metadata.uid}{\"\\n\"}"},
	} {
		args = append([]string{"--kubeconfig", d.path("kubeconfig")}, args...)
		fmt.Println("$", d.kubectlPath(), strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, d.kubectlPath(), args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) image() string { return filepath.Join(d.out, "hullmark.raw") }

// kubectlPath is the bundle's own kubectl, which `hullmark build` leaves beside the image.
func (d *demo) kubectlPath() string { return filepath.Join(d.out, "kubectl") }

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
