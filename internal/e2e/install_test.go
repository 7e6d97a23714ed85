//go:build install

package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// TestBareMetal is docs/bare-metal.md: machines that have nothing but a medium and one empty disk. What their screens show is kept as pictures.
func TestBareMetal(t *testing.T) {
	b := bench{out: filepath.Join(source(t), "out", "baremetal"), dir: t.TempDir()}
	t.Cleanup(func() { b.keepLogs(t) })
	cli(t, 0, "build", "--relock", "--profile", "baremetal", "--out", b.out)
	if err := os.WriteFile(b.path("passphrase"), []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, 0, "cluster", "new", b.path("cluster"), "--passphrase-file", b.path("passphrase"), "--node-config", b.path("node.json"),
		"--state-disk", vm.BareSerial, "--install-disk", vm.BareSerial)
	t.Run("a medium that names no disk", b.unnamed)
	t.Run("a disk with somebody's data", b.usedDisk)
	t.Run("the medium is pulled out", b.pulledOut)
	t.Run("by HTTP", b.byHTTP)
	t.Run("by USB, to Ready", b.toReady)
}

// medium makes a medium with a configuration that edit has changed.
func (b bench) medium(t *testing.T, name string, edit func(*hullmark.NodeConfig)) string {
	t.Helper()
	text, err := os.ReadFile(b.path("node.json"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := hullmark.ParseNodeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(&config)
	}
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	file := b.path(name + ".json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, 0, "install", b.image(), b.path(name+".img"), "--medium", "--config", file)
	return b.path(name + ".img")
}

// installTime bounds a boot of a medium and all that it writes.
const installTime = 4 * bootTime

// bareDisk is the size of a bare machine's disk, in bytes.
const bareDisk = 12 << 30

// bare starts a machine with a blank disk, unless it has one.
func (b bench) bare(t *testing.T, name, stick string, edit func(*vm.Config)) machine {
	t.Helper()
	m := b.boot(t, name, nil, func(c *vm.Config) {
		c.Image, c.StateDisk, c.ExitOnReboot = "", 0, false
		c.Bare = &vm.Bare{Disk: bareDisk, Stick: stick}
		if edit != nil {
			edit(c)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			m.picture(t, "failed")
		}
	})
	return m
}

// picture keeps what the screen shows.
func (m machine) picture(t *testing.T, name string) {
	t.Helper()
	time.Sleep(2 * time.Second) // The console, which was waited for, may be a moment ahead.
	png, err := m.Screen()
	if err != nil {
		t.Error(err)
		return
	}
	file := filepath.Join(t.ArtifactDir(), name+".png")
	if err := os.WriteFile(file, png, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log("screen:", file)
}

func (b bench) unnamed(t *testing.T) {
	m := b.bare(t, "unnamed", b.medium(t, "unnamed", func(c *hullmark.NodeConfig) { c.Install = nil }), nil)
	m.sees(t, `code: +install-unnamed`)
	m.sees(t, `got: .*serial `+vm.BareSerial)
	m.picture(t, "install-unnamed")
	m.Kill()
	m.blank(t)
}

// blank fails unless nothing was ever written to the machine's disk.
func (m machine) blank(t *testing.T) {
	t.Helper()
	if n := m.written(t); n > 0 {
		t.Errorf("%d bytes of the disk were written", n)
	}
}

// written is how much of the machine's disk its file holds, in bytes.
func (m machine) written(t *testing.T) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(m.disk(), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func (m machine) disk() string { return filepath.Join(m.Dir(), "disk.raw") }

func (b bench) usedDisk(t *testing.T) {
	disk := b.path("used", "disk.raw")
	if err := os.MkdirAll(filepath.Dir(disk), 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, 0, "truncate", "-s", strconv.Itoa(bareDisk), disk)
	command(t, 0, "sgdisk", "--new", "1:0:+1G", "--change-name", "1:Windows", disk)
	before, err := start(disk)
	if err != nil {
		t.Fatal(err)
	}
	m := b.bare(t, "used", b.medium(t, "used", nil), nil)
	m.sees(t, `code: +install-disk-used`)
	m.sees(t, `got: .*a table of 1 partitions: "Windows"`)
	m.picture(t, "install-disk-used")
	m.Kill()
	if after, err := start(disk); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the disk was changed, %v", err)
	}
}

// start is the first MiB of a file.
func start(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	_, err = f.ReadAt(b, 0)
	return b, err
}

// pulledOut pulls the stick out in the middle: the machine says so, and restarts by itself; its disk starts nowhere.
func (b bench) pulledOut(t *testing.T) {
	m := b.bare(t, "pulled", b.medium(t, "pulled", nil), func(c *vm.Config) { c.ExitOnReboot = true })
	for began := time.Now(); m.written(t) < 300<<20; time.Sleep(time.Second) {
		if time.Since(began) > installTime {
			t.Fatalf("nothing was installed; the console's end:\n%s", tail([]byte(m.console(t))))
		}
	}
	m.picture(t, "installing")
	if err := m.PullStick(); err != nil {
		t.Fatal(err)
	}
	m.sees(t, `code: +medium-lost`)
	m.picture(t, "medium-lost")
	select {
	case <-m.Done():
	case <-time.After(bootTime):
		t.Errorf("the machine does not restart; the console's end:\n%s", tail([]byte(m.console(t))))
	}
	m.Kill()
	if left, err := start(m.disk()); err != nil || len(bytes.Trim(left, "\x00")) > 0 {
		t.Errorf("the disk has a table, or something that boots; %v", err)
	}
	// With the medium in again the machine begins anew.
	m = b.bare(t, "pulled", b.path("pulled.img"), func(c *vm.Config) { c.ExitOnReboot = true })
	m.seesWithin(t, installTime, `code: +installed`)
	m.Kill()
}

// byHTTP has firmware fetch the medium: it lies in memory then.
func (b bench) byHTTP(t *testing.T) {
	medium := b.medium(t, "http", nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(filepath.Dir(medium))), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	empty, err := os.ReadFile(filepath.Join(b.tools(), "usr/share/OVMF/OVMF_VARS_4M.fd"))
	if err != nil {
		t.Fatal(err)
	}
	vars := b.path("http.fd")
	option := efi.LoadOption(efi.OptionActive, "the medium, by HTTP", uriPath("http://10.0.2.2:"+port+"/http.img"), nil)
	if err := os.WriteFile(vars, probe.AddVariables(t, empty, map[string][]byte{"Boot0009": option, "BootOrder": {9, 0}}), 0o600); err != nil {
		t.Fatal(err)
	}
	m := b.bare(t, "http", "", func(c *vm.Config) { c.Firmware.Vars = vars })
	m.seesWithin(t, installTime, `code: +installed`)
	m.picture(t, "installed-by-http")
	m.awaitAgent(t)
	m.Kill()
}

// uriPath is the device path of what a bare machine's network card fetches (UEFI 2.10 §10.3.4.11, §10.3.4.12, §10.3.4.22).
func uriPath(uri string) []byte {
	path := efi.PCIPath(vm.BareNICSlot)
	path = path[:len(path)-4]
	path = append(append(path, 3, 11, 37, 0), vm.BareMAC[:]...)
	path = append(append(path, make([]byte, 26)...), 1)            // the address has 32 bytes; Ethernet
	path = append(append(path, 3, 12, 27, 0), make([]byte, 23)...) // IPv4, by DHCP
	path = binary.LittleEndian.AppendUint16(append(path, 3, 24), uint16(4+len(uri)))
	return append(append(path, uri...), 0x7f, 0xff, 4, 0)
}

// awaitAgent waits until the agent answers its operator.
func (m machine) awaitAgent(t *testing.T) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(3 * time.Second) {
		status := []string{"node", "status", "--node", m.agent, "--cluster", m.bench.path("cluster"), "--passphrase-file", m.bench.path("passphrase")}
		out, err := exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), status...).CombinedOutput()
		if err == nil {
			return
		}
		if time.Since(began) > bootTime {
			t.Fatalf("the agent does not answer: %s; the console's end:\n%s", out, tail([]byte(m.console(t))))
		}
	}
}

