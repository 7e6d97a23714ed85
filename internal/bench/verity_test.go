package bench

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/verity"
)

// BenchmarkVerity writes the dm-verity hashes of the built image's root file system, whose bytes are in memory for both sides.
func BenchmarkVerity(b *testing.B) {
	veritysetup, err := exec.LookPath("/usr/sbin/veritysetup")
	if err != nil {
		b.Fatal("veritysetup is missing: apt-get install cryptsetup-bin")
	}
	dir := b.TempDir()
	data, size := rootFile(b, dir)
	tree, theirs := filepath.Join(dir, "tree"), filepath.Join(dir, "theirs")
	what := comparison{
		what: "dm-verity hashes of a root file system", peer: fmt.Sprintf("veritysetup format, of %d MiB", size>>20), target: 1.8,
	}
	compare(b, what, 5, func(int) { writeVerity(b, data, size, tree) }, func(int) {
		out, err := exec.CommandContext(b.Context(), veritysetup, "format", "--salt", strings.Repeat("0", 2*verity.SaltSize),
			"--uuid", "00000000-0000-0000-0000-000000000000", data.Name(), theirs).CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	})
	ours, err := os.ReadFile(tree)
	if err != nil {
		b.Fatal(err)
	}
	peers, err := os.ReadFile(theirs)
	if err != nil {
		b.Fatal(err)
	}
	if !bytes.HasPrefix(ours, peers) { // veritysetup leaves the rest of the last block out of a file.
		b.Fatal("the two wrote different hashes")
	}
}

// rootFile copies the root file system of the built image into a file of its own.
func rootFile(b *testing.B, dir string) (f *os.File, size int64) {
	b.Helper()
	raw, err := os.Open(filepath.Join(*out, "hullmark.raw"))
	if err != nil {
		b.Fatalf("the image is missing: run make image: %v", err)
	}
	defer func() { _ = raw.Close() }()
	disk := openDisk(b, raw)
	if f, err = os.Create(filepath.Join(dir, "root")); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close() })
	if _, err := io.Copy(f, io.NewSectionReader(disk.Root, 0, disk.Root.Size())); err != nil {
		b.Fatal(err)
	}
	return f, disk.Root.Size()
}

// writeVerity writes the hashes with a salt and a UUID of zeros.
func writeVerity(b *testing.B, data *os.File, size int64, name string) {
	b.Helper()
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := verity.Write(data, size, f, verity.Params{}); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}
