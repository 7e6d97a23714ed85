package pcrs

import (
	"fmt"

	"github.com/hullmark/hullmark/image/efi"
)

// The buses of a boot disk, as Shape names them.
const (
	VirtIO = "" // virtio-blk
	NVMe   = "nvme"
	SATA   = "sata"
	SCSI   = "scsi" // behind virtio-scsi
)

// Where QEMU's q35 has its SATA controller.
const (
	sataDevice   = 31
	sataFunction = 2
)

// DiskSerial is the serial number of the disk that a virtual machine boots from: firmware names some disks by it.
const DiskSerial = "hullmark-image"

// bootDisk is the disk that the machine boots from, as firmware names it (EDK2, MdeModulePkg, BmGetBootDescription, and QEMU's words of
// its disks). A name that its field has more room for ends with one space.
func (s Shape) bootDisk() (description string, path []byte) {
	switch s.Bus {
	case NVMe:
		return "UEFI QEMU NVMe Ctrl " + DiskSerial + " 1", efi.NVMePath(s.BootSlot)
	case SATA:
		return "UEFI QEMU HARDDISK " + DiskSerial + " ", efi.SATAPath(s.BootSlot, sataFunction)
	case SCSI:
		return "UEFI QEMU QEMU HARDDISK ", efi.SCSIPath(s.BootSlot)
	}
	// OVMF has no name for a disk whose device has none of its own.
	return "UEFI Misc Device", efi.PCIPath(s.BootSlot)
}

// checkBus refuses a bus that is not known.
func (s Shape) checkBus() error {
	switch s.Bus {
	case VirtIO, NVMe, SCSI:
		return nil
	case SATA:
		if s.BootSlot == sataDevice {
			return nil
		}
	}
	return fmt.Errorf("boot disk on bus %.16q at PCI device %d: nvme, scsi, and sata at %d are known, or none of these for virtio", s.Bus, s.BootSlot, sataDevice)
}
