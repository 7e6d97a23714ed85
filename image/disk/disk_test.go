package disk

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hullmark/hullmark/internal/tooltest"
)

// sample is a small disk with text, what cannot be compressed, and zeros; its last cluster is cut short.
func sample() []byte {
	random := make([]byte, 300<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	return slices.Concat(bytes.Repeat([]byte("some text. "), 100<<10), random, make([]byte, 3<<20), random, make([]byte, 2<<20+512))
}

// writeFile writes a disk's file of a format into the test's folder.
func writeFile(t *testing.T, f Format, disk []byte) string {
	t.Helper()
	return writeFrom(t, f, bytes.NewReader(disk), int64(len(disk)))
}

func writeFrom(t *testing.T, f Format, r io.Reader, size int64) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "disk."+string(f)))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Write(file, r, size), file.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

// run runs a tool and returns what it printed.
func run(t *testing.T, install, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(tooltest.Path(t, install, program), args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", program, args, err, out, problems.Bytes())
	}
	return out
}

func qemuImg(t *testing.T, args ...string) []byte {
	t.Helper()
	return run(t, "qemu-utils", "qemu-img", args...)
}

// sameDisk lets qemu-img compare a file with the disk that it was made from.
func sameDisk(t *testing.T, format, file string, disk []byte) {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(raw, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "compare", "-f", "raw", "-F", format, raw, file)
}

// virtualSize is how large qemu-img takes a file's disk for.
func virtualSize(t *testing.T, format, file string) int64 {
	t.Helper()
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	if err := json.Unmarshal(qemuImg(t, "info", "--output", "json", "-f", format, file), &info); err != nil {
		t.Fatal(err)
	}
	return info.Size
}

func TestQemuReadsQCOW2(t *testing.T) {
	for name, disk := range map[string][]byte{"sample": sample(), "zero": make([]byte, 1<<20), "one sector": bytes.Repeat([]byte{7}, 512)} {
		file := writeFile(t, QCOW2, disk)
		qemuImg(t, "check", "-f", "qcow2", file)
		sameDisk(t, "qcow2", file, disk)
		if got := virtualSize(t, "qcow2", file); got != int64(len(disk)) {
			t.Errorf("%s: its disk has %d bytes, want %d", name, got, len(disk))
		}
		if info, err := os.Stat(file); err != nil || info.Size() > int64(len(disk))/2+6*cluster {
			t.Errorf("%s: %d bytes for a disk of %d, %v", name, info.Size(), len(disk), err)
		}
	}
}

