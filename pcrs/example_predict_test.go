package pcrs_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// What a boot of a disk image will measure, before any machine has booted it.
func ExamplePredict() {
	raw, variables := smallDisk(), firmwareVariables()

	disk, err := image.Open(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		log.Fatal(err)
	}
	vars, err := firmware.OpenVars(variables)
	if err != nil {
		log.Fatal(err)
	}
	// No firmware is opened: the prediction is for a build without Secure Boot.
	prediction, err := pcrs.Predict(pcrs.Boot{Machine: pcrs.Machine{Vars: vars}, UKI: disk.UKI, Table: disk.Table})
	if err != nil {
		log.Fatal(err)
	}
	values, err := prediction.Values(pcrs.SHA256)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(pcrs.Register(9), "will be", values[9])
	for _, event := range prediction.Log.Of(9) {
		fmt.Println("-", event.What())
	}
	for _, u := range prediction.Unpredicted {
		fmt.Printf("%v is not predicted: %s\n", u.Register, u.Reason)
	}
	// Output:
	// PCR 9 will be ccd93d94907abcb390d31706dd77d0ad39973e498f647d6f21895daff713450a
	// - kernel command line from section .cmdline (87 bytes) as UTF-16LE with its NUL (LOADED_IMAGE::LoadOptions)
	// - the initrd that the stub hands over: section .initrd (6 bytes), archive with /.extra/os-release from section .osrel
	// PCR 0 is not predicted: the firmware changes its own code in memory before it measures it, and no boot of this machine was learned (hullmark learn)
	// PCR 1 is not predicted: depends on processors, memory and devices, and no boot of this machine was learned (hullmark learn)
	// PCR 8 is not predicted: differs per node: it holds the node's configuration
	// PCR 10 is not predicted: the kernel's IMA measures PCR 0 to 9 into it, and those include 0 and 1
}

// smallDisk is a disk with the parts of a node's. Of a disk on a file system, image.Open reads the file.
func smallDisk() []byte {
	stub, err := os.ReadFile("/" + uki.DebianStub) // of the package systemd-boot-efi
	if err != nil {
		log.Fatal(err)
	}
	stub = bytes.Replace(stub, []byte("systemd-stub 252"), []byte("systemd-stub 257"), 1) // the same events from either
	root := bytes.Repeat([]byte("root"), 64<<10)
	layout, err := image.Plan(image.Parts{
		Stub: stub, Kernel: stub, Initrd: []byte("initrd"), // any EFI program will do for a kernel here
		OSRelease: []byte("ID=example\n"), Cmdline: "console=ttyS0",
		Root: bytes.NewReader(root), RootSize: int64(len(root)), Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
	})
	if err != nil {
		log.Fatal(err)
	}
	var disk bytes.Buffer
	if _, err := layout.WriteTo(&disk); err != nil {
		log.Fatal(err)
	}
	return disk.Bytes()
}

// firmwareVariables is a variable file of OVMF, as QEMU gets it.
func firmwareVariables() []byte {
	file, err := os.Open("testdata/ovmf-2025.02.vars.gz")
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		log.Fatal(err)
	}
	variables, err := io.ReadAll(unpacked)
	if err != nil {
		log.Fatal(err)
	}
	return variables
}
