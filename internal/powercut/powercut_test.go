package powercut

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const testSize = 1 << 20

// Whatever was flushed is there after every cut. Of what was not, each sector is as one of the writes had it, or as none had:
// over many cuts each of these happens, and writes are torn.
func TestTear(t *testing.T) {
	const cuts = 400
	fill := func(d *Disk, b byte, offset, sectors int64) {
		if _, err := d.WriteAt(bytes.Repeat([]byte{b}, int(sectors*Sector)), offset*Sector); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]map[byte]int{"flushed": {}, "flushed, then written twice": {}, "written": {}}
	torn := map[int]int{}
	for seed := range uint64(cuts) {
		m := NewMemory()
		d := NewDisk(m, testSize)
		fill(d, 1, 0, 64)
		if err := d.Flush(); err != nil {
			t.Fatal(err)
		}
		fill(d, 2, 20, 20)
		fill(d, 3, 20, 30) // 20 to 39 the second time
		fill(d, 4, 70, 1)
		loss, err := d.Tear(rand.New(rand.NewPCG(seed, 0)))
		if err != nil {
			t.Fatal(err)
		}
		if loss.Writes != 3 {
			t.Errorf("%+v, want 3 writes", loss)
		}
		torn[loss.Unit] += loss.Torn
		after := make([]byte, 80*Sector)
		if _, err := m.ReadAt(after, 0); err != nil {
			t.Fatal(err)
		}
		for i := range int64(80) {
			sector := after[i*Sector : (i+1)*Sector]
			if bytes.Count(sector, sector[:1]) != Sector {
				t.Fatalf("seed %d: sector %d is a mixture", seed, i)
			}
			switch {
			case i < 20 || i >= 50 && i < 64:
				seen["flushed"][sector[0]]++
			case i < 40:
				seen["flushed, then written twice"][sector[0]]++
			case i == 70:
				seen["written"][sector[0]]++
			}
		}
	}
	for what, want := range map[string]string{"flushed": "[1]", "flushed, then written twice": "[1 2 3]", "written": "[0 4]"} {
		var values []byte
		for v := range byte(10) {
			if seen[what][v] > 0 {
				values = append(values, v)
			}
		}
		if got := fmt.Sprint(values); got != want {
			t.Errorf("%s: the disk held %s, want %s", what, got, want)
		}
	}
	for unit, n := range torn {
		if n == 0 || len(torn) != 2 {
			t.Errorf("%d writes were torn at %d", n, unit)
		}
	}
}

// What was written is read before it is stored, and no more once the power was cut; nor does anything change the disk then.
func TestCut(t *testing.T) {
	m := NewMemory()
	d := NewDisk(m, testSize)
	d.Watch = func(r Record) bool { return r.Offset == 4*Sector }
	sector := bytes.Repeat([]byte{1}, Sector)
	if _, err := d.WriteAt(sector, 0); err != nil {
		t.Fatal(err)
	}
	read := make([]byte, 2*Sector)
	if _, err := d.ReadAt(read, 0); err != nil || !bytes.Equal(read, append(sector, make([]byte, Sector)...)) {
		t.Errorf("read %x, %v", read, err)
	}
	for _, wrong := range []Record{{Offset: 1, Data: sector}, {Data: sector[1:]}, {Offset: testSize, Data: sector}, {Offset: -Sector, Data: sector}} {
		if d.Do(wrong) == nil {
			t.Errorf("%d bytes at %d were written", len(wrong.Data), wrong.Offset)
		}
	}
	if _, err := d.WriteAt(sector, 4*Sector); err != ErrCut {
		t.Errorf("the write at which the power goes: %v", err)
	}
	select {
	case <-d.Gone():
	default:
		t.Error("the disk does not say that its power was cut")
	}
	_, readErr := d.ReadAt(read, 0)
	if err := d.Flush(); err != ErrCut || readErr != ErrCut {
		t.Errorf("after the cut: %v, %v", err, readErr)
	}
	if _, err := m.ReadAt(read, 0); err != nil || !bytes.Equal(read, make([]byte, 2*Sector)) {
		t.Errorf("the medium holds %x, %v, although nothing was flushed", read, err)
	}
}

// A disk's log makes it again, up to any point, and a copy of a medium goes its own way.
func TestLog(t *testing.T) {
	var log []Record
	random := rand.New(rand.NewPCG(1, 1))
	first, again := NewMemory(), NewMemory()
	d := NewDisk(first, testSize)
	d.Watch = func(r Record) bool { log = append(log, r); return false }
	for range 300 {
		b := make([]byte, (1+random.Int64N(20))*Sector)
		b[0] = byte(random.Uint32())
		if _, err := d.WriteAt(b, random.Int64N(testSize/Sector-20)*Sector); err != nil {
			t.Fatal(err)
		}
		if random.IntN(10) == 0 {
			if err := d.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	replayed := NewDisk(again, testSize)
	for _, r := range log {
		if err := replayed.Do(r); err != nil {
			t.Fatal(err)
		}
	}
	copied := again.Copy()
	if _, err := copied.WriteAt(bytes.Repeat([]byte{0xff}, testSize), 0); err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]Medium{"cache and medium": {d, replayed}, "medium": {first, again}} {
		var content [2][]byte
		for i, m := range pair {
			content[i] = make([]byte, testSize)
			if _, err := m.ReadAt(content[i], 0); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(content[0], content[1]) {
			t.Errorf("%s: the log makes another disk", name)
		}
	}
}

// QEMU's own client reads and writes the disk over the socket; what it flushed is there after the cut, what it did not is lost.
func TestQEMU(t *testing.T) {
	m := NewMemory()
	d := NewDisk(m, testSize)
	var flushes int
	d.Watch = func(r Record) bool {
		if r.Flush {
			flushes++
		}
		return false
	}
	socket := filepath.Join(t.TempDir(), "disk")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go Serve(l, d)
	qemu(t, socket, `write -P 0x11 0 64k`, `flush`, `write -P 0x22 0 4k`, `read -P 0x22 0 4k`, `read -P 0x11 4k 60k`, `write -P 0x33 512k 512`,
		`read -P 0x33 512k 512`, `read -P 0 700k 32k`)
	if flushes == 0 {
		t.Fatal("QEMU's flush did not arrive")
	}
	after := make([]byte, testSize)
	if _, err := m.ReadAt(after, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(after[4096:64<<10], bytes.Repeat([]byte{0x11}, 60<<10)) {
		t.Error("what was flushed is not stored")
	}
	if after[0] == 0x22 || after[512<<10] == 0x33 {
		t.Error("what was not flushed is stored already")
	}
}

// qemu lets a QEMU without a machine run commands of qemu-io on the disk, each of which must succeed, and then ends it by
// force: by itself it would flush.
func qemu(t *testing.T, socket string, commands ...string) {
	t.Helper()
	const program, last = "qemu-system-x86_64", "the commands are over"
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("%v: apt-get install qemu-system-x86", err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-machine", "none", "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "stdio",
		"-drive", "if=none,id=disk,format=raw,cache=writeback,file=nbd+unix:///?socket="+socket)
	typed, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for _, c := range commands {
		fmt.Fprintf(typed, "qemu-io disk %q\n", c)
	}
	fmt.Fprintln(typed, last) // no command of the monitor's
	var all strings.Builder
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "unknown command") {
		fmt.Fprintln(&all, lines.Text())
	}
	if n := strings.Count(all.String(), " bytes at offset "); n != len(commands)-1 || strings.Contains(all.String(), "failed") {
		t.Fatalf("%d of %d transfers:\n%s", n, len(commands)-1, all.String())
	}
}
