package efi

import (
	"encoding/binary"
	"strings"
)

// Attributes of a load option (UEFI 2.10 §3.1.3).
const (
	OptionActive      = 0x0001
	OptionHidden      = 0x0008
	OptionApplication = 0x0100
)

// LoadOption is the content of a variable Boot####, an EFI_LOAD_OPTION (UEFI 2.10 §3.1.3): a device path under a description, with
// what is handed to the program.
func LoadOption(attributes uint32, description string, path, optional []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, attributes)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(path)))
	b = append(append(b, UTF16(description)...), 0, 0)
	return append(append(b, path...), optional...)
}

// pathEnd ends a device path (UEFI 2.10 §10.3.1).
var pathEnd = []byte{0x7f, 0xff, 4, 0}

// PCIPath is the device path PciRoot(0)/Pci(device, 0) (UEFI 2.10 §10.3.3 and §10.3.2.1): ACPI's PNP0A03 with UID 0, then function
// and device.
func PCIPath(device int) []byte { return devicePath(device, 0) }

// devicePath is the path of a function of a PCI device, and of what is behind it by further nodes.
func devicePath(device, function int, behind ...byte) []byte {
	path := []byte{2, 1, 12, 0, 0xd0, 0x41, 0x03, 0x0a, 0, 0, 0, 0, 1, 1, 6, 0, byte(function), byte(device)}
	return append(append(path, behind...), pathEnd...)
}

// NVMePath is PciRoot(0)/Pci(device, 0)/NVMe(1, 0): the first namespace of a controller, without an EUI-64 (UEFI 2.10 §10.3.4.21).
func NVMePath(device int) []byte {
	return devicePath(device, 0, 3, 0x17, 16, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// SATAPath is PciRoot(0)/Pci(device, function)/Sata(0, 0xffff, 0): the disk at the first port, without a multiplier (UEFI 2.10 §10.3.4.6).
func SATAPath(device, function int) []byte {
	return devicePath(device, function, 3, 18, 10, 0, 0, 0, 0xff, 0xff, 0, 0)
}

// SCSIPath is PciRoot(0)/Pci(device, 0)/Scsi(0, 0): the first unit of the first target (UEFI 2.10 §10.3.4.2).
func SCSIPath(device int) []byte {
	return devicePath(device, 0, 3, 2, 8, 0, 0, 0, 0, 0)
}

// Partition is one of a GUID partition table, as a device path names it.
type Partition struct {
	// Number is its place in the table, from 1; First and Sectors are its first sector and how many it has.
	Number         uint32
	First, Sectors uint64
	// GUID is its own, as EFI stores it.
	GUID GUID
}

// FilePath is the device path of a file on a partition, HD(…)/\… in short form (UEFI 2.10 §10.3.5.1, §10.3.5.4 and §3.1.2): firmware looks
// for the partition on all disks. The file's path has slashes here.
func FilePath(p Partition, file string) []byte {
	path := binary.LittleEndian.AppendUint32([]byte{4, 1, 42, 0}, p.Number)
	path = binary.LittleEndian.AppendUint64(path, p.First)
	path = binary.LittleEndian.AppendUint64(path, p.Sectors)
	path = append(append(path, p.GUID[:]...), 2, 2) // a GUID partition table, and a GUID for signature
	name := append(UTF16(`\`+strings.ReplaceAll(file, "/", `\`)), 0, 0)
	path = binary.LittleEndian.AppendUint16(append(path, 4, 4), uint16(4+len(name)))
	return append(append(path, name...), pathEnd...)
}

// VolumePath is the device path of a file in a firmware volume (UEFI PI 1.8 vol. 2 §8.3).
func VolumePath(volume, file GUID) []byte {
	path := append([]byte{4, 7, 20, 0}, volume[:]...)
	path = append(append(path, 4, 6, 20, 0), file[:]...)
	return append(path, pathEnd...)
}
