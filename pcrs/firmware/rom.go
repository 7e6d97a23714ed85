package firmware

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxROM is the largest option ROM that is read, in bytes.
const MaxROM = 16 << 20

const maxROMImages = 16

// Fields of an expansion ROM (PCI Firmware 3.3 §5.1; UEFI 2.10 §14.4.21).
const (
	romHeaderSize    = 0x1a
	pcirSize         = 0x18
	codeTypeEFI      = 3
	efiSignature     = 0x0ef1
	machineX64       = 0x8664
	subsystemBoot    = 11
	subsystemRuntime = 12
	compressionNone  = 0
	compressionEFI   = 1
)

// ROM is the expansion ROM of a device that the machine has, such as a network card.
type ROM struct {
	// SHA256 is the digest of the file.
	SHA256 [sha256.Size]byte
	// Drivers are its EFI drivers for x86-64, in the order of the file.
	Drivers []Driver
	// unpacked is how many bytes its compressed drivers have.
	unpacked int
}

// Driver is a program of an option ROM, unpacked.
type Driver struct {
	// Runtime says that it stays when the operating system runs.
	Runtime bool
	// Image is its PE file.
	Image []byte
}

// OpenROM reads an expansion ROM file and finds the EFI drivers for x86-64 in
// it; images for other firmware are passed over, as OVMF does. A compressed
// driver is unpacked.
func OpenROM(file []byte) (ROM, error) {
	if len(file) > MaxROM {
		return ROM{}, fmt.Errorf("open option ROM: %d bytes, want at most %d", len(file), MaxROM)
	}
	rom := ROM{SHA256: sha256.Sum256(file)}
	rest := file
	for n := 1; ; n++ {
		if n > maxROMImages {
			return ROM{}, fmt.Errorf("open option ROM: more than %d images", maxROMImages)
		}
		length, last, err := rom.readImage(rest)
		if err != nil {
			return ROM{}, fmt.Errorf("open option ROM: image %d: %w", n, err)
		}
		if last {
			return rom, nil
		}
		rest = rest[length:]
	}
}

// readImage reads the image that b starts with, and returns its length and whether it is the last one.
func (r *ROM) readImage(b []byte) (length int, last bool, err error) {
	if len(b) < romHeaderSize || b[0] != 0x55 || b[1] != 0xaa {
		return 0, false, errors.New("no ROM signature; the file is truncated or no expansion ROM")
	}
	pcir := int(binary.LittleEndian.Uint16(b[0x18:]))
	if pcir < romHeaderSize || pcir+pcirSize > len(b) || string(b[pcir:pcir+4]) != "PCIR" {
		return 0, false, errors.New("no PCI data structure")
	}
	length = int(binary.LittleEndian.Uint16(b[pcir+16:])) * 512
	if length < pcir+pcirSize || length > len(b) {
		return 0, false, fmt.Errorf("length %d, the file has %d bytes left", length, len(b))
	}
	last = b[pcir+21]&0x80 != 0
	if b[pcir+20] != codeTypeEFI {
		return length, last, nil
	}
	return length, last, r.readDriver(b[:length])
}

func (r *ROM) readDriver(b []byte) error {
	if binary.LittleEndian.Uint32(b[4:]) != efiSignature {
		return errors.New("EFI image without the EFI signature")
	}
	subsystem := binary.LittleEndian.Uint16(b[8:])
	if machine := binary.LittleEndian.Uint16(b[10:]); machine != machineX64 {
		return nil
	}
	if subsystem != subsystemBoot && subsystem != subsystemRuntime {
		return nil
	}
	offset := int(binary.LittleEndian.Uint16(b[22:]))
	if offset < romHeaderSize || offset >= len(b) {
		return fmt.Errorf("driver at %d, the image has %d bytes", offset, len(b))
	}
	image := b[offset:]
	switch compression := binary.LittleEndian.Uint16(b[12:]); compression {
	case compressionNone:
	case compressionEFI:
		var err error
		if image, err = decompressEFI(image, MaxROM-r.unpacked); err != nil {
			return fmt.Errorf("driver: %w", err)
		}
		r.unpacked += len(image)
	default:
		return fmt.Errorf("driver is compressed in a way that is not known here (%d)", compression)
	}
	r.Drivers = append(r.Drivers, Driver{Runtime: subsystem == subsystemRuntime, Image: image})
	return nil
}
