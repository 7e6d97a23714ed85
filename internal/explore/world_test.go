//go:build explore

package explore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/lukstest"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/joinservice"
)

// mode is what a machine does while no process of it runs.
type mode string

const (
	off     mode = "off"
	waiting mode = "waiting" // to ask again, in the same boot
	running mode = "running"
	ready   mode = "ready"
	refused mode = "refused" // for a reason that stands
)

// disk is one content of a state disk; a copy of a disk is another one.
type disk struct {
	// a and b are the records as they were written; aTorn says that only the first half of a was. area is of the disk whose UUID it names.
	a, b     string
	aTorn    bool
	area     hullmark.UUID
	areaTorn bool
	key      [sha256.Size]byte
	files    map[string]string

	// What really happened to it: the boot that went on with it last, counted for each UUID, and whether a joined node was stored on it.
	boot   int
	joined bool
	// last is the number of the ticket that opened it last.
	last   int
	opened map[string]bool
	// forged says that a host made it without its manifest.
	forged bool
	// manifest is the one that was written last, keys the rotation in it.
	manifest string
	keys     int
	// anew says that a join service gave the node on it up.
	anew bool
}

// machine is what outlasts its processes.
type machine struct {
	mode  mode
	disk  int
	pcr8  bool
	fused bool
	// past says that this boot went on past Proceed: it may have no further ticket.
	past bool
	// stored is what of the mounted file system would survive a power cut for sure.
	stored map[string]string
	// wrote is the manifest that this boot wrote last, and run what its RAM disk holds once it is Ready.
	wrote string
	run   map[string]string
	// code is of the condition that it shows while it waits; tries counts since it was Ready, or lost its power.
	code  string
	tries int
}

// budget is how often each fault may still happen.
type budget struct {
	Crash, Slow, Cut, Again, Replies, Restart, Agent, Swap, Copy, Workload, Advance, Forge, Rotate, Rogue, Grow, Etcd int
}

// world is everything that outlasts a process, and what really happened.
type world struct {
	disks    []disk
	machines []machine
	records  *memrecords.Store
	// nodes are the Node objects: whose kubelet registered each.
	nodes map[string]int
	left  budget
	// levels are how far the exchange of keys has come at each replica (holdings).
	levels [2]int
	// noted is what is known of the newest member of etcd, and removed the one that was given up last.
	noted   hullmark.EtcdState
	removed uint64

	uuids, serials int
	// boots counts the boots that went on with a disk, issued the tickets, used the joins that a token served, given the
	// exchanges that Proceed gave a token to.
	boots  map[hullmark.UUID]int
	issued map[string]bool
	used   map[string]int
	given  map[string]bool
}

func (w *world) clone() *world {
	c := *w
	c.disks, c.machines, c.records = slices.Clone(w.disks), slices.Clone(w.machines), w.records.Clone()
	for i := range c.disks {
		c.disks[i].opened = maps.Clone(w.disks[i].opened)
	}
	c.nodes, c.boots, c.issued = maps.Clone(w.nodes), maps.Clone(w.boots), maps.Clone(w.issued)
	c.used, c.given = maps.Clone(w.used), maps.Clone(w.given)
	return &c
}

// text says all of the world that decides what can follow. Names that were drawn at random are written as letter and number, for rename.
func (w *world) text(nodes []hullmark.EKID) string {
	var t strings.Builder
	for i := range w.disks {
		d := &w.disks[i]
		id, _ := d.identity()
		fmt.Fprintf(&t, "keys %d anew %v ", d.keys, d.anew)
		fmt.Fprintf(&t, "disk %s e%d older %d joined %v forged %v opened %v files %s\n", d.text(), d.last, w.boots[id.UUID]-d.boot, d.joined, d.forged, w.since(d.opened, nodes, false), filesText(d.files))
	}
	for _, m := range w.machines {
		stored := ""
		switch m.mode {
		case running:
			stored = filesText(m.stored)
		case ready:
			stored = fmt.Sprint(w.disks[m.disk].files[statedisk.ManifestFile] == m.wrote)
		}
		fmt.Fprintf(&t, "machine %s %d %v %v %v %s %d %s\n", m.mode, m.disk, m.pcr8, m.fused, m.past, m.code, m.tries, stored)
	}
	for _, n := range nodes {
		m, v, _ := w.records.Load(context.Background(), n)
		fmt.Fprintf(&t, "record %v %s\n", v != "", recordText(m))
	}
	var tokens []string
	for id := range w.records.Tokens() {
		tokens = append(tokens, fmt.Sprint("t", id, " used ", w.used[id]))
	}
	slices.Sort(tokens)
	fmt.Fprintf(&t, "levels %v etcd j%d %d j%d\n", w.levels, w.noted.Member, w.noted.Last, w.removed)
	fmt.Fprintf(&t, "tokens %v nodes %v names %v left %v tickets %v\n", tokens, w.nodes, w.records.Names(), w.left, w.since(w.issued, nodes, true))
	return t.String()
}

// since are the epochs of a set that a ticket could have again: none is below what is committed, or for tickets issued.
func (w *world) since(set map[string]bool, nodes []hullmark.EKID, tickets bool) (again []string) {
	for key := range set {
		fields := strings.Fields(key)
		e, err := strconv.ParseUint(fields[len(fields)-1], 10, 64)
		must(err)
		for _, node := range nodes {
			m, _, err := w.records.Load(context.Background(), node)
			must(err)
			if e >= m.Record.Committed && !tickets || tickets && e > m.Record.Issued {
				again = append(again, fmt.Sprintf("%s e%d", fields[:len(fields)-1], e))
				break
			}
		}
	}
	slices.Sort(again)
	return again
}

