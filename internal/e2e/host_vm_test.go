//go:build vm

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/canary"
	"github.com/hullmark/hullmark/internal/vm"
)

// A credential of systemd's that names the machine: who imports it has that name in every line of its journal.
const hostnameCredential = "system.hostname"

// The two places where a host can put a credential that no register shows (systemd.system-credentials(7)).
var credentialsOfTheHost = []struct {
	name, hostname string
	give           func(c *vm.Config, hostname string)
}{
	{"SMBIOS", "named-by-smbios", func(c *vm.Config, hostname string) {
		c.SMBIOS = []string{"io.systemd.credential:" + hostnameCredential + "=" + hostname}
	}},
	{"fw_cfg", "named-by-fw-cfg", func(c *vm.Config, hostname string) {
		c.FwCfg = map[string]string{"opt/io.systemd.credentials/" + hostnameCredential: hostname}
	}},
}

// A machine that boots takes no credential from its host. The same image with a command line that lets it does, which is
// another measurement: so the test would see an import.
func TestVMImportsNoCredential(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.newCluster(t, "cluster")
	lets := b.changedImage(t, func(raw []byte, _ *gpt.Table) {
		at := bytes.Index(raw, []byte("systemd.import_credentials=no "))
		if at < 0 {
			t.Fatal("the command line does not forbid credentials")
		}
		copy(raw[at:], "systemd.import_credentials=1  ")
	})
	for _, c := range credentialsOfTheHost {
		t.Run(c.name, func(t *testing.T) {
			for name, imports := range map[string]bool{b.image(): false, lets: true} {
				m := b.boot(t, c.name+"-"+filepath.Base(name), config, func(v *vm.Config) {
					v.Image = name
					c.give(v, c.hostname)
				})
				logs := m.journal(t)
				m.Kill()
				if !strings.Contains(logs, "firstboot") {
					t.Fatalf("the journal of %s does not name the agent: %.2000s", name, logs)
				}
				if got := strings.Contains(logs, c.hostname); got != imports {
					t.Errorf("%s imports the host's credential: %v, want %v", name, got, imports)
				}
			}
		})
	}
}

// Another release's root, with its own hash tree, beside our kernel image: the machine stops. With its own
// kernel image it starts.
func TestVMRefusesAnotherReleasesRoot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := b.otherRelease(t, "other")
	ours, err := os.ReadFile(b.image())
	if err != nil {
		t.Fatal(err)
	}
	mixed, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	esp := tableOf(t, ours).Partitions[0]
	if theirs := tableOf(t, mixed).Partitions[0]; theirs.Offset() != esp.Offset() || theirs.Size() != esp.Size() {
		t.Fatalf("their ESP is at %d, ours at %d", theirs.Offset(), esp.Offset())
	}
	copy(mixed[esp.Offset():], ours[esp.Offset():][:esp.Size()])
	path := b.path("mixed.raw")
	writeDisk(t, path, mixed)
	config := b.newCluster(t, "cluster")
	m := b.boot(t, "mixed", config, func(c *vm.Config) { c.Image = path })
	m.sees(t, `no disk has a slot with the hash tree of this root hash`)
	if strings.Contains(m.console(t), "systemd[1]") {
		t.Error("systemd started from another release's root")
	}
	m.Kill()
	m = b.boot(t, "other", config, func(c *vm.Config) { c.Image = other })
	m.journal(t)
}

// journal waits until the agent answers its operator, and returns the machine's journal.
func (m machine) journal(t *testing.T) string {
	t.Helper()
	for began := time.Now(); ; time.Sleep(3 * time.Second) {
		asks := []string{"node", "logs", "--node", m.agent, "--cluster", m.bench.path("cluster"), "--passphrase-file", m.bench.path("passphrase")}
		out, err := exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), asks...).CombinedOutput()
		if err == nil {
			return string(out)
		}
		if time.Since(began) > bootTime {
			t.Fatalf("the agent does not answer: %s; the console's end:\n%s", out, tail([]byte(m.console(t))))
		}
	}
}

