// Package probe boots small images for tests: a stub and a kernel of the test's choice, and an initrd that says what the TPM
// holds. What they measure is compared with predictions, by the dozen, where whole nodes would take minutes each.
package probe

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/cpio"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/image/verity"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/pcrs"
)

// bootTime bounds a boot: it takes ten seconds on an idle machine that emulates the processor, and minutes on one that has much else to do.
const bootTime = 10 * time.Minute

// Image is a probe's disk.
type Image struct {
	// Path is the file; Disk is what it held before Parts.ESP was added.
	Path string
	Disk *image.Disk
}

// Parts are what makes one probe different from another.
type Parts struct {
	Stub, Kernel []byte
	Cmdline      string
	// Uname is left empty for stubs before systemd 254.
	Uname string
	// Sign, if set, signs the unified kernel image.
	Sign func(uki []byte) []byte
	// ESP are files to add beside the kernel image, by their path.
	ESP map[string][]byte
	// Initrd, if set, is in place of the probe's own program: it opens Root, a file system in which a program waits that says the same.
	Initrd, Root []byte
	// Slot has the sizes of a slot where releases are to follow each other.
	Slot slot.Sizes
}

// Result is what a boot measured.
type Result struct {
	Log       []byte
	Registers map[pcrs.Bank]pcrs.Values
	// Cmdline is the kernel command line that the kernel ran with.
	Cmdline string
	// Accel is what executed the instructions.
	Accel vm.Accel
	// Root and Slots are what the program in Parts.Root says of it, and of the slots; empty of others.
	Root, Slots string
}

// New makes a probe's disk in a folder of the test.
func New(t testing.TB, p Parts) Image {
	t.Helper()
	if p.Initrd == nil {
		p.Initrd, p.Root = initrd(t), make([]byte, 16*verity.BlockSize)
	}
	layout, err := image.Plan(image.Parts{
		Stub: p.Stub, Kernel: p.Kernel, Initrd: p.Initrd, OSRelease: []byte("ID=probe\nIMAGE_ID=probe\nIMAGE_VERSION=1\n"), Uname: p.Uname,
		Cmdline: p.Cmdline, Root: bytes.NewReader(p.Root), RootSize: int64(len(p.Root)), Time: time.Unix(1700000000, 0), Slot: p.Slot,
	})
	if err != nil {
		t.Fatal(err)
	}
	i := Image{Path: filepath.Join(t.TempDir(), "probe.raw")}
	write(t, i.Path, layout)
	i.open(t)
	if p.Sign != nil {
		i.Add(t, map[string][]byte{uki.Path: p.Sign(layout.UKI())})
		i.writeESPTree(t)
		i.open(t)
	}
	i.Add(t, p.ESP)
	return i
}

func write(t testing.TB, path string, layout *image.Layout) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := layout.WriteInto(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// open reads the disk back, for predictions.
func (i *Image) open(t testing.TB) {
	t.Helper()
	raw, err := os.ReadFile(i.Path)
	if err != nil {
		t.Fatal(err)
	}
	if i.Disk, err = image.Open(bytes.NewReader(raw), int64(len(raw))); err != nil {
		t.Fatal(err)
	}
}

// writeESPTree writes the hash tree of the ESP as it is now behind that of the root.
func (i Image) writeESPTree(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile(i.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	esp := make([]byte, i.Disk.Table.Partitions[0].Size())
	if _, err := f.ReadAt(esp, i.Disk.Table.Partitions[0].Offset()); err != nil {
		t.Fatal(err)
	}
	tree, err := slot.ESPTree(esp)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(tree, i.Disk.Table.Partitions[2].Offset()+i.Disk.Verity.Size()); err != nil {
		t.Fatal(err)
	}
}

// Add puts files on the ESP with mtools, which knows nothing of ours.
func (i Image) Add(t testing.TB, files map[string][]byte) {
	t.Helper()
	drive := fmt.Sprintf("%s@@%d", i.Path, i.Disk.Table.Partitions[0].Offset())
	made := map[string]bool{"EFI": true, "EFI/BOOT": true}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		dirs := strings.Split(name, "/")
		for n := 1; n < len(dirs); n++ {
			if dir := strings.Join(dirs[:n], "/"); !made[dir] {
				mtool(t, nil, "mmd", "-i", drive, "::"+dir)
				made[dir] = true
			}
		}
		mtool(t, files[name], "mcopy", "-o", "-i", drive, "-", "::"+name)
	}
}

func mtool(t testing.TB, input []byte, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%s is missing: apt-get install mtools", name)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// Program compiles a program of the repository for a guest.
func Program(t testing.TB, folder string) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "github.com/hullmark/hullmark/"+folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", folder, err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// initrd holds the probe's program alone.
func initrd(t testing.TB) []byte {
	t.Helper()
	var archive bytes.Buffer
	if err := cpio.Write(&archive, []cpio.Entry{
		{Name: "init", Mode: 0o755, Data: Program(t, "tools/probe")},
		{Name: "dev", Mode: os.ModeDir | 0o755},
	}); err != nil {
		t.Fatal(err)
	}
	// The kernel passes over zeros between archives. With one, the length is odd, and whoever fills up the parts of an initrd
	// is seen doing it.
	return append(archive.Bytes(), 0)
}

// Boot boots the image and returns what it measured. c says on what; its folder is set here, and its image if it names no file of
// another format.
func (i Image) Boot(t testing.TB, c vm.Config) Result {
	t.Helper()
	if c.ImageFormat == "" {
		c.Image = i.Path
	}
	if c.Dir != "" {
		return Run(t, c)
	}
	for range 2 {
		c.Dir = filepath.Join(t.TempDir(), "machine")
		console, m, err := run(t, c)
		if lost := lostTimer.FindString(console); lost != "" {
			t.Logf("the machine is started anew, since its emulator lost a processor's timer: the guest's kernel says %q", lost)
			continue
		}
		return result(t, console, m, err)
	}
	t.Fatal("the emulator lost a processor's timer twice")
	return Result{}
}

// lostTimer is what the kernel says of a processor whose timer is quiet. QEMU, emulating several in threads of their own, lets one sleep
// for good, once in some hundred boots; it says nothing of what the machine measured.
var lostTimer = regexp.MustCompile(`rcu_\w+ kthread timer wakeup didn't happen for [0-9]+ jiffies`)

// Run boots a machine whose disk holds a probe, and returns what it measured.
func Run(t testing.TB, c vm.Config) Result {
	t.Helper()
	console, m, err := run(t, c)
	return result(t, console, m, err)
}

// run boots a machine until it switches itself off, or its kernel waits for a processor that sleeps.
func run(t testing.TB, c vm.Config) (string, *vm.Machine, error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), bootTime, errors.New("the probe did not switch itself off"))
	defer cancel()
	console := watched{stop: cancel}
	c.ExitOnReboot, c.Output = true, &console
	m, err := vm.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	err = m.Wait()
	return console.String(), m, err
}

