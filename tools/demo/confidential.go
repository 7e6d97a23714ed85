package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
)

const (
	// metadata is where guests of Azure ask its host.
	metadata = "169.254.169.254"
	// inside says to this program that it runs in a network of its own.
	inside = "HULLMARK_DEMO_INSIDE"
	// model is the processor that the machines play.
	model = "EPYC-v4"
	// exitDenied is how hullmark ends where evidence is refused, exitMismatch where something else booted.
	exitMismatch, exitDenied = 3, 4
)

// confidentialSteps show machines that play confidential ones of Azure: what their host tries, and one that comes to Ready.
func (d *demo) confidentialSteps() []step {
	return []step{
		{"launch values of all platforms", d.launchValues},
		{"start the secure processor", d.startProcessor},
		{"make a cluster file", d.makeCluster},
		{"predict the machine's registers", d.predictConfidential},
		{"kinds of evidence that earn nothing", d.refusedKinds},
		{"the host reads the memory (debug)", d.attack("debug", nil, "debug-allowed", "debug")},
		{"registers beside another's report", d.attack("others-claims", nil, "evidence-not-bound", "the report is another machine's")},
		{"a guest that claims by itself", d.attack("own-claims", nil, "signer-unknown", "sign")},
		{"another number of processors", d.attack("azure-snp", map[string]any{"cpus": 3}, "launch digest (sha384)")},
		{"another firmware", d.attackFirmware},
		{"azure-tdx: verified", d.showTDX},
		{"azure-snp: boot a machine", d.bootConfidential},
		{"a policy that wants cvm", d.wantMore},
		{"await it, attest, release, init", d.releaseConfidential},
		{"ask the cluster", d.ask},
		{"the class that is recorded", d.askClass},
	}
}

// enter runs this program again in a network of its own, where the address of Azure's host can be answered at.
func (d *demo) enter(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("in a network of its own: %w", err)
	}
	return nil
}

// setUpNetwork gives the new network its loopback device, with the address of Azure's host.
func setUpNetwork() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	return netlink.AddrAdd(loopback, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(metadata), Mask: net.CIDRMask(32, 32)}})
}

func (d *demo) launchValues(ctx context.Context) error {
	code, whole := d.firmware(), filepath.Join(d.out, "tools", "usr", "share", "ovmf", "OVMF.fd")
	for _, args := range [][]string{
		{"--platform", "snp", "--vmm", "qemu", "--vcpus", "2", "--cpu", model, "--firmware", code},
		{"--platform", "snp", "--vmm", "ec2", "--vcpus", "2", "--firmware", whole},
		{"--platform", "snp", "--vmm", "gce", "--vcpus", "2", "--cpu", "Milan", "--firmware", whole},
		{"--platform", "tdx", "--memory", "4096", "--firmware", whole},
	} {
		if err := d.hullmark(ctx, append([]string{"launch"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) firmware() string {
	return filepath.Join(d.out, "tools", "usr", "share", "OVMF", "OVMF_CODE_4M.fd")
}

func (d *demo) startProcessor(ctx context.Context) (err error) {
	program := filepath.Join(filepath.Dir(os.Args[0]), "secureprocessor")
	d.processor, err = startProgram(ctx, program, d.path("processor.log"), d.path("processor", "azure-tdx.json"), "--dir", d.path("processor"), "--metadata", metadata+":80")
	return err
}

// predictConfidential predicts the machine with its launch digest, and accepts what the secure processor's roots vouch for.
func (d *demo) predictConfidential(ctx context.Context) error {
	machine := map[string]any{"memoryMiB": 4096, "nodeConfig": "node.json", "confidential": map[string]any{"platform": "snp", "cpu": model}}
	if err := d.describe(d.first, machine); err != nil {
		return err
	}
	if err := d.measure(ctx, d.first, d.path("measurements.json")); err != nil {
		return err
	}
	return d.demand(ctx, "test-cvm-paravisor", "azure-snp", "azure-tdx")
}

// demand puts a least class into the policy, and what the evidence of some kinds has to show. Which launch is accepted stands in the
// measurement document.
func (d *demo) demand(ctx context.Context, class string, kinds ...string) error {
	var platforms []map[string]any
	for _, kind := range kinds {
		text, err := os.ReadFile(d.path("processor", kind+".json"))
		if err != nil {
			return err
		}
		platforms = append(platforms, map[string]any{"kind": kind, "demands": json.RawMessage(text)})
	}
	file := d.path("platforms-" + class + ".json")
	text, err := json.Marshal(map[string]any{"trust": map[string]any{"controlPlane": class, "worker": class}, "platforms": platforms})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	return d.hullmark(ctx, "policy", "platforms", file, "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"))
}

// refusedKinds shows why each kind of evidence without a property that tickets need is refused.
func (d *demo) refusedKinds(ctx context.Context) error {
	for _, kind := range []string{"snp", "tdx", "svsm", "aws"} {
		file := d.path("kind-" + kind + ".json")
		if err := os.WriteFile(file, []byte(`{"platforms":[{"kind":"`+kind+`","demands":{}}]}`), 0o600); err != nil {
			return err
		}
		said, err := d.fails(ctx, "policy", "platforms", file, "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"))
		if err != nil {
			return err
		}
		if !strings.Contains(said, "it gets no ticket by its evidence") {
			return fmt.Errorf("%s: it gave no reason", kind)
		}
	}
	return nil
}

// attack boots the first node's machine as a host would that cheats, and wants it to be refused for that reason.
func (d *demo) attack(socket string, changed map[string]any, reasons ...string) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		cheated := &node{name: d.first.name, folder: d.first.folder, file: d.path("cheated.json")}
		machine := map[string]any{"memoryMiB": 4096, "nodeConfig": "node.json", "learned": "learned.json"}
		maps.Copy(machine, changed)
		if err := d.describe(cheated, machine); err != nil {
			return err
		}
		if err := d.powerConfidential(ctx, cheated, socket); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cheated.running.end(syscall.SIGTERM)) }()
		return d.denied(ctx, cheated, reasons...)
	}
}

