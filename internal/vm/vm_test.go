package vm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/pcrs/machine"
)

// exampleConfig is a complete configuration over files that exist but hold nothing.
func exampleConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return Config{
		Dir: filepath.Join(dir, "machine"), Image: file("image,1.raw"),
		Hardware: machine.Hardware{Firmware: machine.Firmware{Code: file("code.fd"), Vars: file("vars.fd")}},
	}
}

func exampleHardware(t *testing.T, c Config) hardware {
	t.Helper()
	c, err := c.complete()
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.files()
	if err != nil {
		t.Fatal(err)
	}
	return hardware{config: c, files: s, accel: AccelTCG, qemuMajor: 10, tpmSocket: "/run/t.sock", qmpSocket: "/run/q.sock", tools: toolset{c.Tools}}
}

// option returns the values that follow a flag.
func option(args []string, flag string) []string {
	var values []string
	for i, a := range args[:len(args)-1] {
		if a == flag {
			values = append(values, args[i+1])
		}
	}
	return values
}

func TestArguments(t *testing.T) {
	h := exampleHardware(t, exampleConfig(t))
	h.disk, h.stateDisk, h.nodeConf, h.forwards = "/s/disk,1.raw", "/s/state.raw", "/s/config.json", []Forward{{Host: 7443, Guest: 7443}}
	args := strings.Join(h.arguments(), " ")
	for _, want := range []string{
		"-machine q35 -accel tcg,thread=multi,tb-size=2047 -cpu max -smp 2 -m 3072",
		"format=raw,file=/s/disk,,1.raw -device virtio-blk-pci,addr=1,drive=image,bootindex=0,serial=" + ImageSerial,
		"discard=unmap,file=/s/state.raw -device virtio-blk-pci,drive=state,serial=" + StateSerial,
		"hostfwd=tcp:127.0.0.1:7443-:7443", "romfile= ", "-device tpm-crb,tpmdev=tpm0",
		"-fw_cfg name=opt/hullmark/config,file=/s/config.json", "-qmp unix:/run/q.sock,server=on,wait=off",
	} {
		if !strings.Contains(args+" ", want) {
			t.Errorf("missing %q in %s", want, args)
		}
	}
	if strings.Contains(args, "no-reboot") || strings.Contains(args, "smm=on") {
		t.Errorf("not asked for: %s", args)
	}
}

func TestArgumentsFollowTheConfiguration(t *testing.T) {
	base := exampleConfig(t)
	for name, test := range map[string]struct {
		change func(*hardware)
		flag   string
		want   string
		absent bool
	}{
		"no tpm":              {func(h *hardware) { h.config.TPM = machine.NoTPM }, "-tpmdev", "", true},
		"tis":                 {func(h *hardware) { h.config.TPM = machine.TIS }, "-device", "tpm-tis,tpmdev=tpm0", false},
		"old emulator":        {func(h *hardware) { h.qemuMajor = 7 }, "-cpu", "max,-cx16", false},
		"old emulator, 1 cpu": {func(h *hardware) { h.qemuMajor, h.config.CPUs = 7, 1 }, "-cpu", "max", false},
		"kvm":                 {func(h *hardware) { h.accel = AccelKVM }, "-cpu", "host", false},
		"secure boot":         {func(h *hardware) { h.config.SecureBoot = true }, "-global", "driver=cfi.pflash01,property=secure,value=on", false},
		"rom":                 {func(h *hardware) { h.files.OptionROMs = []string{"/r.rom"} }, "-device", "virtio-net-pci,netdev=net0,romfile=/r.rom", false},
		"other fw_cfg":        {func(h *hardware) { h.config.FwCfg = map[string]string{"opt/x": "a,b"} }, "-fw_cfg", "name=opt/x,string=a,,b", false},
		"no config":           {func(h *hardware) { h.nodeConf = "" }, "-fw_cfg", "", true},
		"served state disk":   {func(h *hardware) { h.config.StateNBD = "/n,1" }, "-drive", "id=state,if=none,format=raw,discard=unmap,file.driver=nbd,file.server.type=unix,file.server.path=/n,,1", false},
		"served disk":         {func(h *hardware) { h.disk, h.config.ImageNBD = "", "/n" }, "-drive", "id=image,if=none,format=raw,file.driver=nbd,file.server.type=unix,file.server.path=/n", false},
		"served variables":    {func(h *hardware) { h.config.VarsNBD = "/n" }, "-drive", "if=pflash,unit=1,format=raw,file.driver=nbd,file.server.type=unix,file.server.path=/n", false},
		"tools tree":          {func(h *hardware) { h.tools.tree = "/tree" }, "-qmp", "unix:/vm/run/q.sock,server=on,wait=off", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := exampleHardware(t, base)
			test.change(&h)
			got := option(h.arguments(), test.flag)
			if test.absent && len(got) > 0 || !test.absent && !slices.Contains(got, test.want) {
				t.Errorf("%s: got %q, want %q", test.flag, got, test.want)
			}
		})
	}
}

