//go:build vm

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/internal/vm"
)

// probeParts are a probe of the built image's stub and kernel.
func (b bench) probeParts(t *testing.T) probe.Parts {
	t.Helper()
	stub, err := os.ReadFile(filepath.Join(b.tools(), "usr/lib/systemd/boot/efi/linuxx64.efi.stub"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.Open(b.image())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	info, err := raw.Stat()
	if err != nil {
		t.Fatal(err)
	}
	disk, err := image.Open(raw, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	kernel, _ := disk.UKI.Section(".linux")
	uname, _ := disk.UKI.Section(".uname")
	return probe.Parts{Stub: stub, Kernel: kernel, Uname: string(uname), Cmdline: "console=ttyS0 quiet panic=-1"}
}

// probeMachine is the shape that most probes boot on.
func (b bench) probeMachine() vm.Config {
	return vm.Config{Tools: b.tools(), CPUs: 1, MemoryMiB: 512}
}

func TestVMRegisters(t *testing.T) {
	b := newBench(t)
	r := probe.New(t, b.probeParts(t)).Boot(t, b.probeMachine())
	t.Logf("the probe ran with %q and has %d banks", r.Cmdline, len(r.Registers))
}