// attackFirmware boots firmware of which one byte, that is not run, is another.
func (d *demo) attackFirmware(ctx context.Context) error {
	code, err := os.ReadFile(d.firmware())
	if err != nil {
		return err
	}
	at := bytes.LastIndex(code, bytes.Repeat([]byte{0xff}, 256))
	if at < 0 {
		return errors.New("the firmware has no unused bytes")
	}
	code[at+128] = 0xfe
	file, err := filepath.Abs(d.path("firmware.fd"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, code, 0o600); err != nil {
		return err
	}
	return d.attack("azure-snp", map[string]any{"firmware": file, "variables": d.variables()}, "launch digest (sha384)")(ctx)
}

func (d *demo) variables() string {
	file, err := filepath.Abs(filepath.Join(d.out, "tools", "usr", "share", "OVMF", "OVMF_VARS_4M.fd"))
	if err != nil {
		return ""
	}
	return file
}

func (d *demo) powerConfidential(ctx context.Context, n *node, socket string) (err error) {
	n.running, err = start(ctx, n.folder+".log", filepath.Join(n.folder, "run", "qmp.sock"), "vm", d.image(), "--dir", n.folder, "--machine", n.file,
		"--forward", d.agent+":7443", "--forward", d.api+":6443", "--no-reboot", "--grace", "2s", "--secure-processor", d.path("processor", socket+".sock"))
	return err
}

func (d *demo) bootConfidential(ctx context.Context) error {
	return d.powerConfidential(ctx, d.first, "azure-snp")
}

// denied wants init to refuse a node, with one of the reasons.
func (d *demo) denied(ctx context.Context, n *node, reasons ...string) error {
	args, err := d.initArgs(n, d.path("measurements.json"))
	if err != nil {
		return err
	}
	said, err := d.fails(ctx, args...)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(said, reason) }) {
		return fmt.Errorf("it was refused, but not for %s", strings.Join(reasons, " or "))
	}
	return nil
}

// fails runs hullmark, shows what it says, and wants it to refuse.
func (d *demo) fails(ctx context.Context, args ...string) (string, error) {
	fmt.Println("$", hullmarkPath(), strings.Join(args, " "), "  # is refused")
	cmd := exec.CommandContext(ctx, hullmarkPath(), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.CombinedOutput()
	os.Stdout.Write(out)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", errors.New("it was not refused")
	case !errors.As(err, &exit):
		return "", err
	case args[0] == "init" && exit.ExitCode() != exitDenied && exit.ExitCode() != exitMismatch:
		return "", fmt.Errorf("it ended with %d, not because the evidence was refused", exit.ExitCode())
	}
	return string(out), nil
}

func (d *demo) initArgs(n *node, document string, more ...string) ([]string, error) {
	ek, err := n.ek()
	return append([]string{
		"init", "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"), "--node", "127.0.0.1:" + d.agent, "--measurements", document,
		"--ekid", ek, "--ek-ca", filepath.Join(n.folder, "ca.crt"),
	}, more...), err
}

// showTDX verifies a machine of Azure with Intel's processor, whose document has no launch digest.
func (d *demo) showTDX(ctx context.Context) (err error) {
	machine := &node{name: d.first.name, folder: d.path("tdx"), file: d.path("tdx.json")}
	if err := d.describe(machine, map[string]any{"memoryMiB": 4096, "nodeConfig": "node.json", "learned": "learned.json"}); err != nil {
		return err
	}
	document := d.path("measurements-tdx.json")
	if err := d.hullmark(ctx, "measure", d.image(), "--machine", machine.file, "--out", document); err != nil {
		return err
	}
	if err := d.powerConfidential(ctx, machine, "azure-tdx"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.running.end(syscall.SIGTERM)) }()
	args, err := d.initArgs(machine, document, "--dry-run")
	if err != nil {
		return err
	}
	return d.hullmark(ctx, args...)
}

// wantMore asks for a class that the machine does not reach, and then for its own again.
func (d *demo) wantMore(ctx context.Context) error {
	for _, class := range []string{"cvm", "cvm-paravisor"} {
		if err := d.demand(ctx, class, "azure-snp"); err != nil {
			return err
		}
		if err := d.denied(ctx, d.first, "trust-too-low"); err != nil {
			return err
		}
	}
	return d.demand(ctx, "test-cvm-paravisor", "azure-snp")
}

func (d *demo) releaseConfidential(ctx context.Context) error {
	args, err := d.initArgs(d.first, d.path("measurements.json"), "--endpoint", "127.0.0.1:"+d.api, "--kubeconfig", d.path("kubeconfig"), "--profile", "slow", "--network", d.podNetwork)
	if err != nil {
		return err
	}
	return d.hullmark(ctx, args...)
}

func (d *demo) askClass(ctx context.Context) error {
	return d.hullmark(ctx, "node", "list", "--server", "127.0.0.1:"+d.api, "--wait", "10m", "--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase"))
}