func TestExitOnReboot(t *testing.T) {
	h := exampleHardware(t, exampleConfig(t))
	h.config.ExitOnReboot = true
	if !slices.Contains(h.arguments(), "-no-reboot") {
		t.Error("no -no-reboot")
	}
}

func TestFilesNamesWhatIsUsed(t *testing.T) {
	c := exampleConfig(t)
	s, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	if s.Firmware != c.Firmware.Code || s.VarsTemplate != c.Firmware.Vars || filepath.Dir(s.Vars) != c.Dir || len(s.OptionROMs) != 0 {
		t.Errorf("%+v", s)
	}
	other := exampleConfig(t)
	if err := os.WriteFile(other.Firmware.Vars, []byte("other keys"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Firmware.Vars = other.Firmware.Vars
	if s2, err := c.Files(); err != nil || s2.Vars == s.Vars {
		t.Errorf("another template shares the copy %s (%v)", s.Vars, err)
	}
}

func TestLogRange(t *testing.T) {
	for mib, end := range map[int]int64{128: 128 << 20, 512: 512 << 20, 2815: 2815 << 20, 2816: 2 << 30, 65536: 2 << 30} {
		if address, size := logRange(mib); address+size != end || size != logWindow {
			t.Errorf("%d MiB: %d bytes at %#x, want them to end at %#x", mib, size, address, end)
		}
	}
}

func TestConfigurationsThatCannotWork(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"state folder":             func(c *Config) { c.Dir = "" },
		"path with a comma":        func(c *Config) { c.Dir = "a,b" },
		"SMBIOS string":            func(c *Config) { c.SMBIOS = []string{"a\nb"} },
		"CPUs":                     func(c *Config) { c.CPUs = -1 },
		"MiB of memory":            func(c *Config) { c.MemoryMiB = 1 },
		"state disk":               func(c *Config) { c.StateDisk = 100 },
		"name one of them":         func(c *Config) { c.StateDisk, c.StateNBD = 1<<30, "socket" },
		"serves the machine's":     func(c *Config) { c.Image, c.ImageNBD = "image", "socket" },
		"TPM interface \"spi\"":    func(c *Config) { c.TPM = "spi" },
		"accelerator \"hvf\"":      func(c *Config) { c.Accel = "hvf" },
		"no variables file":        func(c *Config) { c.SecureBoot, c.Firmware.Vars = true, "" },
		"GUEST; an address is for": func(c *Config) { c.Forwards = []Forward{{Guest: 1, Address: networkAt(100)}} },
		"no forwards of its own":   func(c *Config) { c.Networks, c.Forwards = []string{"n"}, []Forward{{Guest: 1}} },
		"fw_cfg":                   func(c *Config) { c.FwCfg = map[string]string{"opt/x": "a\nb"} },
		"node config of":           func(c *Config) { c.NodeConfig = make([]byte, maxNodeConfig+1) },
		"absent.raw: no such file": func(c *Config) { c.Image = "absent.raw" },
		"is not a regular file":    func(c *Config) { c.Image = filepath.Dir(c.Image) },
	} {
		c := exampleConfig(t)
		change(&c)
		if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestMissingProgramsNameTheirPackage(t *testing.T) {
	c := exampleConfig(t)
	t.Setenv("PATH", t.TempDir())
	if _, err := Start(t.Context(), c); err == nil || !strings.HasSuffix(err.Error(), "qemu-system-x86_64 is missing: apt-get install qemu-system-x86") {
		t.Error(err)
	}
	for program, want := range map[string]string{swtpmProgram: "apt-get install swtpm", swtpmSetupProgram: "apt-get install swtpm-tools"} {
		if err := (toolset{}).require(program); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", program, err)
		}
	}
}

func TestIncompleteToolsTreeIsNamed(t *testing.T) {
	c := exampleConfig(t)
	c.Tools = t.TempDir()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "bwrap"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), c.Tools) || !strings.Contains(err.Error(), "package qemu-system-x86") {
		t.Error(err)
	}
	c.Firmware = machine.Firmware{}
	if _, err := c.Files(); err == nil || !strings.Contains(err.Error(), "package ovmf") {
		t.Error(err)
	}
}

