// Package imagetest makes small disks, and the files of a machine to measure them on, for tests.
package imagetest

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/uki"
)

// Firmware is the code file of Debian's OVMF on this machine.
func Firmware(t *testing.T) string {
	t.Helper()
	const file = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	if _, err := os.Stat(file); err != nil {
		t.Fatal("OVMF is missing: apt-get install ovmf")
	}
	return file
}

// Vars are that firmware's variables without keys.
func Vars(t *testing.T) []byte {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	file, err := os.Open(filepath.Join(filepath.Dir(here), "../../pcrs/testdata/ovmf-2025.02.vars.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Stub is a real stub, which says that it is of another version.
func Stub(t *testing.T, version string) []byte {
	t.Helper()
	stub, err := os.ReadFile("/" + uki.DebianStub)
	if err != nil {
		t.Fatal("the stub is missing: apt-get install systemd-boot-efi")
	}
	return bytes.Replace(stub, []byte("systemd-stub 252"), []byte("systemd-stub "+version), 1)
}

// Small is the smallest disk that can be measured, of the image "node" of version 20260102. Its kernel is the stub again.
func Small(t *testing.T, version string) []byte {
	t.Helper()
	stub := Stub(t, version)
	root := bytes.Repeat([]byte("root"), 64<<10)
	return Disk(t, image.Parts{
		Stub: stub, Kernel: stub, Initrd: []byte("initrd"), Cmdline: "console=ttyS0",
		OSRelease: []byte("ID=test\nIMAGE_ID=\"node\"\nIMAGE_VERSION=20260102\n"),
		Root:      bytes.NewReader(root), RootSize: int64(len(root)), Time: time.Unix(1767225600, 0),
	})
}

// Disk is the disk of some parts.
func Disk(t *testing.T, parts image.Parts) []byte {
	t.Helper()
	layout, err := image.Plan(parts)
	if err != nil {
		t.Fatal(err)
	}
	var disk bytes.Buffer
	if _, err := layout.WriteTo(&disk); err != nil {
		t.Fatal(err)
	}
	return disk.Bytes()
}
