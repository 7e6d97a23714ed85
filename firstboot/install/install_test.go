package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/disks"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
	"github.com/hullmark/hullmark/internal/imagetest"
	"github.com/hullmark/hullmark/internal/powercut"
)

// stick is a medium, with the disk that it installs.
type stick struct {
	raw    []byte
	disk   *image.Disk
	layout *image.Layout
	want   []byte
}

func newStick(t *testing.T, cmdline, config string) stick {
	t.Helper()
	stub := imagetest.Stub(t, "257")
	root := bytes.Repeat([]byte("a block of the root "), 1<<20/20)[:1<<20-verity.BlockSize]
	raw := imagetest.Disk(t, image.Parts{
		Stub: stub, Kernel: stub, Initrd: []byte("initrd"), OSRelease: []byte("ID=test\n"), Cmdline: cmdline,
		Root: bytes.NewReader(root), RootSize: int64(len(root)), Time: time.Unix(1700000000, 0), Slot: slot.Sizes{Root: 2 << 20, Config: 1},
	})
	published, err := image.Open(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := published.Medium([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	s := stick{raw: bytesOf(t, l)}
	s.read(t, bytes.NewReader(s.raw), config)
	s.want = bytesOf(t, s.layout)
	return s
}

func (s *stick) read(t *testing.T, r io.ReaderAt, config string) {
	t.Helper()
	var err error
	if s.disk, _, err = image.OpenMedium(&medium{ReaderAt: r}, int64(len(s.raw))); err != nil {
		t.Fatal(err)
	}
	if s.layout, err = s.disk.Configured([]byte(config)); err != nil {
		t.Fatal(err)
	}
}

func bytesOf(t *testing.T, l *image.Layout) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := l.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const diskSize = 600 << 20

func to(m powercut.Medium) (target, powercut.Unaligned) {
	d := powercut.Unaligned{Disk: powercut.NewDisk(m, diskSize)}
	return target{Target: d, disk: disks.Disk{Name: "sda", Serial: "S-1", Size: diskSize}}, d
}

func ignore(string, int) {}

// holds fails unless a disk is what the stick installs.
func (s stick) holds(t *testing.T, what string, d io.ReaderAt) {
	t.Helper()
	got := make([]byte, len(s.want))
	if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, s.want) {
		t.Errorf("%s: the disk is not the one that the medium installs, %v", what, err)
	}
}

// zeroAt fails unless a state disk behind the slots would be blank.
func (s stick) zeroBehind(t *testing.T, what string, d io.ReaderAt) {
	t.Helper()
	claim, err := statedisk.Probe(io.NewSectionReader(d, s.layout.Size(), diskSize-s.layout.Size()), diskSize-s.layout.Size())
	if err != nil || claim.State != hullmark.DiskBlank {
		t.Errorf("%s: behind the slots: %v, %v", what, claim.State, err)
	}
}

func TestInstall(t *testing.T) {
	s := newStick(t, "release=1", "{}")
	target, disk := to(powercut.NewMemory())
	var told []string
	before, err := target.install(t.Context(), s.disk, s.layout, "", func(doing string, percent int) { told = append(told, fmt.Sprintf("%s %d", doing, percent)) })
	if err != nil || before {
		t.Fatal(before, err)
	}
	s.holds(t, "a blank disk", disk)
	if all := strings.Join(told, "; "); !strings.Contains(all, "writing to /dev/sda (0.6 GB, serial S-1) 1; ") || !strings.HasSuffix(all, " 100") {
		t.Errorf("told %s", all)
	}
	// Once more: nothing is written, even where it would be allowed, and though a node has written to its slots since.
	if err := write(disk, bytes.Repeat([]byte{7}, 4096), s.layout.ESP().Offset()); err != nil {
		t.Fatal(err)
	}
	disk.Watch = func(r powercut.Record) bool { t.Errorf("%+v", r); return false }
	if before, err := target.install(t.Context(), s.disk, s.layout, "S-1", ignore); !before || err != nil {
		t.Errorf("again: %v, %v", before, err)
	}
}

// While a medium is checked, which takes long on a slow one, people see that it goes on.
func TestMediumTellsOfItsCheck(t *testing.T) {
	raw := newStick(t, "release=1", "{}").raw
	m := &medium{ReaderAt: bytes.NewReader(raw)}
	disk, _, err := image.OpenMedium(m, int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	var told []int
	m.watch(int64(len(raw)), func(percent int) { told = append(told, percent) })
	if err := disk.Verify(); err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(told) || len(told) < 3 || told[0] > 5 || told[len(told)-1] < 5 {
		t.Errorf("told %v", told)
	}
	m.watch(0, nil)
	seen := len(told)
	if _, err := m.ReadAt(make([]byte, 4096), 0); err != nil || len(told) != seen {
		t.Errorf("told %v after the check, %v", told, err)
	}
}

func write(d powercut.Unaligned, b []byte, at int64) error {
	_, err := d.WriteAt(b, at)
	return errors.Join(err, d.Sync())
}

// TestOverwrite: what a disk holds is lost only where the configuration names that very disk.
func TestOverwrite(t *testing.T) {
	s := newStick(t, "release=1", "{}")
	for name, c := range map[string]struct {
		text string
		at   int64
		want string
	}{
		"a file system":        {"\x53\xef", 1080, "with a file system (ext)"},
		"an encrypted disk":    {"LUKS\xba\xbe", 0, "with an encrypted disk (LUKS)"},
		"a physical volume":    {"LABELONE", 512, "with a physical volume (LVM)"},
		"a RAID":               {"\xfc\x4e\x2b\xa9", 4096, "with a part of a RAID"},
		"a file system, Btrfs": {"_BHRfS_M", 0x10040, "with a file system (Btrfs)"},
		"a byte at its start":  {"x", 3000, "not known here"},
		"a byte further on":    {"x", 15 << 20, "not known here"},
		"a RAID's end":         {"x", diskSize - 4096, "not known here"},
	} {
		target, disk := to(powercut.NewMemory())
		content := make([]byte, 4096)
		copy(content[c.at%512:], c.text)
		at := c.at / 512 * 512
		if err := write(disk, content, at); err != nil {
			t.Fatal(err)
		}
		for _, overwrite := range []string{"", "S-2"} {
			disk.Watch = func(r powercut.Record) bool { t.Errorf("%s: %+v", name, r); return false }
			_, err := target.install(t.Context(), s.disk, s.layout, overwrite, ignore)
			if got := condition(err); got.Code != "install-disk-used" || !strings.Contains(got.Got, c.want) || !strings.Contains(got.Next, `say there "overwrite": "S-1"`) {
				t.Errorf("%s: %v", name, err)
			}
		}
		disk.Watch = nil
		if _, err := target.install(t.Context(), s.disk, s.layout, "S-1", ignore); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.holds(t, name, disk)
		s.zeroBehind(t, name, disk)
	}
}

func condition(err error) hullmark.Condition {
	var c *hullmark.Condition
	if !errors.As(err, &c) {
		return hullmark.Condition{}
	}
	return *c
}

// TestAnotherConfiguration: a disk that was installed with another configuration is a node's. It is overwritten only by its name, and what
// lies behind the slots stays even then.
func TestAnotherConfiguration(t *testing.T) {
	old, s := newStick(t, "release=1", `{"a":1}`), newStick(t, "release=1", `{"a":2}`)
	target, disk := to(powercut.NewMemory())
	if _, err := target.install(t.Context(), old.disk, old.layout, "", ignore); err != nil {
		t.Fatal(err)
	}
	state := bytes.Repeat([]byte{9}, 4096)
	for _, at := range []int64{old.layout.Size(), diskSize - int64(len(state))} {
		if err := write(disk, state, at); err != nil {
			t.Fatal(err)
		}
	}
	_, err := target.install(t.Context(), s.disk, s.layout, "", ignore)
	if got := condition(err); got.Code != "install-disk-used" || !strings.Contains(got.Got, `a table of 7 partitions: "esp-a"`) {
		t.Errorf("%v", err)
	}
	if _, err := target.install(t.Context(), s.disk, s.layout, "S-1", ignore); err != nil {
		t.Fatal(err)
	}
	s.holds(t, "overwritten", disk)
	for _, at := range []int64{old.layout.Size(), diskSize - int64(len(state))} {
		got := make([]byte, len(state))
		if _, err := disk.ReadAt(got, at); err != nil || !bytes.Equal(got, state) {
			t.Errorf("the state at %d is gone, %v", at, err)
		}
	}
}

// TestAnotherConfigurationIsCut: a node's state stays also where the power went while its disk was given another configuration, and at the
// medium's next start. On a disk whose ends somebody has emptied since, there is no state.
func TestAnotherConfigurationIsCut(t *testing.T) {
	old, s := newStick(t, "release=1", `{"a":1}`), newStick(t, "release=1", `{"a":2}`)
	memory := powercut.NewMemory()
	target, disk := to(memory)
	if _, err := target.install(t.Context(), old.disk, old.layout, "", ignore); err != nil {
		t.Fatal(err)
	}
	key := hullmark.NewSecret(make([]byte, 32))
	state := make([]byte, statedisk.OffsetB+statedisk.RecordSize)
	copy(state[statedisk.OffsetB:], statedisk.EncodeB(statedisk.Ready{Identity: statedisk.Identity{UUID: hullmark.UUID{1}, Generation: 1, Owner: hullmark.EKID{1}}}, nil, key))
	if err := write(disk, state, old.layout.Size()); err != nil {
		t.Fatal(err)
	}
	has := func(what string, d powercut.Unaligned, want bool) {
		t.Helper()
		got := make([]byte, len(state))
		if _, err := d.ReadAt(got, old.layout.Size()); err != nil || bytes.Equal(got, state) != want {
			t.Errorf("%s: the state is there: %v, want %v, %v", what, !want, want, err)
		}
	}
	cut := func(number int) (left *powercut.Memory, records int) {
		left = memory.Copy()
		target, disk := to(left)
		disk.Watch = func(powercut.Record) bool { records++; return records == number }
		if _, err := target.install(t.Context(), s.disk, s.layout, "S-1", ignore); (err == nil) != (number == 0) {
			t.Fatalf("cut at %d of %d: %v", number, records, err)
		}
		return left, records
	}
	_, records := cut(0)
	for _, number := range []int{2, 4, 6, records / 2, records - 1} {
		what := fmt.Sprintf("cut at %d of %d", number, records)
		left, _ := cut(number)
		target, disk := to(left)
		if _, err := target.install(t.Context(), s.disk, s.layout, "", ignore); condition(err).Code != "install-disk-used" {
			t.Errorf("%s: unnamed: %v", what, err)
		}
		if _, err := target.install(t.Context(), s.disk, s.layout, "S-1", ignore); err != nil {
			t.Errorf("%s: the next start: %v", what, err)
		}
		s.holds(t, what, disk)
		has(what, disk, true)
	}
	if err := write(disk, make([]byte, edge), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := target.install(t.Context(), s.disk, s.layout, "", ignore); err != nil {
		t.Error(err)
	}
	has("emptied", disk, false)
}

func TestTooSmall(t *testing.T) {
	s := newStick(t, "release=1", "{}")
	target, disk := to(powercut.NewMemory())
	disk.Watch = func(r powercut.Record) bool { t.Errorf("%+v", r); return false }
	for _, c := range []struct {
		size, behind int64
	}{{s.layout.Size() - 512, 0}, {s.layout.Size() + statedisk.MinSize - 1, statedisk.MinSize}} {
		target.disk.Size, target.behind = c.size, c.behind
		if _, err := target.install(t.Context(), s.disk, s.layout, "S-1", ignore); condition(err).Code != "install-disk-small" {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// gone is a medium that is pulled out after some reads.
type gone struct {
	io.ReaderAt
	left *int
}

func (g gone) ReadAt(b []byte, at int64) (int, error) {
	if *g.left--; *g.left < 0 {
		return 0, io.EOF
	}
	return g.ReaderAt.ReadAt(b, at)
}

// TestMediumIsPulledOut: the disk has no table then, and the next start of the medium begins anew.
func TestMediumIsPulledOut(t *testing.T) {
	s := newStick(t, "release=1", "{}")
	for _, after := range []int{0, 1, 5, 40, 70, 120} {
		target, disk := to(powercut.NewMemory())
		left := 1 << 30
		s.read(t, gone{bytes.NewReader(s.raw), &left}, "{}")
		left = after
		_, err := target.install(t.Context(), s.disk, s.layout, "", ignore)
		if got := condition(err); got.Code != "medium-lost" {
			t.Fatalf("after %d reads: %v", after, err)
		}
		nothing(t, fmt.Sprintf("after %d reads", after), disk)
		s.read(t, bytes.NewReader(s.raw), "{}")
		if _, err := target.install(t.Context(), s.disk, s.layout, "", ignore); err != nil {
			t.Errorf("after %d reads: the next start: %v", after, err)
		}
		s.holds(t, fmt.Sprintf("after %d reads", after), disk)
	}
}

// nothing fails if firmware would find a table.
func nothing(t *testing.T, what string, disk io.ReaderAt) {
	t.Helper()
	for _, size := range []int64{diskSize, gpt.SizeWithin(disk, diskSize)} {
		if _, err := gpt.Read(disk, size); err == nil {
			t.Errorf("%s: the disk has a table", what)
		}
	}
}

func TestDamagedMedium(t *testing.T) {
	s := newStick(t, "release=1", "{}")
	raw := bytes.Clone(s.raw)
	at := bytes.Index(raw, []byte("a block of the root"))
	raw[at+100000] ^= 1
	s.read(t, bytes.NewReader(raw), "{}")
	target, disk := to(powercut.NewMemory())
	disk.Watch = func(r powercut.Record) bool { t.Errorf("%+v", r); return false }
	if _, err := target.install(t.Context(), s.disk, s.layout, "", ignore); err == nil || !strings.Contains(err.Error(), "root hash") {
		t.Errorf("%v", err)
	}
}

// failing is a disk that cannot be written.
type failing struct{ powercut.Unaligned }

func (failing) WriteAt([]byte, int64) (int, error) { return 0, errors.New("I/O error") }

func TestDiskFails(t *testing.T) {
	s := newStick(t, "release=1", "{}")
	target, disk := to(powercut.NewMemory())
	target.Target = failing{disk}
	if _, err := target.install(t.Context(), s.disk, s.layout, "", ignore); condition(err).Code != "install-failed" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	target.Target = disk
	if _, err := target.install(ctx, s.disk, s.layout, "", ignore); err == nil {
		t.Error("it goes on for nobody")
	}
	nothing(t, "cancelled", disk)
}

// cuts is how many of the places where the power can go are tried.
const cuts = 4

// TestPowerCuts: after every cut the disk has no table or is whole, and the medium installs it at its next start without being allowed to
// overwrite anything. The same over a disk that may be overwritten.
func TestPowerCuts(t *testing.T) {
	s, random := newStick(t, "release=1", "{}"), rand.New(rand.NewPCG(1, 2))
	full := powercut.NewMemory()
	if _, err := full.WriteAt(bytes.Repeat([]byte("somebody's data "), 1<<16), 0); err != nil {
		t.Fatal(err)
	}
	for overwrite, before := range map[string]*powercut.Memory{"": powercut.NewMemory(), "S-1": full} {
		cut := func(number int) (left *powercut.Memory, records int) {
			left = before.Copy()
			target, disk := to(left)
			disk.Watch = func(powercut.Record) bool { records++; return records == number }
			_, err := target.install(t.Context(), s.disk, s.layout, overwrite, ignore)
			if (err == nil) != (number == 0) {
				t.Fatalf("cut at %d of %d: %v", number, records, err)
			}
			if _, err := disk.Tear(random); err != nil {
				t.Fatal(err)
			}
			return left, records
		}
		_, records := cut(0)
		for _, number := range append(random.Perm(records)[:cuts], 0, records-1) {
			what := fmt.Sprintf("overwrite %q, cut at %d of %d", overwrite, number+1, records)
			left, _ := cut(number + 1)
			target, disk := to(left)
			if table, err := gpt.Read(disk, gpt.SizeWithin(disk, diskSize)); err == nil {
				if _, err := slot.Find(table); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				s.holds(t, what, disk)
			}
			if _, err := target.install(t.Context(), s.disk, s.layout, overwrite, ignore); err != nil {
				t.Errorf("%s: the next start: %v", what, err)
			}
			s.holds(t, what, disk)
			s.zeroBehind(t, what, disk)
		}
	}
}