// watched is a console that ends its machine when the kernel says that a processor's timer is lost.
type watched struct {
	bytes.Buffer
	stop func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if bytes.Contains(p, []byte{'\n'}) && lostTimer.Match(w.Bytes()[max(0, w.Len()-4096):]) {
		w.stop()
	}
	return n, err
}

func result(t testing.TB, console string, m *vm.Machine, err error) Result {
	t.Helper()
	if err != nil {
		t.Fatalf("%v; console:\n%s", err, console)
	}
	r, err := parse(console)
	if err == nil {
		err = r.consistent()
	}
	if err != nil {
		t.Fatalf("%v; console:\n%s", err, console)
	}
	r.Accel = m.Acceleration().Accel
	return r
}

// consistent holds what the probe says against itself: the log has to lead to the registers that firmware, stub and kernel extend.
func (r Result) consistent() error {
	log, err := pcrs.ParseLog(r.Log)
	if err != nil {
		return err
	}
	for _, bank := range pcrs.PredictedBanks() {
		values, err := log.Replay(bank)
		if err != nil {
			return err
		}
		for register := range pcrs.Register(16) {
			if register != 10 && !values[register].Equal(r.Registers[bank][register]) { // the kernel extends PCR 10 without a log
				return fmt.Errorf("%v (%v): the log leads to %v, the TPM has %v", register, bank, values[register], r.Registers[bank][register])
			}
		}
	}
	return nil
}

var line = regexp.MustCompile(`(?m)^probe: (.*?)\r*$`)

// parse reads what the probe's program wrote.
func parse(console string) (Result, error) {
	r := Result{Registers: map[pcrs.Bank]pcrs.Values{}}
	done := false
	for _, found := range line.FindAllStringSubmatch(console, -1) {
		what, rest, _ := strings.Cut(found[1], " ")
		var err error
		switch what {
		case "log":
			r.Log, err = base64.StdEncoding.DecodeString(rest)
		case "register":
			err = r.register(strings.Fields(rest))
		case "cmdline":
			r.Cmdline = rest
		case "root":
			r.Root = rest
		case "slots":
			r.Slots = rest
		case "done":
			done = true
		default:
			err = errors.New(found[1])
		}
		if err != nil {
			return r, fmt.Errorf("probe: %s: %w", what, err)
		}
	}
	if !done {
		return r, fmt.Errorf("probe: the console ends before its report: %w", io.ErrUnexpectedEOF)
	}
	return r, nil
}

func (r Result) register(fields []string) error {
	if len(fields) != 3 {
		return fmt.Errorf("%q", fields)
	}
	bank, err := pcrs.ParseBank(fields[0])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		return err
	}
	if r.Registers[bank] == nil {
		r.Registers[bank] = pcrs.Values{}
	}
	var value pcrs.Digest
	if err := value.UnmarshalText([]byte(fields[2])); err != nil {
		return err
	}
	r.Registers[bank][pcrs.Register(n)] = value
	return nil
}
