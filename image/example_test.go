package image_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/erofs"
	"github.com/hullmark/hullmark/image/uki"
)

// A disk is made of a root file system, a stub, a kernel and an initrd, and read back as a verifier reads it. The same parts
// give the same bytes.
func Example() {
	stub, err := os.ReadFile("/" + uki.DebianStub) // systemd-boot-efi has it
	if err != nil {
		fmt.Println(err)
		return
	}
	at := time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)
	var text strings.Builder
	for i := range 3000 {
		fmt.Fprintln(&text, i*i*i)
	}
	greeting := text.String()
	root, err := erofs.Pack(context.Background(), []erofs.File{
		{Name: ".", Mode: fs.ModeDir | 0o755},
		{Name: "greeting", Mode: 0o644, Size: int64(len(greeting)), Open: func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(greeting)), nil
		}},
	}, at)
	if err != nil {
		fmt.Println(err)
		return
	}
	var fileSystem bytes.Buffer
	if err := root.Write(&fileSystem, [16]byte{1}); err != nil {
		fmt.Println(err)
		return
	}

	layout, err := image.Plan(image.Parts{
		Stub: stub, Kernel: stub, Initrd: []byte("initrd"), // any EFI program will do for a kernel here
		OSRelease: []byte("ID=example\n"), Cmdline: "console=ttyS0",
		Root: bytes.NewReader(fileSystem.Bytes()), RootSize: int64(fileSystem.Len()), Time: at,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var disk bytes.Buffer
	if _, err := layout.WriteTo(&disk); err != nil {
		fmt.Println(err)
		return
	}

	read, err := image.Open(bytes.NewReader(disk.Bytes()), int64(disk.Len()))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("as planned:", read.RootHash == layout.RootHash())
	fmt.Println("content matches its root hash:", read.Verify() == nil)
	for _, p := range read.Table.Partitions {
		fmt.Println("partition:", p.Name)
	}
	// Output:
	// as planned: true
	// content matches its root hash: true
	// partition: esp-a
	// partition: root-a
	// partition: root-verity-a
	// partition: esp-b
	// partition: root-b
	// partition: root-verity-b
}