// stubQEMU puts a qemu and a swtpm into PATH that fail loudly when they are run.
func stubQEMU(t *testing.T) {
	t.Helper()
	bin := t.TempDir()
	for _, program := range []string{qemuProgram, swtpmProgram} {
		script := "#!/bin/sh\necho " + program + " was run\nexit 9\n"
		if err := os.WriteFile(filepath.Join(bin, program), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

func TestTakenPortIsNamedBeforeAnythingRuns(t *testing.T) {
	stubQEMU(t)
	l, err := net.Listen("tcp4", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	c := exampleConfig(t)
	c.Forwards = []Forward{{Host: uint16(port), Guest: 7443}}
	if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d of 127.0.0.1 is taken", port)) {
		t.Error(err)
	}
}

func TestForwardsGetDifferentFreePorts(t *testing.T) {
	got, err := choosePorts([]Forward{{Guest: 7443}, {Guest: 6443}})
	if err != nil || got[0].Host == 0 || got[0].Host == got[1].Host || got[1].Guest != 6443 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestParseForward(t *testing.T) {
	if f, err := ParseForward("8443:7443"); err != nil || f != (Forward{Host: 8443, Guest: 7443}) || f.String() != "8443:7443" {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := ParseForward("0:10.0.2.21:6443"); err != nil || f != (Forward{Address: nodeOne, Guest: 6443}) || f.String() != "0:10.0.2.21:6443" {
		t.Errorf("%v, %v", f, err)
	}
	for _, bad := range []string{"", "7443", "a:1", "1:0", "1:65536", "-1:1", "1:2:3", "1::2", "1:10.0.2.21", "1:10.0.2.21:0", "1:10.0.2.21:2:3"} {
		if _, err := ParseForward(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestFolderIsLocked(t *testing.T) {
	stubQEMU(t)
	c := exampleConfig(t)
	lock, err := lockFolder(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "another machine runs on it") {
		t.Error(err)
	}
	lock.Close()
	if _, err := Start(t.Context(), c); err == nil || strings.Contains(err.Error(), "another machine runs on it") {
		t.Error(err)
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	stubQEMU(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	c := exampleConfig(t)
	if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "exit status 9") {
		t.Errorf("stub: %v", err)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Lstat(filepath.Join(c.Dir, runtimeName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run: %v", err)
	}
}

func TestRuntimeOfAKilledProcessIsRemoved(t *testing.T) {
	dir := t.TempDir()
	first, err := makeRuntime(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := makeRuntime(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("first: %v", err)
	}
	removeRuntime(filepath.Join(dir, runtimeName))
	if _, err := os.Stat(second); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("second: %v", err)
	}
}

func TestRuntimeAvoidsLongPaths(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	dir := t.TempDir()
	runtime, err := makeRuntime(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer removeRuntime(filepath.Join(dir, runtimeName))
	if len(runtime) > maxRuntimeDir {
		t.Errorf("%s is too long for a socket", runtime)
	}
}

func TestRemoveRuntimeSparesOthersFolders(t *testing.T) {
	dir, precious := t.TempDir(), t.TempDir()
	link := filepath.Join(dir, runtimeName)
	if err := os.Symlink(precious, link); err != nil {
		t.Fatal(err)
	}
	removeRuntime(link)
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestStateDiskIsSparseAndKeepsItsSize(t *testing.T) {
	dir := t.TempDir()
	if path, err := makeDisk(dir, stateName, 0); path != "" || err != nil {
		t.Errorf("no disk asked for: %q, %v", path, err)
	}
	path, err := makeDisk(dir, stateName, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil { // truncates to 4 bytes, as a disk of another size
		t.Fatal(err)
	}
	if _, err := makeDisk(dir, stateName, 1<<40); err == nil || !strings.Contains(err.Error(), "it has 4 bytes") {
		t.Error(err)
	}
	if size, err := StateDiskSize(dir); size != 4 || err != nil {
		t.Errorf("%d, %v", size, err)
	}
}