func recordText(m joinservice.Machine) string {
	code := ""
	if m.Condition != nil {
		code = m.Condition.Root().Code
	}
	return fmt.Sprintf("%s %s e%d e%d %s t%s %s %s %s", m.Name, name(m.Record.Disk), m.Record.Committed, m.Record.Issued, m.State, m.Token, m.FirstKey, m.Phase, code)
}

// identity is that of the record that counts, if formatting has begun.
func (d *disk) identity() (id statedisk.Identity, begun bool) {
	if r, err := statedisk.DecodeB([]byte(d.b)); err == nil {
		return r.Identity, true
	}
	id, err := statedisk.DecodeA([]byte(d.a))
	return id, err == nil
}

// recordsText says whose the records are, and which of them there are.
func (d *disk) recordsText() string {
	id, begun := d.identity()
	if !begun {
		return fmt.Sprint(d.a != "", d.b != "")
	}
	return fmt.Sprintf("%s %x %v %v", name(id.UUID), id.Owner[:2], d.a != "", d.b != "")
}

// name writes a UUID as it was drawn.
func name(u hullmark.UUID) string {
	if u == (hullmark.UUID{}) {
		return "-"
	}
	return fmt.Sprintf("u%d", u[0])
}

func filesText(files map[string]string) string {
	var t strings.Builder
	for _, f := range slices.Sorted(maps.Keys(files)) {
		content := files[f]
		switch {
		case f == statedisk.ManifestFile:
			content = manifestText(content)
		case f == walFile:
			content = etcdText(content)
		case len(content) > 40:
			sum := sha256.Sum256([]byte(content))
			content = hex.EncodeToString(sum[:8])
		}
		fmt.Fprintf(&t, "%s=%q ", f, content)
	}
	return t.String()
}

// manifestText says of a manifest what decides: its epoch, and what it notes of kubeadm.
func manifestText(content string) string {
	if len(content) < 48 {
		return "torn"
	}
	intent := ""
	for _, i := range []string{statedisk.IntentStarted, statedisk.IntentDone} {
		if strings.Contains(content, statedisk.IntentFile+i) {
			intent = strings.TrimSpace(i)
		}
	}
	return fmt.Sprintf("e%d %s", binary.BigEndian.Uint64([]byte(content[36:44])), intent)
}

// A machine's place holds the file that its disk is, and the folder where the file system is mounted.
type place struct{ dir, shown string }

func (p *place) device() string { return filepath.Join(p.dir, "disk") }
func (p *place) state() string  { return filepath.Join(p.dir, "state") }
func (p *place) run() string    { return filepath.Join(p.dir, "run") }
func (p *place) work() string   { return filepath.Join(p.dir, "work") }

// diskSize is what a disk has; all but what a disk's fields say is zero.
const diskSize = statedisk.MinSize

var headers = map[hullmark.UUID][]byte{}

// area returns the LUKS area of a disk.
func area(u hullmark.UUID) []byte {
	if headers[u] == nil {
		b, err := os.ReadFile("../../firstboot/luks2/testdata/header.bin")
		if err != nil {
			panic(err)
		}
		whole := make([]byte, luks2.AreaSize)
		copy(whole, b)
		for _, at := range []int{168, 168 + 16<<10} {
			clear(whole[at : at+40])
			copy(whole[at:], u.String())
		}
		lukstest.Seal(whole)
		headers[u] = whole
	}
	return headers[u]
}

func (d *disk) bytes() (a, b, luks []byte) {
	a, b, luks = make([]byte, statedisk.RecordSize), make([]byte, statedisk.RecordSize), make([]byte, luks2.AreaSize)
	copy(a, d.a)
	copy(b, d.b)
	if d.aTorn {
		clear(a[len(a)/2:])
	}
	if d.area != (hullmark.UUID{}) {
		copy(luks, area(d.area))
		if d.areaTorn {
			clear(luks[8<<10:])
		}
	}
	return a, b, luks
}

// text says what is written on the disk outside of its file system.
func (d *disk) text() string {
	return fmt.Sprint(d.recordsText(), " ", d.aTorn, name(d.area), d.areaTorn)
}

// shows is equal for disks of equal bytes.
func (d *disk) shows() string {
	return fmt.Sprintf("%x%x%v%s%v", d.a, d.b, d.aTorn, name(d.area), d.areaTorn)
}

// show writes the attached disk's bytes to its file.
func (p *place) show(d *disk) {
	if p.shown == d.shows() {
		return
	}
	f, err := os.OpenFile(p.device(), os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	must(f.Truncate(diskSize))
	a, b, luks := d.bytes()
	for at, content := range map[int64][]byte{0: luks, statedisk.OffsetA: a, statedisk.OffsetB: b} {
		_, err := f.WriteAt(content, at)
		must(err)
	}
	must(f.Close())
	p.shown = d.shows()
}

// fillTree makes a folder hold files.
func fillTree(dir string, files map[string]string) {
	must(os.RemoveAll(dir))
	must(os.MkdirAll(dir, 0o755))
	for _, f := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, f)
		if strings.HasSuffix(f, "/") {
			must(os.MkdirAll(path, 0o755))
			continue
		}
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte(files[f]), 0o600))
	}
}

// held returns what the mounted folder holds.
func (p *place) held() map[string]string { return tree(p.state()) }

// tree returns what a folder holds.
func tree(dir string) map[string]string {
	files := map[string]string{}
	must(filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if e.IsDir() {
			files[rel+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(path)
		files[rel] = string(b)
		return err
	}))
	return files
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// probed remembers what statedisk.Probe says of each content: it reads 32 MiB.
var probed = map[string]hullmark.DiskClaim{}

// violation is what must not happen.
type violation struct{ what string }

func (v violation) Error() string { return v.what }
