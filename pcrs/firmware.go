package pcrs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/ulikunitz/xz/lzma"
)

// MaxFirmware is the largest firmware file that is read, in bytes.
const MaxFirmware = 16 << 20

// maxFirmwareVolume bounds what a compressed volume may unpack to, in bytes, and its dictionary: both are held in memory.
// OVMF's has 15 MiB.
const maxFirmwareVolume = 32 << 20

// Firmware is what a firmware file tells about the boots that it makes.
type Firmware struct {
	// SHA256 is the digest of the file.
	SHA256 [sha256.Size]byte
	// SecureBoot reports whether the build knows Secure Boot at all. A build
	// that does not has no SecureBoot variable, which measures differently from
	// Secure Boot that is turned off.
	SecureBoot bool

	// version is what the build calls itself, in UTF-16LE with a NUL (PFP §10.4.1, EV_S_CRTM_VERSION).
	version []byte
	// drivers are the digests of the volume of drivers, the last thing that the code before it measures.
	drivers Digests
	// applications are the programs of that volume that firmware makes boot entries for.
	applications []application
}

// OpenFirmware reads an OVMF code file (EDK2, OvmfPkg X64). It unpacks its two
// volumes, of the code that measures first and of drivers, and looks what is in
// them. It fails for a file without such volumes and for a build that measures
// nothing into a TPM.
func OpenFirmware(file []byte) (Firmware, error) {
	if len(file) > MaxFirmware {
		return Firmware{}, fmt.Errorf("open firmware: %d bytes, want at most %d", len(file), MaxFirmware)
	}
	unpacked, err := unpackVolume(file)
	if err != nil {
		return Firmware{}, fmt.Errorf("open firmware: %w", err)
	}
	volumes, err := readVolumes(unpacked)
	if err != nil {
		return Firmware{}, fmt.Errorf("open firmware: %w", err)
	}
	if len(volumes) != 2 {
		return Firmware{}, fmt.Errorf("open firmware: %d volumes, want one of early code and one of drivers", len(volumes))
	}
	f := Firmware{SHA256: sha256.Sum256(file)}
	if err := f.read(volumes[0], volumes[1]); err != nil {
		return Firmware{}, fmt.Errorf("open firmware: %w", err)
	}
	return f, nil
}

func (f *Firmware) read(early, drivers volume) (err error) {
	measuring, ok := early.files[guidTcg2Pei]
	if _, driver := drivers.files[guidTcg2Dxe]; !ok || !driver {
		return errors.New("this build has no TPM 2.0 driver, so it measures nothing; use one built with TPM support")
	}
	if f.version, err = versionOf(measuring); err != nil {
		return fmt.Errorf("program that measures its version: %w", err)
	}
	f.drivers = DigestsOf(drivers.bytes, PredictedBanks()...)
	_, f.SecureBoot = drivers.files[guidSecureBootDxe]
	for _, a := range []application{
		{name: "UiApp", file: guidUiApp, attributes: efi.OptionActive | efi.OptionHidden | efi.OptionApplication},
		{name: "EFI Internal Shell", file: guidShell, attributes: efi.OptionActive},
	} {
		a.volume = drivers.name
		if _, ok := drivers.files[a.file]; ok {
			f.applications = append(f.applications, a)
		}
	}
	return nil
}

// unpackVolume unpacks the GUID-defined LZMA section (UEFI PI 1.8 vol. 3
// §3.2.5.7): size (24 bit), type, GUID, data offset, attributes, LZMA stream.
func unpackVolume(file []byte) ([]byte, error) {
	at := bytes.Index(file, guidLZMASection[:])
	if at < 4 || len(file) < at+20 {
		return nil, errors.New("no LZMA-compressed volume; this is not an OVMF code file")
	}
	section := file[at-4:]
	size := int(binary.LittleEndian.Uint32(section) & 0xffffff)
	offset := int(binary.LittleEndian.Uint16(section[20:]))
	if size > len(section) || offset < 24 || offset+lzma.HeaderLen > size {
		return nil, fmt.Errorf("compressed volume: %d bytes with data at %d do not fit the file", size, offset)
	}
	return unpackLZMA(section[offset:size])
}

func unpackLZMA(stream []byte) ([]byte, error) {
	dictionary := binary.LittleEndian.Uint32(stream[1:])
	length := binary.LittleEndian.Uint64(stream[5:])
	if dictionary > maxFirmwareVolume || length > maxFirmwareVolume {
		return nil, fmt.Errorf("compressed volume: %d bytes with a dictionary of %d, want at most %d", length, dictionary, maxFirmwareVolume)
	}
	r, err := lzma.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, fmt.Errorf("compressed volume: %w", err)
	}
	volume := make([]byte, length)
	if _, err := io.ReadFull(r, volume); err != nil {
		return nil, fmt.Errorf("compressed volume: %w", err)
	}
	return volume, nil
}
