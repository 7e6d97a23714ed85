package update

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
	"github.com/hullmark/hullmark/internal/imagetest"
	"github.com/hullmark/hullmark/internal/powercut"
)

// published is a release as it is published.
type published struct {
	Release
	raw []byte
}

var made []published

// releases are three of one line: each has its own command line and some blocks of its own in a root of a megabyte.
func releases(t *testing.T) []published {
	t.Helper()
	if made != nil {
		return made
	}
	stub := imagetest.Stub(t, "257")
	for n := range byte(3) {
		root := make([]byte, 1<<20)
		for at := 0; at < len(root); at += verity.BlockSize {
			copy(root[at:], fmt.Sprintf("block %d", at))
		}
		for at := 100 * verity.BlockSize; at < 150*verity.BlockSize; at += verity.BlockSize {
			root[at+20] = 1 + n
		}
		raw := imagetest.Disk(t, image.Parts{
			Stub: stub, Kernel: stub, Initrd: []byte("initrd"), OSRelease: []byte("ID=test\n"), Cmdline: fmt.Sprintf("release=%d", n),
			Root: bytes.NewReader(root), RootSize: int64(len(root)), Time: time.Unix(1700000000, 0), Slot: slot.Sizes{Root: 2 << 20},
		})
		disk, err := image.Open(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, published{Release{disk.RootHash, sha256.Sum256(raw)}, raw})
	}
	return made
}