// toReady installs a machine from a stick, and lets it begin a cluster. The registers of both boots are the predicted ones. The stick is
// still in when the disk is started, and pulled out then.
func (b bench) toReady(t *testing.T) {
	m := b.bare(t, "usb", b.medium(t, "usb", nil), nil)
	m.seesWithin(t, installTime, `code: +installed`)
	m.picture(t, "installed")
	b.checkMedium(t, m)
	m.awaitAgent(t)
	m.picture(t, "waiting")
	if err := m.PullStick(); err != nil {
		t.Fatal(err)
	}
	out := m.init(t, 0, "cluster")
	if strings.Contains(out, "  differ") || strings.Count(out, "  equal") < 10 {
		t.Error("init does not show every predicted register equal to the measured one")
	}
	m.picture(t, "ready")
	list := cli(t, 0, "node", "list", "--server", m.api, "--wait", "5m", "--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase"))
	if !regexp.MustCompile(`(?m)^control-plane-1 .*ready`).MatchString(list) {
		t.Errorf("the node is not Ready: %s", list)
	}
	if !m.Stop(5 * time.Minute) {
		t.Error("the machine did not switch itself off when its power button was pressed")
	}
}

// checkMedium compares what firmware, stub and kernel have logged in a medium's boot with the prediction.
func (b bench) checkMedium(t *testing.T, m machine) {
	t.Helper()
	file := b.path("medium.json")
	cli(t, 0, "measure", b.image(), "--medium", "--firmware", m.Files().Firmware, "--vars", m.Files().VarsTemplate, "-o", "json", "--out", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	document, err := measurements.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := m.FirmwareLogs()
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range logs {
		log, err := pcrs.ParseLog(raw)
		if err != nil || len(log.Of(9)) == 0 { // a remainder
			t.Logf("%d bytes of log, %v", len(raw), err)
			continue
		}
		values, err := log.Replay(pcrs.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range document.Registers {
			if want := r.Values[pcrs.SHA256]; !values[r.Register].Equal(want) {
				t.Errorf("%v: the medium's boot measured %v, predicted was %v", r.Register, values[r.Register], want)
			}
		}
		return
	}
	t.Errorf("none of %d logs in the machine's memory can be read", len(logs))
}
