package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/hullmark/hullmark/internal/toolstree"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// Machine is a running virtual machine. Its methods are what can be done to one from outside.
type Machine struct {
	config   Config
	files    Files
	accel    Acceleration
	forwards []Forward
	ek       EK

	lock    *os.File
	cables  []*os.File // until QEMU has them
	runtime string
	console *console
	monitor *monitor
	swtpm   *process
	qemu    *process

	asked atomic.Bool   // somebody asked for the end, so it is no failure
	done  chan struct{} // closed when nothing of the machine is left; err is set by then
	err   error
}

// Start starts a machine. When ctx is cancelled, at any time, the machine's power is cut. Nothing that Start began is left behind
// when it fails, when the machine ends, or when this process dies.
//
// Start fails, before anything runs, where a program or a firmware file is missing (the error names the package), a host port is
// taken (it names the port), or another machine runs on the state folder.
func Start(ctx context.Context, config Config) (*Machine, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	files, err := config.files()
	if err != nil {
		return nil, err
	}
	m := &Machine{config: config, files: files, done: make(chan struct{})}
	if err := m.start(ctx); err != nil {
		m.release()
		return nil, err
	}
	go m.supervise(ctx)
	return m, nil
}

func (m *Machine) start(ctx context.Context) error {
	h, err := m.prepare(ctx)
	if err != nil {
		return err
	}
	m.accel, err = chooseAccel(ctx, h, m.runtime)
	if err != nil {
		return err
	}
	h.accel = m.accel.Accel
	m.console, err = openConsole(m.config.Dir, m.config.Output)
	if err != nil {
		return err
	}
	if err := m.startTPM(ctx); err != nil {
		return err
	}
	return m.startQEMU(ctx, h)
}

// prepare makes the state folder ready and says what QEMU will be started with.
func (m *Machine) prepare(ctx context.Context) (hardware, error) {
	c := m.config
	h := hardware{config: c, files: m.files, tools: toolset{c.Tools}}
	if err := h.tools.require(qemuProgram); err != nil {
		return h, err
	}
	if err := m.require(h.tools); err != nil {
		return h, err
	}
	var err error
	if m.lock, err = lockFolder(c.Dir); err != nil {
		return h, err
	}
	if m.forwards, err = choosePorts(c.Forwards); err != nil {
		return h, err
	}
	for _, network := range c.Networks {
		cable, err := plugIn(network, segmentName)
		if err != nil {
			return h, err
		}
		m.cables = append(m.cables, cable)
	}
	h.forwards, h.cables = m.forwards, m.cables
	if m.runtime, err = makeRuntime(c.Dir); err != nil {
		return h, err
	}
	h.tpmSocket, h.qmpSocket = filepath.Join(m.runtime, controlID), filepath.Join(m.runtime, "qmp.sock")
	if h.qemuMajor, err = h.tools.qemuMajor(ctx); err != nil {
		return h, err
	}
	if c.VarsNBD == "" {
		if err := copyOnce(m.files.VarsTemplate, m.files.Vars); err != nil {
			return h, err
		}
	}
	if c.Bare != nil {
		if h.disk, err = makeDisk(c.Dir, diskName, c.Bare.Disk); err != nil {
			return h, err
		}
	} else if c.ImageNBD == "" {
		if h.disk, err = installDisk(c.Dir, c.Image); err != nil {
			return h, err
		}
	}
	if h.stateDisk, err = makeDisk(c.Dir, stateName, c.StateDisk); err != nil {
		return h, err
	}
	h.nodeConf, err = writeNodeConfig(c.Dir, c.NodeConfig)
	return h, err
}

func (m *Machine) require(t toolset) error {
	if m.config.TPM == machine.NoTPM {
		return nil
	}
	return t.require(swtpmProgram)
}

func (m *Machine) startTPM(ctx context.Context) error {
	c := m.config
	if c.TPM == machine.NoTPM {
		return nil
	}
	t := toolset{c.Tools}
	err := provisionTPM(ctx, t, c.Dir, m.runtime)
	if err != nil {
		return err
	}
	if m.ek, err = ReadEK(c.Dir); err != nil {
		return err
	}
	if c.SecureProcessor != "" {
		if err := m.tellProcessor(ctx, t); err != nil {
			return err
		}
	}
	if m.swtpm, err = startTPM(ctx, t, c.Dir, m.runtime); err != nil {
		return err
	}
	return awaitSocket(ctx, filepath.Join(m.runtime, controlID), m.swtpm)
}