// TestQCOW2OfSeveralTables has a disk whose second table is not there, because its 512 MiB are zero.
func TestQCOW2OfSeveralTables(t *testing.T) {
	const size = 1<<30 + 100<<20
	raw := filepath.Join(t.TempDir(), "disk.raw")
	file, err := os.Create(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	_, first := file.WriteAt(sample(), 0)
	_, second := file.WriteAt(sample(), 1<<30+1<<20)
	if err := errors.Join(first, second, file.Truncate(size)); err != nil {
		t.Fatal(err)
	}
	written := writeFrom(t, QCOW2, file, size)
	qemuImg(t, "check", "-f", "qcow2", written)
	qemuImg(t, "compare", "-f", "raw", "-F", "qcow2", raw, written)
	head, err := os.ReadFile(written)
	if err != nil {
		t.Fatal(err)
	}
	l1 := head[binary.BigEndian.Uint64(head[40:]):]
	if n, middle := binary.BigEndian.Uint32(head[36:]), binary.BigEndian.Uint64(l1[8:]); n != 3 || middle != 0 {
		t.Errorf("%d tables, the second at %#x; want 3, and none for zeros", n, middle)
	}
}

func TestQemuReadsVHD(t *testing.T) {
	disk := sample()
	file := writeFile(t, VHD, disk)
	whole := append(bytes.Clone(disk), make([]byte, roundUp(int64(len(disk)), mib)-int64(len(disk)))...)
	if len(whole) == len(disk) {
		t.Fatal("the sample has whole MiB, and its padding is not tested")
	}
	sameDisk(t, "vpc", file, whole)
	if got := virtualSize(t, "vpc", file); got != int64(len(whole)) {
		t.Errorf("its disk has %d bytes, want %d", got, len(whole))
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(content) != len(whole)+512 || !bytes.Equal(content[:len(whole)], whole) {
		t.Errorf("%d bytes, or other than the disk", len(content))
	}
}

// TestVHDFootersAreLikeQemus compares the footer with that of qemu-img, which differs in time, UUID, the version of QEMU and
// the checksum of these. Forced to a size, qemu-img leaves the geometry out; else it rounds the size to one.
func TestVHDFootersAreLikeQemus(t *testing.T) {
	for _, size := range []string{"1M", "8M", "67M", "311M", "502M", "505M", "1G", "31G", "33G", "126G", "127G", "128G", "200G"} {
		forced, rounded := qemuFooter(t, size, "subformat=fixed,force_size"), qemuFooter(t, size, "subformat=fixed")
		ours := vhdFooter(int64(binary.BigEndian.Uint64(forced[48:])), make([]byte, sha256.Size))
		for _, footer := range [][]byte{forced, ours} {
			if sum := ^checksum(footer); sum != binary.BigEndian.Uint32(footer[64:]) {
				t.Errorf("%s: checksum %x, want %x", size, footer[64:68], sum)
			}
			clear(footer[24:28]) // time
			clear(footer[32:36]) // version
			clear(footer[56:60]) // geometry
			clear(footer[64:84]) // checksum and UUID
		}
		if !bytes.Equal(forced, ours) {
			t.Errorf("%s: got\n%x, want\n%x", size, ours[:84], forced[:84])
		}
		if got := geometry(int64(binary.BigEndian.Uint64(rounded[48:]))); !bytes.Equal(got, rounded[56:60]) {
			t.Errorf("%s: geometry %x, want %x", size, got, rounded[56:60])
		}
	}
}

// qemuFooter returns the footer of an empty disk that qemu-img makes.
func qemuFooter(t *testing.T, size, options string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "theirs.vhd")
	qemuImg(t, "create", "-f", "vpc", "-o", options, file, size)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	footer := make([]byte, 512)
	_, atEnd := f.Seek(-512, io.SeekEnd)
	_, err = io.ReadFull(f, footer)
	if err := errors.Join(atEnd, err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return footer
}

func checksum(footer []byte) (sum uint32) {
	for i, b := range footer {
		if i < 64 || i >= 68 {
			sum += uint32(b)
		}
	}
	return sum
}

func TestTarReadsTarGz(t *testing.T) {
	disk := sample()
	file := writeFile(t, TarGz, disk)
	if list := run(t, "tar", "tar", "--utc", "-tvzf", file); !strings.Contains(string(list), " 1073741824 1970-01-01 ") || strings.Count(string(list), "\n") != 1 || !strings.HasSuffix(string(list), " disk.raw\n") {
		t.Errorf("it lists %s", list)
	}
	dir := t.TempDir()
	run(t, "tar", "tar", "-xzSf", file, "-C", dir)
	raw := filepath.Join(dir, "disk.raw")
	startsWith(t, raw, disk, 1<<30)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	z.Multistream(false)
	in := tar.NewReader(z)
	if h, err := in.Next(); err != nil || h.Name != "disk.raw" || h.Size != 1<<30 || h.Typeflag != tar.TypeGNUSparse {
		t.Errorf("Go reads %+v, %v", h, err)
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after it: %v", err)
	}
	if rest, err := io.ReadAll(z); err != nil || len(rest) != 0 {
		t.Errorf("after the archive's end: %d bytes, %v", len(rest), err)
	}
	if n, err := f.Read(make([]byte, 1)); n != 0 {
		t.Errorf("more than one gzip member, %v", err)
	}
}

// startsWith checks that a raw file has a disk's bytes, then zeros up to size.
func startsWith(t *testing.T, raw string, disk []byte, size int64) {
	t.Helper()
	f, err := os.Open(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	got := make([]byte, len(disk))
	if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, disk) {
		t.Errorf("another disk, %v", err)
	}
	rest, block := int64(0), make([]byte, mib)
	for {
		n, err := f.Read(block)
		if !isZero(block[:n]) {
			t.Fatalf("not zero after %d bytes", rest)
		}
		if rest += int64(n); err != nil {
			break
		}
	}
	if rest+int64(len(disk)) != size {
		t.Errorf("%d bytes, want %d", rest+int64(len(disk)), size)
	}
}

func TestZstdReadsRawZst(t *testing.T) {
	disk := append(sample(), bytes.Repeat([]byte("frame"), frame)...)
	file := writeFile(t, RawZst, disk[:len(disk)/512*512])
	if got := run(t, "zstd", "zstd", "-dc", file); !bytes.Equal(got, disk[:len(disk)/512*512]) {
		t.Error("another disk")
	}
	if list := run(t, "zstd", "zstd", "-lv", file); !strings.Contains(string(list), "XXH64") {
		t.Errorf("without checksums: %s", list)
	}
}

// TestPacksRememberNothing packs what can only be compressed by somebody who has seen it before.
func TestPacksRememberNothing(t *testing.T) {
	block := sample()[1200<<10:][:20<<10]
	for name, newPack := range map[string]func() (pack, error){"frames": newZstd(true), "clusters": newCluster, "deflate": newDeflate} {
		var packed [][]byte
		for _, before := range []int{0, 1, 3} {
			do, err := newPack()
			if err != nil {
				t.Fatal(err)
			}
			for range before {
				if _, err := do(block); err != nil {
					t.Fatal(err)
				}
			}
			b, err := do(block)
			if err != nil {
				t.Fatal(err)
			}
			packed = append(packed, b)
		}
		if !bytes.Equal(packed[0], packed[1]) || !bytes.Equal(packed[0], packed[2]) {
			t.Errorf("%s: a block packs to %d, %d and %d bytes, by what came before", name, len(packed[0]), len(packed[1]), len(packed[2]))
		}
	}
}

func TestBytesDoNotDependOnProcessors(t *testing.T) {
	disk := slices.Concat(sample(), sample(), sample(), sample(), sample())
	disk = disk[:len(disk)/512*512]
	for _, f := range Formats() {
		var all [][]byte
		for _, n := range []int{1, 2, 7} {
			before := runtime.GOMAXPROCS(n)
			content, err := os.ReadFile(writeFile(t, f, disk))
			runtime.GOMAXPROCS(before)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, content)
		}
		if !bytes.Equal(all[0], all[1]) || !bytes.Equal(all[0], all[2]) {
			t.Errorf("%s: other bytes with other processors", f)
		}
	}
}

// full is a file on a disk that has no room beyond some bytes.
type full struct{ room int64 }

var errFull = errors.New("no space")

func (f full) WriteAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) > f.room {
		return 0, errFull
	}
	return len(b), nil
}

