package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/disk"
)

// smallImage writes a small image into a folder of its own.
func smallImage(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.raw")
	write(t, path, smallDisk(t))
	return path
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestConvertWritesEveryFormatAndAManifest(t *testing.T) {
	path := smallImage(t)
	dir := filepath.Dir(path)
	code, out := hullmarkCLI(t, "convert", path)
	wantExit(t, code, 0, out, "node.qcow2", "node.vhd", "node.tar.gz", "node.raw.zst")
	elsewhere := t.TempDir()
	code, listed := hullmarkCLI(t, "convert", path, "--format", "raw.zst,vhd", "--format", "tar.gz,vhd,qcow2", "--out", elsewhere, "-o", "json")
	wantExit(t, code, 0, listed)
	var m formatsManifest
	if err := json.Unmarshal([]byte(listed), &m); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(elsewhere, "node.formats.json"))
	if err != nil || string(manifest) != listed {
		t.Errorf("the manifest is %s, %v, want what was printed", manifest, err)
	}
	if len(m.Files) != len(disk.Formats()) || m.Schema != formatsSchema || m.Disk.Name != "node.raw" {
		t.Errorf("it lists %+v", m)
	}
	for _, f := range append(m.Files, m.Disk) {
		content, err := os.ReadFile(filepath.Join(dir, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); !bytes.Equal(sum[:], f.SHA256) || int64(len(content)) != f.Size || f.Name != "node."+f.Format || !strings.Contains(out, f.SHA256.String()) {
			t.Errorf("%s of the first run is not what the second made, or not what it was told to be: %+v", f.Name, f)
		}
	}
	if got := names(t, elsewhere); len(got) != 1+len(m.Files) {
		t.Errorf("there are %q", got)
	}
}

// TestEveryFormatMeasuresTheSame takes the disk out of each file with the tool that others use. It begins with the image, whose
// partition table so is the one that firmware hashes, and zeros follow.
func TestEveryFormatMeasuresTheSame(t *testing.T) {
	path := smallImage(t)
	code, out := hullmarkCLI(t, "convert", path)
	wantExit(t, code, 0, out)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSuffix(path, "raw")
	for format, unpack := range map[disk.Format]string{
		disk.QCOW2: "qemu-img convert -f qcow2 -O raw " + name + "qcow2 " + name + "out", disk.VHD: "qemu-img convert -f vpc -O raw " + name + "vhd " + name + "out",
		disk.TarGz: "tar -xzSOf " + name + "tar.gz disk.raw > " + name + "out", disk.RawZst: "zstd -dfq " + name + "raw.zst -o " + name + "out",
	} {
		if problem, err := exec.Command("bash", "-c", unpack).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v (apt-get install qemu-utils zstd tar)\n%s", unpack, err, problem)
		}
		f, err := os.Open(name + "out")
		if err != nil {
			t.Fatal(err)
		}
		start := make([]byte, len(whole))
		if _, err := io.ReadFull(f, start); err != nil || !bytes.Equal(start, whole) {
			t.Errorf("%s: another disk, %v", format, err)
		}
		if err := onlyZeros(f); err != nil {
			t.Errorf("%s, after the disk: %v", format, err)
		}
		_ = f.Close()
	}
}

