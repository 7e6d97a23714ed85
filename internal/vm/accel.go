package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hullmark/hullmark/internal/toolstree"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// Acceleration is what executes a machine's instructions, and why.
type Acceleration struct {
	// Accel is AccelKVM or AccelTCG.
	Accel Accel
	// Reason says in words why it was chosen.
	Reason string
}

// trialTime is how long the firmware may take under KVM to write its first character. It takes about a second.
const trialTime = 10 * time.Second

// chooseAccel decides what AccelAuto means on this host now. Nothing is remembered: a host's KVM comes and goes with reboots,
// permissions and migrations.
//
// A device that opens, and even a boot sector that runs, prove little: some nested hypervisors run 16-bit code and then stop at
// the first floating-point instruction of real firmware. So the trial is the firmware itself, up to its first output.
func chooseAccel(ctx context.Context, h hardware, runtime string) (Acceleration, error) {
	if h.config.Accel != AccelAuto {
		return Acceleration{Accel: h.config.Accel, Reason: "as asked for"}, nil
	}
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return Acceleration{Accel: AccelTCG, Reason: "no hardware acceleration: " + err.Error()}, nil
	}
	device.Close()
	problem, err := tryKVM(ctx, h, runtime)
	if err != nil {
		return Acceleration{}, err
	}
	if problem != "" {
		return Acceleration{Accel: AccelTCG, Reason: "no hardware acceleration: /dev/kvm is there, but " + problem}, nil
	}
	return Acceleration{Accel: AccelKVM, Reason: "a trial run of the firmware worked"}, nil
}

// tryKVM runs the firmware of a machine under KVM, without its disks and its TPM. problem says why KVM is of no use; err is
// for a trial that could not be made.
func tryKVM(ctx context.Context, h hardware, runtime string) (problem string, err error) {
	trial := hardware{
		config: Config{Hardware: machine.Hardware{CPUs: h.config.CPUs, MemoryMiB: 512, TPM: machine.NoTPM, SecureBoot: h.config.SecureBoot}}, files: h.files,
		accel: AccelKVM, qemuMajor: h.qemuMajor, qmpSocket: filepath.Join(runtime, "trial.sock"), tools: h.tools,
	}
	trial.files.Vars = filepath.Join(runtime, "trial.fd")
	if err := copyOnce(h.files.VarsTemplate, trial.files.Vars); err != nil {
		return "", err
	}
	defer os.Remove(trial.files.Vars)
	cmd, err := trial.command(ctx, []toolstree.Bind{{Host: runtime, Writable: true}})
	if err != nil {
		return "", err
	}
	output := &firstWrite{seen: make(chan struct{})}
	cmd.Stdout = output
	p, err := startProcess(cmd)
	if err != nil {
		return "", err
	}
	defer p.kill()
	within, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	return watchTrial(within, p, output.seen, trial.qmpSocket), ctx.Err()
}

func watchTrial(ctx context.Context, p *process, seen <-chan struct{}, socket string) (problem string) {
	m, err := dialMonitor(ctx, socket, p.done)
	if err != nil {
		return fmt.Sprintf("QEMU does not start with it: %v", p.stderr)
	}
	defer m.close()
	for {
		select {
		case <-seen:
			return ""
		case <-p.done:
			return fmt.Sprintf("QEMU ended: %v", p.stderr)
		case <-ctx.Done():
			return fmt.Sprintf("the firmware said nothing for %v", trialTime)
		case <-time.After(100 * time.Millisecond):
		}
		if status, err := m.status(); err == nil && status == "internal-error" {
			return "it stops at the firmware's instructions"
		}
	}
}

// firstWrite discards what is written and tells that something was.
type firstWrite struct {
	once sync.Once
	seen chan struct{}
}

// Write never fails.
func (f *firstWrite) Write(b []byte) (int, error) {
	f.once.Do(func() { close(f.seen) })
	return len(b), nil
}
