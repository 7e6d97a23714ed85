//go:build vm

package e2e

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/disk"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/kubeadm"
)

// A changed byte of the root stops the machine: here one of the file system's superblock, which is always read.
func TestVMRefusesChangedRoot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	changed := b.changedImage(t, func(raw []byte, table *gpt.Table) {
		raw[table.Partitions[1].Offset()+1024] ^= 1
	})
	m := b.boot(t, "machine", b.newCluster(t, "cluster"), func(c *vm.Config) { c.Image = changed })
	m.sees(t, `verity.*(corrupt|panic)|hullmark.*verity`)
	if strings.Contains(m.console(t), "systemd[1]") {
		t.Error("systemd started from a changed root")
	}
}

// An image with another command line boots, but its quote is not the predicted one: the operator is told which
// register and which event, and the node gets nothing.
func TestVMRefusesChangedCommandLine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	changed := b.changedImage(t, func(raw []byte, _ *gpt.Table) {
		at := bytes.Index(raw, []byte("console=ttyS0 quiet "))
		if at < 0 {
			t.Fatal("the command line is not in the image")
		}
		copy(raw[at:], "console=ttyS0 QUIET ")
	})
	m := b.boot(t, "machine", b.newCluster(t, "cluster"), func(c *vm.Config) { c.Image = changed })
	out := m.init(t, 3, "cluster")
	for _, want := range []string{"PCR 11", ".cmdline"} {
		if !strings.Contains(out, want) {
			t.Errorf("the refusal does not name %q", want)
		}
	}
	m.stateDiskIsBlank(t)
}

// One honest machine, and everybody who must not get it.
func TestVMRefusesStrangers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.newCluster(t, "cluster")
	b.newCluster(t, "stranger")
	m := b.boot(t, "machine", config, nil)

	t.Run("init by a stranger's key", func(t *testing.T) { m.init(t, 4, "stranger") })
	t.Run("another endorsement key than the named one", func(t *testing.T) {
		m.init(t, 4, "cluster", "--ekid", strings.Repeat("ab", 32))
	})
	t.Run("another CA", func(t *testing.T) {
		other := b.boot(t, "other", config, func(c *vm.Config) { c.Image = "" })
		ca := filepath.Join(other.Dir(), vm.CAFile)
		other.Kill()
		m.init(t, 4, "cluster", "--ek-ca", ca)
	})
	t.Run("a changed document", func(t *testing.T) {
		text, err := os.ReadFile(b.measurements())
		if err != nil {
			t.Fatal(err)
		}
		flipped := b.path("flipped.json")
		if err := os.WriteFile(flipped, bytes.Replace(text, []byte(`"registers"`), []byte(`"registerz"`), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		m.init(t, 1, "cluster", "--measurements", flipped)
	})
	m.stateDiskIsBlank(t)

	t.Run("a document that kubeadm rejects", func(t *testing.T) {
		bad := b.path("kubeadm.yaml")
		documents, err := kubeadm.InitDocuments(kubeadm.Params{
			NodeName: "control-plane-1", AdvertiseAddress: netip.MustParseAddr("10.0.2.15"),
			ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"),
		})
		if err != nil {
			t.Fatal(err)
		}
		documents = bytes.Replace(documents, []byte("kind: ClusterConfiguration\n"), []byte("kind: ClusterConfiguration\nunknownField: 1\n"), 1)
		if err := os.WriteFile(bad, documents, 0o600); err != nil {
			t.Fatal(err)
		}
		out := m.init(t, 1, "cluster", "--kubeadm", bad)
		if !strings.Contains(out, "unknownField") {
			t.Error("the refusal does not name the field")
		}
	})
}

// A disk that holds somebody's file system is never written.
func TestVMRefusesForeignDisk(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.newCluster(t, "cluster")
	disk := b.path("machine", "state.raw")
	if err := os.MkdirAll(filepath.Dir(disk), 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, 0, "mkfs.ext4", "-q", disk, "256M")
	before := digestOf(t, disk)
	m := b.boot(t, "machine", config, func(c *vm.Config) { c.StateDisk = 256 << 20 })
	out := m.init(t, 1, "cluster")
	if !strings.Contains(out, "foreign") {
		t.Error("the refusal does not say that the disk is foreign")
	}
	m.Kill()
	if digestOf(t, disk) != before {
		t.Error("the disk was written")
	}
}

// Without a TPM, or with a configuration that is not understood, a node says so on its console and offers no prompt.
func TestVMRefusesBadMachines(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.newCluster(t, "cluster")
	t.Run("no TPM", func(t *testing.T) {
		m := b.boot(t, "no-tpm", config, func(c *vm.Config) { c.TPM = "none" })
		m.sees(t, `no-tpm`)
	})
	t.Run("unknown field in the node config", func(t *testing.T) {
		m := b.boot(t, "bad-config", bytes.Replace(config, []byte("{"), []byte(`{"role":"control-plane",`), 1), nil)
		m.sees(t, `role`)
	})
}

// changedImage returns a copy of the image with some bytes changed.
func (b bench) changedImage(t *testing.T, change func(raw []byte, table *gpt.Table)) string {
	t.Helper()
	raw, err := os.ReadFile(b.image())
	if err != nil {
		t.Fatal(err)
	}
	table, err := gpt.Read(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	change(raw, table)
	path := b.path("changed.raw")
	writeDisk(t, path, raw)
	return path
}

// writeDisk writes a disk, which is zeros for the most part, into a file with holes.
func writeDisk(t *testing.T, path string, raw []byte) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const piece = 1 << 20
	to := disk.Sparse(f)
	for at := 0; at < len(raw); at += piece {
		if _, err := to.Write(raw[at:min(at+piece, len(raw))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(int64(len(raw))); err != nil {
		t.Fatal(err)
	}
}

// stateDiskIsBlank holds that nobody wrote a byte to the state disk.
func (m machine) stateDiskIsBlank(t *testing.T) {
	t.Helper()
	f, err := os.Open(filepath.Join(m.Dir(), "state.raw"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 32<<20)
	if _, err := f.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(head, make([]byte, len(head))) {
		t.Error("the state disk was written")
	}
}

func digestOf(t *testing.T, path string) [32]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}