// onlyZeros reads to the end, and fails if there is anything else.
func onlyZeros(r io.Reader) error {
	block, none := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		n, err := r.Read(block)
		if !bytes.Equal(block[:n], none[:n]) {
			return errors.New("something else than zeros")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	path := smallImage(t)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged, other, folder := path+".damaged", path+".other", t.TempDir()
	opened, err := image.Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	content[opened.Table.Partitions[1].Offset()] ^= 1 // the root file system
	write(t, damaged, content)
	write(t, other, make([]byte, 8<<20))
	if err := os.Link(path, filepath.Join(folder, "node.vhd")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		code int
		args []string
		want string
	}{
		"no such format": {exitUsage, []string{path, "--format", "vmdk"}, `unknown format "vmdk": there is ["qcow2" "vhd" "tar.gz" "raw.zst"]`},
		"no image":       {exitUsage, nil, "name the image"},
		"missing":        {exitFailed, []string{path + ".missing"}, "no such file"},
		"damaged":        {exitFailed, []string{damaged}, "verify image"},
		"another disk":   {exitFailed, []string{other}, "this is not a partitioned disk; only whole images of hullmark build are converted"},
		"over itself":    {exitUsage, []string{path, "--out", folder, "--format", "vhd"}, "is what is read"},
	} {
		code, out := hullmarkCLI(t, append([]string{"convert"}, c.args...)...)
		wantExit(t, code, c.code, out, c.want)
		if left := names(t, filepath.Dir(path)); len(left) != 3 {
			t.Errorf("%s: it left %q", name, left)
		}
	}
}

// stopped is a context that ends after a number of reads.
type stopped struct {
	context.Context
	left int
}

func (s *stopped) Err() error {
	if s.left--; s.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestConvertLeavesNothingHalf(t *testing.T) {
	path := smallImage(t)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := formatFile{Name: "node.raw", Size: int64(len(content))}
	sum := sha256.Sum256(content)
	whole.SHA256 = sum[:]
	other := bytes.Clone(content)
	other[len(other)-1<<20] ^= 1
	for _, f := range disk.Formats() {
		out := t.TempDir()
		file := filepath.Join(out, "node."+string(f))
		write(t, file, []byte("an older one"))
		write(t, filepath.Join(out, ".node."+string(f)+".new"), []byte("what a killed run left"))
		if _, err := convertTo(&stopped{t.Context(), 1}, f, bytes.NewReader(content), whole, file); err == nil || !strings.Contains(err.Error(), "context canceled") {
			t.Errorf("%s, interrupted: %v", f, err)
		}
		if _, err := convertTo(t.Context(), f, bytes.NewReader(other), whole, file); err == nil || !strings.Contains(err.Error(), "node.raw changed while it was converted") {
			t.Errorf("%s, changed: %v", f, err)
		}
		if _, err := convertTo(t.Context(), f, bytes.NewReader(content[:len(content)-512]), whole, file); err == nil || !strings.Contains(err.Error(), "EOF") {
			t.Errorf("%s, cut off: %v", f, err)
		}
		if old, err := os.ReadFile(file); err != nil || string(old) != "an older one" || !slices.Equal(names(t, out), []string{"node." + string(f)}) {
			t.Errorf("%s: %.20q is left, of %q, %v", f, old, names(t, out), err)
		}
		if _, err := convertTo(t.Context(), f, bytes.NewReader(content), whole, file); err != nil {
			t.Errorf("%s: once more: %v", f, err)
		}
	}
}

// fullDiskVariable has this program convert in the place of its tests, with files of 4 KiB at most: its arguments, one a line.
const fullDiskVariable = "HULLMARK_TEST_FULL_DISK"

func TestConvertOnAFullDisk(t *testing.T) {
	if args := os.Getenv(fullDiskVariable); args != "" {
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4 << 10, Max: 4 << 10}); err != nil {
			t.Fatal(err)
		}
		os.Exit(run(strings.Split(args, "\n")))
	}
	path := smallImage(t)
	for _, f := range disk.Formats() {
		out := t.TempDir()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestConvertOnAFullDisk$")
		cmd.Env = append(os.Environ(), fullDiskVariable+"="+strings.Join([]string{"convert", path, "--format", string(f), "--out", out}, "\n"))
		printed, _ := cmd.CombinedOutput()
		wantExit(t, cmd.ProcessState.ExitCode(), exitFailed, string(printed), "write "+string(f), "node."+string(f)+".new: file too large")
		if left := names(t, out); len(left) != 0 {
			t.Errorf("%s: it left %q", f, left)
		}
	}
}
