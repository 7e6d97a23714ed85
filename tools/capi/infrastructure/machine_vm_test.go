//go:build vm

package infrastructure

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/hullmark/hullmark/internal/vm"
	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

var (
	built   = flag.String("out", "../../../out", "folder with a built image and its tools")
	program = flag.String("hullmark", "../../../bin/hullmark", "the program hullmark")
)

// absolute is the full path of what a flag names, which has to exist.
func absolute(t *testing.T, elements ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(elements...))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: make build makes it, -out and -hullmark name another", err)
	}
	return path
}

// command runs the program hullmark and returns what it prints.
func command(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), absolute(t, *program), args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("hullmark %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// The real image on a real machine: declared, found by the address that its router gave it, kept by a controller's restart, and gone when
// it is deleted.
func TestRealMachine(t *testing.T) {
	image, tools := absolute(t, *built, "hullmark.raw"), absolute(t, *built, "tools")
	dir := t.TempDir()
	passphrase, file, nodeConfig := filepath.Join(dir, "passphrase"), filepath.Join(dir, "cluster"), filepath.Join(dir, "node.json")
	if err := os.WriteFile(passphrase, []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "cluster", "new", file, "--passphrase-file", passphrase, "--node-config", nodeConfig)
	config, err := os.ReadFile(nodeConfig)
	if err != nil {
		t.Fatal(err)
	}
	processes := Hullmark{absolute(t, *program)}
	b := newBenchOn(t, processes)
	b.rounds, b.pause = 600, time.Second
	t.Cleanup(func() { b.cutAll(processes) })
	b.makeCluster(infrav1.Network{Tools: tools})
	began := time.Now()
	m := b.makeMachineOf("one", string(config), infrav1.HullmarkMachineSpec{Image: image, Machine: infrav1.Hardware{Tools: tools, CPUs: 1, MemoryMiB: 2048, StateDisk: "4G"}})
	b.until("it runs", b.isReady(m))
	t.Logf("Ready after %v", time.Since(began).Round(time.Second))
	s := b.folder().slot(0)
	pid, err := lockHolder(s.machine())
	if err != nil || pid == 0 {
		t.Fatalf("process %d, %v", pid, err)
	}
	b.start(b.client)
	b.until("its address is known", func() bool { return b.get(m) && m.Status.AgentAddress != "" })
	t.Logf("at %s, by the host %s, after %v", m.Status.Addresses[0].Address, m.Status.AgentAddress, time.Since(began).Round(time.Second))
	b.start(b.client)
	b.stays("it runs", b.isReady(m))
	if now, err := lockHolder(s.machine()); now != pid || err != nil {
		t.Errorf("its process was %d and is %d, %v", pid, now, err)
	}
	b.checkIdentity(m, s)
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, []byte(m.Status.EKCertificateAuthority), 0o600); err != nil {
		t.Fatal(err)
	}
	// The machine proves by its TPM that it has the reported identity, and that it booted this image.
	said := command(t, "init", "--dry-run", "--node", m.Status.AgentAddress, "--cluster", file, "--passphrase-file", passphrase, "--wait", "5m",
		"--ekid", m.Status.EKID, "--ek-ca", ca, "--measurements", absolute(t, *built, "hullmark.json"))
	if !strings.Contains(string(said), "equal") {
		t.Errorf("hullmark init shows no register: %s", said)
	}
	began = time.Now()
	run := socketsOf(t, s.machine(), b.folder().network())
	b.remove(m)
	b.until("it is gone", b.gone(m))
	t.Logf("gone after %v", time.Since(began).Round(time.Second))
	hc := b.hullmarkCluster()
	b.remove(hc)
	b.until("the cluster is gone", b.gone(hc))
	if left, _ := os.ReadDir(filepath.Join(b.root, b.namespace)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, path := range run {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("left: %s", path)
		}
	}
	if left := processesOf(t, append(run, b.root)...); left != "" {
		t.Errorf("these run still: %s", left)
	}
}

// cutAll ends what a failed test left.
func (b *bench) cutAll(processes Hullmark) {
	for _, folder := range []string{b.folder().slot(0).machine(), b.folder().network()} {
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
			if ended, err := processes.Stop(folder, time.Second); ended || err != nil {
				break
			}
		}
		_ = removeRun(folder)
	}
}

// checkIdentity holds the reported identity against what the machine's folder holds.
func (b *bench) checkIdentity(m *infrav1.HullmarkMachine, s slot) {
	b.Helper()
	file, err := os.ReadFile(filepath.Join(s.machine(), vm.EKIDFile))
	if err != nil {
		b.Fatal(err)
	}
	if m.Status.EKID != strings.TrimSpace(string(file)) {
		b.Errorf("the EK is %s by the status, %s by the folder", m.Status.EKID, file)
	}
	ca, err := os.ReadFile(filepath.Join(s.machine(), vm.CAFile))
	if err != nil || m.Status.EKCertificateAuthority != string(ca) {
		b.Errorf("the CA is %s, and by the folder %s, %v", m.Status.EKCertificateAuthority, ca, err)
	}
	if !conditions.IsTrue(m, infrav1.ReadyCondition) {
		b.Error("it is not Ready")
	}
}

// socketsOf are the folders of sockets of what runs on folders.
func socketsOf(t *testing.T, folders ...string) (run []string) {
	t.Helper()
	for _, folder := range folders {
		target, err := os.Readlink(filepath.Join(folder, runName))
		if err != nil {
			t.Fatal(err)
		}
		run = append(run, target)
	}
	return run
}

// processesOf are the command lines that name one of the paths. A process that was killed may need a moment.
func processesOf(t *testing.T, paths ...string) (found string) {
	t.Helper()
	for range 50 {
		found = ""
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			text, _ := os.ReadFile(line)
			for _, path := range paths {
				if bytes.Contains(text, []byte(path)) {
					found += string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})) + "\n"
				}
			}
		}
		if found == "" {
			return ""
		}
		time.Sleep(100 * time.Millisecond)
	}
	return found
}