// otherRelease writes an image as ours but for a byte of its root file system that nothing reads, before the superblock.
func (b bench) otherRelease(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(b.image())
	if err != nil {
		t.Fatal(err)
	}
	disk, err := image.Open(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	root := make([]byte, disk.Root.Size())
	if _, err := disk.Root.ReadAt(root, 0); err != nil {
		t.Fatal(err)
	}
	root[0] ^= 1
	section := func(name string) []byte {
		content, _ := disk.UKI.Section(name)
		return content
	}
	stub, err := os.ReadFile(filepath.Join(b.tools(), uki.DebianStub))
	if err != nil {
		t.Fatal(err)
	}
	cmdline, _, _ := strings.Cut(disk.Cmdline, " roothash=")
	partitions := disk.Table.Partitions
	esp := partitions[0]
	layout, err := image.Plan(image.Parts{
		Stub: stub, Kernel: section(".linux"), Initrd: section(".initrd"), OSRelease: section(".osrel"), Uname: string(section(".uname")),
		Cmdline: cmdline, Root: bytes.NewReader(root), RootSize: int64(len(root)),
		Time: time.Unix(1700000000, 0), Slot: slot.Sizes{ESP: esp.Size(), Root: partitions[1].Size()},
	})
	if err != nil {
		t.Fatal(err)
	}
	if layout.RootHash() == disk.RootHash {
		t.Fatal("the other release has our root hash")
	}
	path := b.path(name + ".raw")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := layout.WriteInto(f); err != nil {
		t.Fatal(err)
	}
	return path
}

func tableOf(t *testing.T, raw []byte) *gpt.Table {
	t.Helper()
	table, err := gpt.Read(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// processes looks at the arguments and the environment of every process inside the machine that runs, by a pod that sees them
// all. What is planted in its own environment is the only find.
func (h *hunt) processes(t *testing.T) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "processes")
	command(t, 0, "gcc", "-static", "-O2", "-s", "-o", program, "internal/e2e/testdata/processes.c")
	h.bench.kubectl(t, "create", "configmap", "processes", "--from-file", program)
	image := strings.TrimSpace(h.bench.kubectl(t, "get", "deployment", "coredns", "--namespace", "kube-system", "-o", "jsonpath={.spec.template.spec.containers[0].image}"))
	manifest := filepath.Join(t.TempDir(), "processes.json")
	if err := os.WriteFile(manifest, processesPod(t, image, h.planted), 0o600); err != nil {
		t.Fatal(err)
	}
	h.bench.kubectl(t, "apply", "-f", manifest)
	h.bench.kubectl(t, "wait", "--for", "jsonpath={.status.phase}=Succeeded", "pod/processes", "--timeout", "5m")
	said, err := exec.CommandContext(t.Context(), filepath.Join(h.bench.out, "kubectl"), "--kubeconfig", h.bench.path("kubeconfig"), "logs", "processes").Output()
	if err != nil {
		t.Fatal(err)
	}
	h.bench.kubectl(t, "delete", "pod/processes", "configmap/processes", "--wait=false")
	if !bytes.HasSuffix(said, []byte("all processes were read\n")) {
		t.Fatalf("not all processes were read: %.500s", tail(said))
	}
	for _, name := range []string{"/firstboot", "/joinservice", "/kubelet", "/containerd", "kube-apiserver", "etcd", "/flannel"} {
		if !bytes.Contains(said, []byte(name)) {
			t.Errorf("%s is not among the machine's processes", name)
		}
	}
	found := h.search.Text("the machine's processes", said)
	planted := func(f canary.Finding) bool { return f.Secret == "what was planted" }
	if !slices.ContainsFunc(found, planted) {
		t.Errorf("what was planted is not among %d bytes of arguments and environments", len(said))
	}
	h.report(t, slices.DeleteFunc(found, planted))
	t.Logf("%d lines of arguments and environments", bytes.Count(said, []byte("\n")))
}

// processesPod is a pod that may see all processes of its node.
func processesPod(t *testing.T, image, planted string) []byte {
	t.Helper()
	type object = map[string]any
	pod, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "processes"},
		"spec": object{
			"hostPID": true, "restartPolicy": "Never", "automountServiceAccountToken": false,
			"tolerations": []object{{"operator": "Exists"}},
			"containers": []object{{
				"name": "processes", "image": image, "command": []string{"/program/processes"},
				"env":             []object{{"name": "PLANTED", "value": planted}},
				"securityContext": object{"privileged": true},
				"volumeMounts":    []object{{"name": "program", "mountPath": "/program"}},
			}},
			"volumes": []object{{"name": "program", "configMap": object{"name": "processes", "defaultMode": 0o755}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}
