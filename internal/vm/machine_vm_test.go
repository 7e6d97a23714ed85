//go:build vm

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hullmark/hullmark/pcrs/machine"
)

// These tests boot OVMF without a disk. HULLMARK_TOOLS names a tools tree to run from; without it the host's programs run.
func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{
		Dir: filepath.Join(t.TempDir(), "machine"), Accel: AccelTCG,
		Hardware: machine.Hardware{Tools: os.Getenv("HULLMARK_TOOLS"), CPUs: 1, MemoryMiB: 512},
	}
}

func start(t *testing.T, c Config) *Machine {
	t.Helper()
	m, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// firmwareTime bounds what firmware does, some seconds on an idle machine that emulates the processor.
const firmwareTime = 90 * time.Second

// firmwareDone is what OVMF writes when it has looked for something to boot: its own work, the measuring included, is over.
var firmwareDone = regexp.MustCompile(`BdsDxe: .*(No bootable|failed to)|Shell>|[Ss]tart PXE`)

func awaitFirmware(t *testing.T, m *Machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), firmwareTime)
	defer cancel()
	if _, err := m.WaitConsole(ctx, firmwareDone); err != nil {
		log, _ := os.ReadFile(m.Console())
		t.Fatalf("%v; console: %q", err, log)
	}
}

// processesOf lists the processes whose command line names a path.
func processesOf(t *testing.T, path string) []string {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		cmdline, _ := os.ReadFile(e)
		if bytes.Contains(cmdline, []byte(path)) && e != fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			found = append(found, strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// leavesNothing fails if a process, a socket or the lock of an ended machine is left.
func leavesNothing(t *testing.T, dir, runtime string) {
	t.Helper()
	for _, path := range []string{dir, runtime} {
		if left := processesOf(t, path); len(left) > 0 {
			t.Errorf("left running: %q", left)
		}
	}
	if _, err := os.Stat(runtime); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of the sockets: %v", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

func TestFirmwareBootsAndStops(t *testing.T) {
	var output bytes.Buffer
	c := testConfig(t)
	c.Output = &output
	c.StateDisk = 1 << 30
	c.NodeConfig = []byte("{}")
	c.Forwards = []Forward{{Host: 0, Guest: 7443}}
	begin := time.Now()
	m := start(t, c)
	t.Logf("started after %v, %+v", time.Since(begin).Round(time.Millisecond), m.Acceleration())
	awaitFirmware(t, m)
	t.Logf("firmware done after %v", time.Since(begin).Round(time.Millisecond))
	if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "another machine runs on it") {
		t.Errorf("second machine on one folder: %v", err)
	}
	if port := m.Forwards()[0].Host; port == 0 {
		t.Error("no host port was chosen")
	}
	begin = time.Now()
	clean := m.Stop(2 * time.Second)
	t.Logf("stopped after %v, clean %v", time.Since(begin).Round(time.Millisecond), clean)
	if err := m.Wait(); err != nil {
		t.Error(err)
	}
	leavesNothing(t, m.Dir(), m.runtime)
	log, err := os.ReadFile(m.Console())
	if err != nil || len(log) == 0 || !bytes.Equal(log, output.Bytes()) {
		t.Errorf("console log of %d bytes, copy of %d, %v", len(log), output.Len(), err)
	}
	again := start(t, c)
	if !bytes.Equal(again.EK().Public, m.EK().Public) || !again.EK().Certificate.Equal(m.EK().Certificate) {
		t.Error("the second start has another TPM")
	}
	again.Kill()
	leavesNothing(t, again.Dir(), again.runtime)
}

func TestSecureBootFirmwareBoots(t *testing.T) {
	c := testConfig(t)
	c.SecureBoot = true
	c.TPM = machine.TIS
	c.Firmware.Vars = filepath.Join(c.Tools, "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd")
	if !fileExists(c.Firmware.Vars) {
		t.Fatalf("%s is missing: apt-get install ovmf", c.Firmware.Vars)
	}
	m := start(t, c)
	defer m.Kill()
	awaitFirmware(t, m)
}

func TestMachineWithOptionROM(t *testing.T) {
	c := testConfig(t)
	c.NICROM = true
	m := start(t, c)
	defer m.Kill()
	awaitFirmware(t, m)
	if roms := m.Files().OptionROMs; len(roms) != 1 || !fileExists(roms[0]) {
		t.Errorf("option ROMs %q", roms)
	}
}

func TestCancelledContextEndsTheMachine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m, err := Start(ctx, testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := m.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
	leavesNothing(t, m.Dir(), m.runtime)
}

func TestMachineFailsWithItsTPM(t *testing.T) {
	m := start(t, testConfig(t))
	m.swtpm.kill()
	if err := m.Wait(); err == nil || !strings.Contains(err.Error(), "TPM ended") {
		t.Errorf("Wait: %v", err)
	}
	leavesNothing(t, m.Dir(), m.runtime)
}

func TestMachineWithoutTPM(t *testing.T) {
	c := testConfig(t)
	c.TPM = machine.NoTPM
	m := start(t, c)
	if len(processesOf(t, swtpmProgram+"\x00socket")) > 0 && m.swtpm != nil {
		t.Error("swtpm runs")
	}
	m.Kill()
	leavesNothing(t, m.Dir(), m.runtime)
}

// The accelerator that auto chooses must run the firmware; which one that is depends on the host.
func TestChosenAccelerationWorks(t *testing.T) {
	c := testConfig(t)
	c.Accel = AccelAuto
	begin := time.Now()
	m := start(t, c)
	defer m.Kill()
	t.Logf("chosen in %v: %+v", time.Since(begin).Round(time.Millisecond), m.Acceleration())
	awaitFirmware(t, m)
}

// orphanDir tells the test binary to be the child of TestNothingOutlivesAKilledParent.
const orphanDir = "HULLMARK_VM_TEST_ORPHAN"

func TestNothingOutlivesAKilledParent(t *testing.T) {
	if dir := os.Getenv(orphanDir); dir != "" {
		m := start(t, Config{Dir: dir, Accel: AccelTCG, Hardware: machine.Hardware{Tools: os.Getenv("HULLMARK_TOOLS"), CPUs: 1, MemoryMiB: 512}})
		_ = m.Wait()
		return
	}
	dir := filepath.Join(t.TempDir(), "machine")
	cmd := exec.Command(os.Args[0], "-test.run=^TestNothingOutlivesAKilledParent$")
	cmd.Env = append(os.Environ(), orphanDir+"="+dir)
	p, err := startProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "QEMU runs", func() bool { return len(processesOf(t, dir)) >= 2 && fileExists(filepath.Join(dir, "run", "qmp.sock")) })
	runtime, err := os.Readlink(filepath.Join(dir, runtimeName))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all processes are gone", func() bool { return len(processesOf(t, dir))+len(processesOf(t, runtime)) == 0 })
	again := start(t, Config{Dir: dir, Accel: AccelTCG, Hardware: machine.Hardware{Tools: os.Getenv("HULLMARK_TOOLS"), CPUs: 1, MemoryMiB: 512}})
	again.Kill()
	leavesNothing(t, dir, runtime)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for range 600 {
		if condition() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("not within 30 s: %s", what)
}