// awaitSocket waits until swtpm listens. It must not connect: the end of a connection ends swtpm.
func awaitSocket(ctx context.Context, path string, swtpm *process) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-swtpm.done:
			return errors.Join(errors.New("vm: swtpm ended while it started"), swtpm.failure())
		case <-ctx.Done():
			return fmt.Errorf("vm: start swtpm: %w", context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (m *Machine) startQEMU(ctx context.Context, h hardware) error {
	cmd, err := h.command(ctx, []toolstree.Bind{{Host: m.config.Dir, Writable: true}, {Host: m.runtime, Writable: true}})
	if err != nil {
		return err
	}
	cmd.Stdout = m.console
	if m.qemu, err = startProcess(cmd); err != nil {
		return err
	}
	m.unplug() // QEMU has its own, and the connections have to end with it
	m.monitor, err = dialMonitor(ctx, h.qmpSocket, m.qemu.done)
	if err != nil {
		return errors.Join(err, m.qemu.endedFailure())
	}
	return nil
}

// statusEvery is how often a running machine is asked whether its hypervisor still executes it.
const statusEvery = 2 * time.Second

// supervise waits for the end of the machine, brings it about where a part of it has failed, and cleans up.
func (m *Machine) supervise(ctx context.Context) {
	defer close(m.done)
	m.err = m.watch(ctx)
	m.release()
}

func (m *Machine) watch(ctx context.Context) error {
	var tpmDone <-chan struct{}
	if m.swtpm != nil {
		tpmDone = m.swtpm.done
	}
	ticker := time.NewTicker(statusEvery)
	defer ticker.Stop()
	for {
		select {
		case <-m.qemu.done:
			return m.outcome(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tpmDone:
			return m.withoutTPM(ctx)
		case <-ticker.C:
			// Only KVM gives up on instructions; QEMU then stands still and would be waited for in vain.
			if status, err := m.monitor.status(); err == nil && status == "internal-error" {
				return errors.New("vm: the hypervisor cannot execute the guest: use software emulation (tcg)")
			}
		}
	}
}

// outcome is what QEMU's end means.
func (m *Machine) outcome(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if m.asked.Load() {
		return nil
	}
	return m.qemu.failure()
}

// withoutTPM is called when swtpm has ended. That is in order if QEMU is just ending.
func (m *Machine) withoutTPM(ctx context.Context) error {
	if m.qemu.ended(5*time.Second) || m.asked.Load() {
		return m.outcome(ctx)
	}
	return errors.Join(errors.New("vm: the machine's TPM ended while the machine ran"), m.swtpm.failure())
}

// release ends what still runs and gives back what Start took. It may be called at any point of Start's way.
func (m *Machine) release() {
	if m.qemu != nil {
		m.qemu.kill()
	}
	if m.monitor != nil {
		m.monitor.close()
	}
	if m.swtpm != nil {
		// It writes its state when QEMU's connection ends; give it that moment.
		m.swtpm.ended(2 * time.Second)
		m.swtpm.kill()
	}
	if m.console != nil {
		m.console.close()
	}
	m.unplug()
	if m.runtime != "" {
		removeRuntime(filepath.Join(m.config.Dir, runtimeName))
	}
	if m.lock != nil {
		m.lock.Close()
	}
}

// unplug closes this process's copies of the connections to networks.
func (m *Machine) unplug() {
	for _, cable := range m.cables {
		cable.Close()
	}
	m.cables = nil
}

// SetCable pulls the cable out of the machine's i-th card, or puts it back: the guest sees that its link is down, or up.
func (m *Machine) SetCable(i int, plugged bool) error {
	_, err := m.monitor.execute("set_link", map[string]any{"name": netdevName(i), "up": plugged})
	return err
}

// CardAddresses are those of the cards of a machine in networks, in their order. Those of a machine alone are QEMU's to choose.
func (c Config) CardAddresses() (all []net.HardwareAddr, err error) {
	dir, err := filepath.Abs(c.Dir)
	for i := range c.Networks {
		all = append(all, hardwareAddress(dir, i))
	}
	return all, err
}

// CardAddresses are those of Config.
func (m *Machine) CardAddresses() []net.HardwareAddr {
	all, _ := m.config.CardAddresses() // The folder's path is complete already.
	return all
}

// Wait waits for the machine's end. It returns nil where the guest switched itself off or Stop or Kill was called, the context's
// cause where that ended it, and otherwise what failed.
func (m *Machine) Wait() error {
	<-m.done
	return m.err
}

// Done is closed when the machine has ended and nothing of it is left.
func (m *Machine) Done() <-chan struct{} {
	return m.done
}

// Stop presses the power button, gives the guest the time grace to switch itself off, and then ends the machine. It reports
// whether the guest did it. Everything has ended when it returns.
func (m *Machine) Stop(grace time.Duration) (clean bool) {
	m.asked.Store(true)
	if _, err := m.monitor.execute("system_powerdown", nil); err == nil && m.qemu.ended(grace) {
		<-m.done
		return true
	}
	if _, err := m.monitor.execute("quit", nil); err != nil || !m.qemu.ended(qmpTimeout) {
		m.qemu.kill()
	}
	<-m.done
	return false
}

// Kill cuts the machine's power: QEMU and the TPM end at once, nothing is flushed. What the guest has written stays in this host's
// page cache, so this is weaker than a real power cut, unless StateNBD serves a disk that loses it. Everything has ended when it returns.
func (m *Machine) Kill() {
	m.asked.Store(true)
	if m.swtpm != nil {
		m.swtpm.kill()
	}
	m.qemu.kill()
	<-m.done
}

// Dir is the machine's state folder.
func (m *Machine) Dir() string {
	return m.config.Dir
}

// Files says what files the machine was started with.
func (m *Machine) Files() Files {
	return m.files
}

// Acceleration says what executes the machine's instructions, and why.
func (m *Machine) Acceleration() Acceleration {
	return m.accel
}

// Forwards are the forwarded ports in Config's order, with the host ports that were chosen.
func (m *Machine) Forwards() []Forward {
	return m.forwards
}

// EK is the machine's endorsement key; the zero value with machine.NoTPM.
func (m *Machine) EK() EK {
	return m.ek
}

// Console is the path of the log of what the guest wrote on its serial line since Start. It holds at most 64 MiB. The log of the
// start before is beside it, as console.previous.log.
func (m *Machine) Console() string {
	return filepath.Join(m.config.Dir, consoleName)
}

// WaitConsole returns the first line of the console, since Start, that matches re. A line that still grows is tried too. It fails when
// ctx ends or the machine has ended; of a very long console it sees the last 4 MiB.
func (m *Machine) WaitConsole(ctx context.Context, re *regexp.Regexp) (string, error) {
	return m.console.wait(ctx, re)
}