// installed is the medium of a node that was installed with a release.
func installed(t *testing.T, p published) *powercut.Memory {
	t.Helper()
	m := powercut.NewMemory()
	for at := 0; at < len(p.raw); at += piece {
		if part := p.raw[at:min(at+piece, len(p.raw))]; len(bytes.Trim(part, "\x00")) > 0 {
			if _, err := m.WriteAt(part, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}

func open(t *testing.T, m powercut.Medium, running slot.Slot) (*Disk, powercut.Unaligned) {
	t.Helper()
	dev := powercut.Unaligned{Disk: powercut.NewDisk(m, int64(len(releases(t)[0].raw)))}
	d, err := Open(dev, dev.Size(), running)
	if err != nil {
		t.Fatal(err)
	}
	d.pause = func(context.Context, time.Duration) error { return nil }
	return d, dev
}

// memory is a source that gives what change makes of each part.
type memory struct {
	raw    []byte
	change func(at int64, part []byte) ([]byte, error)
}

func (m memory) Range(_ context.Context, at, n int64) (io.ReadCloser, error) {
	part := bytes.Clone(m.raw[at:min(at+n, int64(len(m.raw)))])
	if m.change != nil {
		var err error
		if part, err = m.change(at, part); err != nil {
			return nil, err
		}
	}
	return io.NopCloser(bytes.NewReader(part)), nil
}

func from(sources ...Source) []Source { return sources }

// holds wants a slot to have a whole release, and the slot that starts by itself.
func holds(t *testing.T, d *Disk, n slot.Slot, p published, starts slot.Slot) {
	t.Helper()
	c, err := d.Content(n)
	if err != nil || c.Root != p.RootHash {
		t.Fatalf("slot %v: %+v, %v", n, c, err)
	}
	if err := whole(d, n, p); err != nil {
		t.Fatalf("slot %v: %v", n, err)
	}
	if got, err := d.Default(); err != nil || got != starts {
		t.Fatalf("slot %v starts by itself, %v; want %v", got, err, starts)
	}
}

// whole reports what is wrong with a release in a slot, block by block.
func whole(d *Disk, n slot.Slot, p published) error {
	tree := d.section(d.slots[n].Tree)
	s, err := verity.ReadSuperblock(tree)
	if err != nil {
		return err
	}
	return verity.Verify(d.section(d.slots[n].Root), s.DataSize, tree, verity.Size(s.DataSize), p.RootHash)
}

func TestStageAndCommit(t *testing.T) {
	r := releases(t)
	m := installed(t, r[0])
	d, _ := open(t, m, slot.A)
	fetched, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, d, slot.A, r[0], slot.A)
	holds(t, d, slot.B, r[1], slot.A)
	// Of the root 206 blocks are copied and 50 fetched; of the ESP a few, and both hash trees.
	if blocks := int64(verity.BlockSize); fetched.Copied < 300*blocks || fetched.Kept != 0 || fetched.Fetched < 50*blocks || fetched.Fetched > 80*blocks {
		t.Errorf("%+v", fetched)
	}
	if err := d.SetDefault(slot.B); err != nil {
		t.Fatal(err)
	}
	holds(t, d, slot.B, r[1], slot.B)
	holds(t, d, slot.A, r[0], slot.B)

	// The next release goes into slot A, which must not start before it is committed; then there is a way back.
	d.running = slot.B
	if _, err := d.Stage(t.Context(), r[2].Release, from(memory{raw: r[2].raw}), nil); err != nil {
		t.Fatal(err)
	}
	holds(t, d, slot.A, r[2], slot.B)
	for _, n := range []slot.Slot{slot.A, slot.B, slot.B, slot.A} {
		if err := d.SetDefault(n); err != nil {
			t.Fatal(err)
		}
		holds(t, d, slot.A, r[2], n)
		holds(t, d, slot.B, r[1], n)
	}
}

// TestStageGoesOn has a source that ends: what it gave is not fetched again, and a damaged block of it is.
func TestStageGoesOn(t *testing.T) {
	r := releases(t)
	d, dev := open(t, installed(t, r[0]), slot.A)
	ended := errors.New("ended")
	// Blocks 100 to 150 are one range. The hash tree of the ESP follows.
	_, err := d.Stage(t.Context(), r[1].Release, from(memory{r[1].raw, func(at int64, part []byte) ([]byte, error) {
		if at > d.slots[slot.A].Tree.Offset()+2*verity.BlockSize {
			return nil, ended
		}
		return part, nil
	}}), nil)
	if !errors.Is(err, ended) {
		t.Fatal(err)
	}
	if _, err := d.Content(slot.B); !errors.Is(err, errEmpty) {
		t.Errorf("something starts in a slot that is not whole: %v", err)
	}
	if _, err := dev.WriteAt(make([]byte, 512), d.slots[slot.B].Root.Offset()+120*verity.BlockSize); err != nil {
		t.Fatal(err)
	}
	fetched, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil)
	if err != nil || fetched.Kept != 255*verity.BlockSize || fetched.Fetched > 2<<20 {
		t.Errorf("%+v, %v", fetched, err)
	}
	holds(t, d, slot.B, r[1], slot.A)
}

func TestStageOfAWholeDisk(t *testing.T) {
	r := releases(t)
	d, _ := open(t, installed(t, r[0]), slot.A)
	size := int64(len(r[1].raw))
	source := memory{r[1].raw, func(at int64, part []byte) ([]byte, error) {
		if int64(len(part)) != size {
			return nil, ErrNoRanges
		}
		return part, nil
	}}
	fetched, err := d.Stage(t.Context(), r[1].Release, from(source), nil)
	if err != nil || fetched.Copied+fetched.Kept != 0 || fetched.Fetched < size/3 || fetched.Fetched > size {
		t.Fatalf("%+v, %v", fetched, err)
	}
	holds(t, d, slot.B, r[1], slot.A)
	// The same, with one byte of each part changed.
	p := d.slots[slot.A]
	for what, at := range map[string]int64{"table": 600, "ESP": p.ESP.Offset() + 8<<20, "root": p.Root.Offset() + 5, "tree": p.Tree.Offset() + 5000, "superblock": p.Tree.Offset() + 3} {
		changed := bytes.Clone(r[2].raw)
		changed[at] ^= 1
		source.raw = changed
		if _, err := d.Stage(t.Context(), r[2].Release, from(source), nil); err == nil {
			t.Errorf("%s: taken", what)
		}
		if _, err := d.Content(slot.B); !errors.Is(err, errEmpty) {
			t.Errorf("%s: something starts: %v", what, err)
		}
	}
}

func TestStageRefuses(t *testing.T) {
	r := releases(t)
	flip := func(at int64) func(int64, []byte) ([]byte, error) {
		return func(from int64, part []byte) ([]byte, error) {
			if at >= from && at < from+int64(len(part)) {
				part[at-from] ^= 1
			}
			return part, nil
		}
	}
	largeESP := func(at int64) func(int64, []byte) ([]byte, error) {
		return func(from int64, part []byte) ([]byte, error) {
			if from == at {
				binary.LittleEndian.PutUint64(part[72:], 1<<18)
			}
			return part, nil
		}
	}
	d, _ := open(t, installed(t, r[0]), slot.A)
	p := d.slots[slot.A]
	treeSize := verity.Size(1 << 20)
	// The ESP and its hash tree are another release's, and fit each other.
	otherESP := bytes.Clone(r[1].raw)
	copy(otherESP[p.ESP.Offset():p.Root.Offset()], r[2].raw[p.ESP.Offset():])
	copy(otherESP[p.Tree.Offset()+treeSize:p.Tree.Offset()+p.Tree.Size()], r[2].raw[p.Tree.Offset()+treeSize:])
	for want, c := range map[string]struct {
		release Release
		source  memory
	}{
		"this release runs already":               {r[0].Release, memory{raw: r[0].raw}},
		"another partition table":                 {r[1].Release, memory{r[1].raw, flip(1030)}},
		"no verity signature":                     {r[1].Release, memory{r[1].raw, flip(p.Tree.Offset())}},
		"its root hash is":                        {r[1].Release, memory{raw: r[2].raw}},
		"does not have the hash":                  {r[1].Release, memory{r[1].raw, flip(p.Tree.Offset() + 3*verity.BlockSize)}},
		"block 120 of the root":                   {r[1].Release, memory{r[1].raw, flip(p.Root.Offset() + 120*verity.BlockSize + 7)}},
		"of the ESP is not the release's":         {r[1].Release, memory{r[1].raw, flip(int64(bytes.Index(r[1].raw, []byte("release=1"))))}},
		"hash tree of the ESP":                    {r[1].Release, memory{r[1].raw, flip(p.Tree.Offset() + treeSize)}},
		"an ESP of 1073741824 bytes":              {r[1].Release, memory{r[1].raw, largeESP(p.Tree.Offset() + treeSize)}},
		"its ESP or its table":                    {r[1].Release, memory{raw: otherESP}},
		"the release " + strings.Repeat("00", 32): {Release{RootHash: r[1].RootHash}, memory{raw: r[1].raw}},
		"unexpected EOF":                          {r[1].Release, memory{r[1].raw, func(_ int64, part []byte) ([]byte, error) { return part[:len(part)-1], nil }}},
		"does not fit the slot": {r[1].Release, memory{r[1].raw, func(at int64, part []byte) ([]byte, error) {
			if at == p.Tree.Offset() {
				part[74] = 1 // 65,536 blocks more
			}
			return part, nil
		}}},
	} {
		m := installed(t, r[0])
		d, _ := open(t, m, slot.A)
		_, err := d.Stage(t.Context(), c.release, from(c.source), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := d.Content(slot.B); !errors.Is(err, errEmpty) {
			t.Errorf("%s: something starts in the other slot: %v", want, err)
		}
		holds(t, d, slot.A, r[0], slot.A)
	}
	// What is on trial is not written over, nor is what it would fall back to.
	d, _ = open(t, installed(t, r[0]), slot.A)
	if _, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil); err != nil {
		t.Fatal(err)
	}
	d.running = slot.B
	if _, err := d.Stage(t.Context(), r[2].Release, from(memory{raw: r[2].raw}), nil); err == nil || !strings.Contains(err.Error(), "commit the one or go back") {
		t.Errorf("while slot B is on trial: %v", err)
	}
	holds(t, d, slot.A, r[0], slot.A)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	d.running = slot.A
	if _, err := d.Stage(ctx, r[2].Release, from(memory{raw: r[2].raw}), nil); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSlotsThatCannotStart(t *testing.T) {
	r := releases(t)
	for name, damage := range map[string]func(d *Disk, dev powercut.Unaligned) error{
		"an ESP without its first sector": func(d *Disk, dev powercut.Unaligned) error {
			_, err := dev.WriteAt(make([]byte, 512), d.slots[slot.B].ESP.Offset())
			return err
		},
		"another release's tree": func(d *Disk, dev powercut.Unaligned) error {
			p := d.slots[slot.A].Tree
			_, err := dev.WriteAt(r[2].raw[p.Offset():p.Offset()+p.Size()], d.slots[slot.B].Tree.Offset())
			return err
		},
		"somebody's ESP": func(d *Disk, dev powercut.Unaligned) error {
			_, err := dev.WriteAt(bytes.Repeat([]byte("somebody"), 64<<10), d.slots[slot.B].ESP.Offset())
			return err
		},
	} {
		d, dev := open(t, installed(t, r[0]), slot.A)
		if _, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil); err != nil {
			t.Fatal(err)
		}
		if err := damage(d, dev); err != nil {
			t.Fatal(err)
		}
		if err := d.SetDefault(slot.B); err == nil {
			t.Errorf("%s: it starts by itself now", name)
		}
		if got, err := d.Default(); err != nil || got != slot.A {
			t.Errorf("%s: %v starts, %v", name, got, err)
		}
	}
	if _, err := Open(powercut.Unaligned{Disk: powercut.NewDisk(powercut.NewMemory(), 8<<20)}, 8<<20, slot.A); err == nil {
		t.Error("a blank disk has slots")
	}
}

var cuts = flag.Int("cuts", 12, "how many of the places where the power can go are tried, beside the first and the last")

// cutAt runs something on a copy of a medium whose power goes at the record of that number, and returns what is left.
func cutAt(t *testing.T, m *powercut.Memory, running slot.Slot, number int, random *rand.Rand, do func(d *Disk) error) (left *powercut.Memory, records int) {
	t.Helper()
	left = m.Copy()
	d, dev := open(t, left, running)
	dev.Watch = func(powercut.Record) bool { records++; return records == number }
	err := do(d)
	if cut := errors.Is(err, powercut.ErrCut); cut != (number > 0 && records >= number) || err != nil && !cut {
		t.Fatalf("cut at %d of %d: %v", number, records, err)
	}
	if _, err := dev.Tear(random); err != nil {
		t.Fatal(err)
	}
	return left, records
}

// places are some of the numbers from 1 on, the first and the last among them.
func places(records int, random *rand.Rand) []int {
	all := random.Perm(records)
	if len(all) > *cuts {
		all = append(all[:*cuts], 0, records-1)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestPowerCutsWhileStaging: the slot that runs starts by itself after every cut, the other holds nothing that starts or all of the
// release, and the next Stage ends it.
func TestPowerCutsWhileStaging(t *testing.T) {
	r, random := releases(t), rand.New(rand.NewPCG(1, 2))
	before := installed(t, r[0])
	stage := func(d *Disk) error {
		_, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil)
		return err
	}
	_, records := cutAt(t, before, slot.A, 0, random, stage)
	for _, number := range places(records, random) {
		left, _ := cutAt(t, before, slot.A, number+1, random, stage)
		d, _ := open(t, left, slot.A)
		holds(t, d, slot.A, r[0], slot.A)
		if c, err := d.Content(slot.B); err == nil {
			if wrong := whole(d, slot.B, r[1]); wrong != nil || c.Default || c.Root != r[1].RootHash {
				t.Errorf("cut at %d of %d: %+v starts, %v", number+1, records, c, wrong)
			}
		}
		if err := stage(d); err != nil {
			t.Errorf("cut at %d of %d: the next stage: %v", number+1, records, err)
		}
		holds(t, d, slot.B, r[1], slot.A)
	}
	t.Logf("%d writes and flushes", records)
}

// TestPowerCutsWhileCommitting: one of the two slots starts by itself after every cut, and it is whole.
func TestPowerCutsWhileCommitting(t *testing.T) {
	r, random := releases(t), rand.New(rand.NewPCG(3, 4))
	m := installed(t, r[0])
	d, dev := open(t, m, slot.A)
	if _, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil); err != nil {
		t.Fatal(err)
	}
	if err := dev.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, to := range []slot.Slot{slot.B, slot.A} {
		commit := func(d *Disk) error { return d.SetDefault(to) }
		done, records := cutAt(t, m, to, 0, random, commit)
		for number := 1; number <= records; number++ {
			for range 5 {
				left, _ := cutAt(t, m, to, number, random, commit)
				d, _ := open(t, left, to)
				if starts, err := d.Default(); err != nil {
					t.Errorf("to slot %v, cut at %d of %d: %v", to, number, records, err)
				} else if err := whole(d, starts, r[starts]); err != nil {
					t.Errorf("to slot %v, cut at %d of %d: slot %v starts, and is not whole: %v", to, number, records, starts, err)
				}
				if err := commit(d); err != nil {
					t.Errorf("to slot %v, cut at %d of %d: the next commit: %v", to, number, records, err)
				}
				holds(t, d, to, r[to], to)
			}
		}
		m = done
	}
}
