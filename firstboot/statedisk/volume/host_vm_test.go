//go:build vm

package volume

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ulikunitz/xz"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/cpio"
	"github.com/hullmark/hullmark/internal/buildtest"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// guestTimeout bounds one virtual machine.
const guestTimeout = 30 * time.Minute

// guestModules are loaded in this order, each after what it needs.
var guestModules = []string{
	"virtio_blk", "dm_crypt", "dm_integrity", "authenc", "xts", "hmac", "sha256_generic", "sha256_ssse3", "aes_generic", "aesni_intel", "crc32c_generic", "ext4",
}

// A device mapper is in no kernel that tests can count on, so this test boots
// the image's own kernel with this very test binary as its first process and
// the image's libraries.
func TestStateDiskInAGuest(t *testing.T) {
	t.Parallel() // Its guest has one processor.
	dir := t.TempDir()
	var drives []drive
	for serial, size := range map[string]int64{guestSerial: guestDiskSize, guestSmall: 10 << 30, guestLarge: 1 << 40} {
		file := filepath.Join(dir, serial)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
		drives = append(drives, drive{serial, file})
	}
	t.Logf("the guest said:\n%s", runGuest(t, guestTimeout, testsOfDisks, dir, drives...))
	searchDisk(t, filepath.Join(dir, guestSerial))
}

// drive is a disk of a guest: its serial number, and a file or a URL for QEMU.
type drive struct{ serial, file string }

// runGuest boots a guest that runs some tests, with drives that lie in dir, and returns what it said.
func runGuest(t testing.TB, timeout time.Duration, tests, dir string, drives ...drive) string {
	t.Helper()
	return runGuestWith(t, addition{}, timeout, tests, dir, drives...)
}

// addition is what a guest has beyond the usual: a program of this host by its path, which is the same there, and a module.
type addition struct{ program, module string }