func TestWriteReportsWhatFails(t *testing.T) {
	disk := sample()
	size := int64(len(disk))
	broken := errors.New("broken")
	for _, f := range Formats() {
		for room := int64(0); room < 3; room++ {
			if err := f.Write(full{room * 100 << 10}, bytes.NewReader(disk), size); !errors.Is(err, errFull) || !strings.Contains(err.Error(), string(f)) {
				t.Errorf("%s, room for %d: %v", f, room*100<<10, err)
			}
		}
		for name, c := range map[string]struct {
			r    io.Reader
			size int64
			want string
		}{
			"shorter":       {bytes.NewReader(disk[:size-512]), size, "unexpected EOF"},
			"empty":         {bytes.NewReader(nil), size, "EOF"},
			"longer":        {bytes.NewReader(disk), size - 512, "it goes on after"},
			"breaks":        {io.MultiReader(bytes.NewReader(disk[:size/2]), iotest.ErrReader(broken)), size, "broken"},
			"breaks at end": {io.MultiReader(bytes.NewReader(disk), iotest.ErrReader(broken)), size, "broken"},
			"no sectors":    {bytes.NewReader(disk), size - 1, "multiple of 512"},
			"no disk":       {bytes.NewReader(nil), 0, "multiple of 512"},
		} {
			if err := f.Write(full{1 << 40}, c.r, c.size); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v", f, name, err)
			}
		}
	}
	for f, size := range map[Format]int64{QCOW2: maxQCOW2 + 512, VHD: maxVHD + 512, TarGz: 7<<30 + 512} {
		if err := f.Write(full{}, bytes.NewReader(nil), size); err == nil || !strings.Contains(err.Error(), "want at most") {
			t.Errorf("%s of %d bytes: %v", f, size, err)
		}
	}
}

func TestParse(t *testing.T) {
	for _, f := range Formats() {
		if got, err := Parse(string(f)); err != nil || got != f {
			t.Errorf("%s: %v, %v", f, got, err)
		}
	}
	if _, err := Parse("vmdk"); err == nil || !strings.Contains(err.Error(), `"vmdk": there is ["qcow2" "vhd" "tar.gz" "raw.zst"]`) {
		t.Errorf("vmdk: %v", err)
	}
}
