//go:build vm

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/erofs"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/internal/powercut"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/internal/probe/slotnode"
	"github.com/hullmark/hullmark/internal/toolstree"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/measurements"
)

// slotRelease is a release whose root holds the slots' helper, and whose boots were predicted before.
type slotRelease struct {
	path         string
	root, digest hullmark.RootHash
	document     measurements.Document
	fallback     measurements.Document // where firmware first tried to start the other slot, in the same boot
}

// slotSite is a kind of machine, and releases for it that follow each other on one disk.
type slotSite struct {
	bench
	shape     map[string]any
	releases  []slotRelease
	slots     [2]slot.Partitions
	size      int64
	variables []byte
	folders   chan string // of machines that are off
	accel     vm.Accel    // that the first boot has chosen
}

// slotSizes leave room for the kernel image, and for a root with the helper.
var slotSizes = slot.Sizes{ESP: 40 << 20, Root: 24 << 20}

// newSlotSite makes n releases, and predicts what each measures.
func newSlotSite(t *testing.T, b bench, n int) *slotSite {
	t.Helper()
	s := &slotSite{bench: b, shape: map[string]any{"schema": "hullmark.machine/v1", "tools": b.tools(), "cpus": 1, "memoryMiB": 512, "stateDisk": "1G"}, folders: make(chan string, 64)}
	s.variables = contentOf(t, b.ovmf("OVMF_VARS_4M.fd"))
	machine := filepath.Join(t.TempDir(), "machine.json")
	text, err := json.Marshal(s.shape)
	if err := errors.Join(err, os.WriteFile(machine, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	cli(t, 0, "learn", "--machine", machine)
	files := b.nodeFiles(t)
	parts := b.probeParts(t)
	parts.Initrd, parts.Slot = b.builtSection(t, ".initrd"), slotSizes
	// Where an emulated processor is starved the kernel finds that its timer does not tick, and panics.
	cmdline := parts.Cmdline + " no_timer_check"
	for i := range n {
		files[slotnode.Release] = []byte(strconv.Itoa(i))
		parts.Root, parts.Cmdline = packRoot(t, files, uint64(i)), cmdline+" hullmark.release="+strconv.Itoa(i)
		made := probe.New(t, parts)
		r := slotRelease{path: made.Path, root: hullmark.RootHash(made.Disk.RootHash)}
		r.document, r.fallback = b.measure(t, made.Path, machine), b.measure(t, made.Path, machine, "--fallback")
		r.digest = hullmark.RootHash(r.document.Image.Disk)
		s.releases = append(s.releases, r)
		s.size = int64(len(contentOf(t, made.Path)))
		if s.slots, err = slot.Find(made.Disk.Table); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// builtSection is a section of the built image's kernel image.
func (b bench) builtSection(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(b.image())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	disk, err := image.Open(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	content, ok := disk.UKI.Section(name)
	if !ok {
		t.Fatalf("the kernel image has no section %s", name)
	}
	return content
}

// nodeFiles are the files of a slotnode's root: the built image's module for firmware variables among them.
func (b bench) nodeFiles(t *testing.T) map[string][]byte {
	t.Helper()
	table := tableOf(t, contentOf(t, b.image()))
	uname := strings.TrimRight(string(b.builtSection(t, ".uname")), "\x00\n")
	const inTree = "/tmp/image"
	dump := toolstree.Command(t.Context(), b.tools(), []toolstree.Bind{{Host: b.image(), Tree: inTree}}, "dump.erofs", "--cat",
		fmt.Sprintf("--offset=%d", table.Partitions[1].Offset()), "--path=/usr/lib/modules/"+uname+"/kernel/fs/efivarfs/efivarfs.ko", inTree)
	var problem bytes.Buffer
	dump.Stderr = &problem
	module, err := dump.Output()
	if err != nil || len(module) == 0 { // It ends without an error for a file that is not there.
		t.Fatalf("dump.erofs: %v: %s", err, problem.Bytes())
	}
	return map[string][]byte{
		slotnode.Module: module, slotnode.Helper: probe.Program(t, "tools/slots"), slotnode.Init: probe.Program(t, "internal/test/slotnode"),
	}
}

// packRoot packs a root of these files, and of some that no other release has.
func packRoot(t *testing.T, content map[string][]byte, seed uint64) []byte {
	t.Helper()
	own := make([]byte, 2<<20)
	random := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = random.Read(own) // It never fails.
	files := map[string]erofs.File{".": {Mode: fs.ModeDir | 0o755}}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp"} {
		files[dir] = erofs.File{Mode: fs.ModeDir | 0o755}
	}
	add := func(name string, content []byte) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			files[dir] = erofs.File{Mode: fs.ModeDir | 0o755}
		}
		files[name] = erofs.File{Mode: 0o755, Size: int64(len(content)), Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }}
	}
	add("own", own)
	for name, c := range content {
		add(name, c)
	}
	var list []erofs.File
	for name, f := range files {
		f.Name = name
		list = append(list, f)
	}
	packed, err := erofs.Pack(t.Context(), list, time.Unix(1700000000, 0))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := packed.Write(&out, [16]byte{byte(seed)}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// slotMachine is a machine's disk, and the firmware's variables: a flash that is watched, or a file, which boots in half the time.
type slotMachine struct {
	disk, flash *powercut.Disk
	variables   string
}

// installed is the media of a machine with the first release in its first slot, that was never booted.
func (s *slotSite) installed(t *testing.T) (disk, flash *powercut.Memory) {
	t.Helper()
	disk, flash = powercut.NewMemory(), powercut.NewMemory()
	fill := func(m *powercut.Memory, content []byte) {
		const block = 4096
		for at := 0; at < len(content); at += block {
			if part := content[at:min(at+block, len(content))]; len(bytes.Trim(part, "\x00")) > 0 {
				_, _ = m.WriteAt(part, int64(at)) // It never fails.
			}
		}
	}
	fill(disk, contentOf(t, s.releases[0].path))
	fill(flash, s.variables)
	return disk, flash
}

// switchedOn gives media power.
func (s *slotSite) switchedOn(disk, flash *powercut.Memory) slotMachine {
	return slotMachine{disk: powercut.NewDisk(disk, s.size), flash: powercut.NewDisk(flash, int64(len(s.variables)))}
}

// slotBoot is what one boot measured, and what was in the slots when it began.
type slotBoot struct {
	probe.Result
	release int // that runs
	slots   update.Slots
}

// boot boots the machine, has it do what is ordered, and returns when it has switched itself off. began is told when a request is begun.
func (s *slotSite) boot(t *testing.T, m slotMachine, began func(), requests ...update.Request) slotBoot {
	t.Helper()
	dir, err := os.MkdirTemp("", "slots") // A socket's path is short.
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	serve := func(name string, d powercut.Device) string {
		socket := filepath.Join(dir, name)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go powercut.Serve(l, d)
		return socket
	}
	c := s.shaped(t, s.shape)
	c.StateDisk, c.StateNBD = 0, serve("host", s.hostDisk(t, began, requests))
	c.ImageNBD = serve("disk", m.disk)
	c.Dir, c.Accel = s.folder(t), s.accel
	if m.variables == "" {
		c.VarsNBD = serve("flash", m.flash)
		r := probe.Run(t, c)
		s.folders <- c.Dir
		return s.understood(t, r)
	}
	c.Firmware.Code, c.Firmware.Vars = s.ovmf("OVMF_CODE_4M.fd"), m.variables
	files, err := c.Files() // The machine's copy is another file, and what the next boot begins with.
	if err != nil {
		t.Fatal(err)
	}
	r := probe.Run(t, c)
	if err := os.Rename(files.Vars, m.variables); err != nil {
		t.Fatal(err)
	}
	s.folders <- c.Dir
	return s.understood(t, r)
}

// folder is one that no machine uses now: the TPM in it need not be made again.
func (s *slotSite) folder(t *testing.T) string {
	t.Helper()
	select {
	case dir := <-s.folders:
		return dir
	default:
	}
	dir, err := os.MkdirTemp(s.dir, "machine")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// understood reads what the node said of itself, of which each part has to fit the others.
func (s *slotSite) understood(t *testing.T, r probe.Result) slotBoot {
	t.Helper()
	b := slotBoot{Result: r}
	if err := json.Unmarshal([]byte(r.Slots), &b.slots); err != nil {
		t.Fatalf("slots %q: %v", r.Slots, err)
	}
	var err error
	if b.release, err = strconv.Atoi(r.Root); err != nil || b.release >= len(s.releases) {
		t.Fatalf("release %q runs, which is none of ours", r.Root)
	}
	running := b.slots.A
	if b.slots.Running == slot.B.String() {
		running = b.slots.B
	}
	if running != s.releases[b.release].root || !strings.Contains(r.Cmdline, "hullmark.release="+r.Root) {
		t.Fatalf("release %s runs, by the command line %q, and the slots hold %+v", r.Root, r.Cmdline, b.slots)
	}
	return b
}

// stage asks for a release.
func (s *slotSite) stage(n int) update.Request {
	r := s.releases[n]
	return update.Request{Op: update.OpStage, RootHash: r.root, Disk: r.digest, Sources: []string{slotnode.Source}}
}

// hostDisk is the disk by which a node hears from its host.
type hostDisk struct {
	head  []byte
	raws  []*os.File
	size  int64 // of each
	began func()
}

func (s *slotSite) hostDisk(t *testing.T, began func(), requests []update.Request) *hostDisk {
	t.Helper()
	d := &hostDisk{size: s.size, began: began}
	orders := slotnode.Orders{Requests: requests}
	for i, r := range s.releases {
		f, err := os.Open(r.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		d.raws = append(d.raws, f)
		orders.Disks = append(orders.Disks, slotnode.Disk{Digest: r.digest, Offset: slotnode.Published + int64(i)*s.size, Size: s.size})
	}
	text, err := json.Marshal(orders)
	if err != nil {
		t.Fatal(err)
	}
	d.head = make([]byte, slotnode.Published)
	copy(d.head, text)
	return d
}

// Size is that of the head and the releases.
func (d *hostDisk) Size() int64 { return slotnode.Published + int64(len(d.raws))*d.size }

// Flush does nothing.
func (d *hostDisk) Flush() error { return nil }

// ReadAt reads the orders and, behind them, one raw disk after the other.
func (d *hostDisk) ReadAt(b []byte, at int64) (int, error) {
	for n := 0; n < len(b); {
		part, from := b[n:], at+int64(n)
		if from < slotnode.Published {
			n += copy(part, d.head[from:])
			continue
		}
		number, inside := (from-slotnode.Published)/d.size, (from-slotnode.Published)%d.size
		read, err := d.raws[number].ReadAt(part[:min(int64(len(part)), d.size-inside)], inside)
		if err != nil {
			return n, err
		}
		n += read
	}
	return len(b), nil
}

// WriteAt is how a node says that it begins with the next request.
func (d *hostDisk) WriteAt(b []byte, _ int64) (int, error) {
	if d.began != nil {
		d.began()
	}
	return len(b), nil
}