func runGuestWith(t testing.TB, more addition, timeout time.Duration, tests, dir string, drives ...drive) string {
	t.Helper()
	tools, root := trees(t)
	initrd := filepath.Join(dir, "initrd")
	packGuest(t, initrd, root, more)
	kernel := root + ".vmlinuz"
	// Where an emulated processor is starved the kernel finds that its timer does not tick, and panics.
	arguments := []string{
		"qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-nodefaults", "-no-reboot", "-display", "none",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 panic=1 no_timer_check quiet tests=" + tests, "-serial", "stdio",
	}
	for _, d := range drives {
		arguments = append(arguments, "-drive", "if=none,format=raw,id="+d.serial+",file="+d.file, "-device", "virtio-blk-pci,drive="+d.serial+",serial="+d.serial)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	qemu := toolstree.Command(ctx, tools, []toolstree.Bind{{Host: dir, Writable: true}, {Host: kernel}}, arguments...)
	said, err := qemu.CombinedOutput()
	if err != nil || !bytes.Contains(said, []byte(guestPassed)) {
		t.Fatalf("the tests in the guest did not pass: %v; it said:\n%s", err, said)
	}
	return string(said)
}

// searchDisk looks for what must never be on a disk in clear.
func searchDisk(t *testing.T, disk string) {
	t.Helper()
	content, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{guestKey, guestFileContent} {
		if bytes.Contains(content, []byte(secret)) {
			t.Errorf("the disk holds %q in clear", secret)
		}
	}
}

// trees returns the tools tree and the path of the root tree without its ending.
func trees(t testing.TB) (tools, root string) {
	t.Helper()
	tools = buildtest.Tools(t)
	// A root tree that exists already, as the path of its archive without .tar, saves building one.
	if tree := os.Getenv("HULLMARK_ROOT_TREE"); tree != "" {
		return tools, tree
	}
	o, l := buildtest.Options(t)
	folder, _, err := build.Tree(t.Context(), o, l, tools)
	if err != nil {
		t.Fatal(err)
	}
	return tools, filepath.Join(folder, "root")
}

// packGuest writes the initrd: this test binary as /init, mkfs, the image's libraries that both load, and modules.
func packGuest(t testing.TB, initrd, root string, more addition) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := readTree(t, root+".tar")
	files := modules(t, image, append(slices.Clone(guestModules), more.module))
	files["init"] = read(t, self)
	files["usr/sbin/mkfs.ext4"] = image.file(t, "usr/sbin/mke2fs")
	files["usr/sbin/e2fsck"] = image.file(t, "usr/sbin/e2fsck")
	files["lib64/ld-linux-x86-64.so.2"] = image.file(t, libraries+"ld-linux-x86-64.so.2")
	for _, program := range []string{"init", "usr/sbin/mkfs.ext4", "usr/sbin/e2fsck"} {
		addLibraries(t, image, files, files[program])
	}
	if more.program != "" {
		files[strings.TrimPrefix(more.program, "/")] = read(t, more.program)
		addLibraries(t, image, files, read(t, more.program))
	}
	out, err := os.Create(initrd)
	if err != nil {
		t.Fatal(err)
	}
	if err := cpio.Write(out, entries(files)); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

const libraries = "usr/lib/x86_64-linux-gnu/"

// addLibraries adds what program loads, and what that loads.
func addLibraries(t testing.TB, image tree, files map[string][]byte, program []byte) {
	t.Helper()
	binary, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	needed, err := binary.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range needed {
		if name = libraries + name; files[name] == nil {
			files[name] = image.file(t, name)
			addLibraries(t, image, files, files[name])
		}
	}
}

// tree is the part of the root tree that guests need, by path; links holds symbolic links.
type tree struct {
	files map[string][]byte
	links map[string]string
}

func (r tree) file(t testing.TB, name string) []byte {
	t.Helper()
	for range 5 {
		if content, ok := r.files[name]; ok {
			return content
		}
		name = path.Join(path.Dir(name), r.links[name])
	}
	t.Fatalf("the root tree has no %s", name)
	return nil
}

// readTree reads kernel modules, libraries and mkfs from the tree's archive.
func readTree(t testing.TB, archive string) tree {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := tree{files: map[string][]byte{}, links: map[string]string{}}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Clean(h.Name)
		if !strings.HasPrefix(name, "usr/lib/modules/") && !strings.HasPrefix(name, libraries) && name != "usr/sbin/mke2fs" && name != "usr/sbin/e2fsck" {
			continue
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			found.links[name] = h.Linkname
		case tar.TypeReg:
			if found.files[name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// entries makes the archive's; it adds the folders that files lie in by itself.
func entries(files map[string][]byte) []cpio.Entry {
	var list []cpio.Entry
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "etc"} {
		list = append(list, cpio.Entry{Name: dir, Mode: fs.ModeDir | 0o755})
	}
	for name, content := range files {
		list = append(list, cpio.Entry{Name: name, Mode: 0o755, Data: content})
	}
	return list
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// modules returns the guest's modules, decompressed, under names in load order.
func modules(t testing.TB, image tree, names []string) map[string][]byte {
	t.Helper()
	var dir string
	for name := range image.files {
		if path.Base(name) == "modules.dep" {
			dir = path.Dir(name)
		}
	}
	needs := map[string][]string{}
	for line := range strings.Lines(string(image.file(t, dir+"/modules.dep"))) {
		file, rest, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(path.Base(file), ".ko")
		needs[strings.ReplaceAll(name, "-", "_")] = append([]string{file}, strings.Fields(rest)...)
	}
	packed, seen := map[string][]byte{}, map[string]bool{}
	for _, name := range names {
		chain := needs[name] // empty for what is built in
		for i := len(chain) - 1; i >= 0; i-- {
			if file := chain[i]; !seen[file] {
				seen[file] = true
				base := strings.TrimSuffix(path.Base(file), ".xz")
				packed[fmt.Sprintf("lib/modules/%02d-%s", len(seen), base)] = decompress(t, file, image.file(t, dir+"/"+file))
			}
		}
	}
	return packed
}

func decompress(t testing.TB, name string, content []byte) []byte {
	t.Helper()
	if !strings.HasSuffix(name, ".xz") {
		return content
	}
	r, err := xz.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// BenchmarkFreshness compares what it costs to keep files in ways that find more, or less, of what a host does to its disk;
// docs/state-disk.md weighs them.
func BenchmarkFreshness(b *testing.B) {
	const program = "/usr/sbin/mkfs.btrfs"
	if _, err := os.Stat(program); err != nil {
		b.Fatalf("%v: apt-get install btrfs-progs", err)
	}
	for b.Loop() {
		dir := b.TempDir()
		file := filepath.Join(dir, guestSerial)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, guestDiskSize)); err != nil {
			b.Fatal(err)
		}
		said := runGuestWith(b, addition{program, "btrfs"}, guestTimeout, testsOfFreshness, dir, drive{guestSerial, file})
		for line := range strings.Lines(said) {
			if _, figures, ok := strings.Cut(line, "freshness | "); ok {
				b.Log(strings.TrimSpace(figures))
			}
		}
	}
}
