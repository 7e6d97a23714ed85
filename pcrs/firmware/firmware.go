// Package firmware reads what a machine's firmware is made of: the code file of OVMF, the variables that it keeps, and the option
// ROMs of devices. It takes each file as hostile, and tells what is in it; what of that a boot measures, and where, pcrs knows.
package firmware

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

// MaxFile is the largest code file that is read, in bytes.
const MaxFile = 16 << 20

// maxVolume bounds what a compressed volume may unpack to, in bytes, and its dictionary: both are held in memory.
// OVMF's has 15 MiB.
const maxVolume = 32 << 20

// File is a code file, opened.
type File struct {
	// SHA256 is the digest of the file.
	SHA256 [sha256.Size]byte
	// SecureBoot reports whether the build knows Secure Boot at all. A build
	// that does not has no SecureBoot variable, which measures differently from
	// Secure Boot that is turned off.
	SecureBoot bool

	// Version is what the build calls itself, in UTF-16LE with a NUL.
	Version []byte
	// Drivers is the volume of drivers.
	Drivers []byte
	// Applications are the programs of that volume that firmware makes boot entries for.
	Applications []Application
	// Volume is the name of that volume, and Files are the names of all that is in it.
	Volume efi.GUID
	Files  map[efi.GUID]bool
}

// Application is a program inside the firmware that gets a boot entry.
type Application struct {
	Name         string
	Volume, File efi.GUID
	// Attributes are those of its load option.
	Attributes uint32
}

// Open reads an OVMF code file (EDK2, OvmfPkg X64). It unpacks its two
// volumes, of the code that measures first and of drivers, and looks what is in
// them. It fails for a file without such volumes and for a build that measures
// nothing into a TPM.
func Open(file []byte) (File, error) {
	if len(file) > MaxFile {
		return File{}, fmt.Errorf("open firmware: %d bytes, want at most %d", len(file), MaxFile)
	}
	unpacked, err := unpackVolume(file)
	if err != nil {
		return File{}, fmt.Errorf("open firmware: %w", err)
	}
	volumes, err := readVolumes(unpacked)
	if err != nil {
		return File{}, fmt.Errorf("open firmware: %w", err)
	}
	if len(volumes) != 2 {
		return File{}, fmt.Errorf("open firmware: %d volumes, want one of early code and one of drivers", len(volumes))
	}
	f := File{SHA256: sha256.Sum256(file)}
	if err := f.read(volumes[0], volumes[1]); err != nil {
		return File{}, fmt.Errorf("open firmware: %w", err)
	}
	return f, nil
}

func (f *File) read(early, drivers volume) (err error) {
	measuring, ok := early.files[guidTcg2Pei]
	if _, driver := drivers.files[guidTcg2Dxe]; !ok || !driver {
		return errors.New("this build has no TPM 2.0 driver, so it measures nothing; use one built with TPM support")
	}
	if f.Version, err = versionOf(measuring); err != nil {
		return fmt.Errorf("program that measures its version: %w", err)
	}
	f.Drivers = drivers.bytes
	_, f.SecureBoot = drivers.files[guidSecureBootDxe]
	f.Volume, f.Files = drivers.name, map[efi.GUID]bool{}
	for name := range drivers.files {
		f.Files[name] = true
	}
	for _, a := range []Application{
		{Name: "UiApp", File: guidUiApp, Attributes: efi.OptionActive | efi.OptionHidden | efi.OptionApplication},
		{Name: "EFI Internal Shell", File: guidShell, Attributes: efi.OptionActive},
	} {
		a.Volume = drivers.name
		if _, ok := drivers.files[a.File]; ok {
			f.Applications = append(f.Applications, a)
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
	if dictionary > maxVolume || length > maxVolume {
		return nil, fmt.Errorf("compressed volume: %d bytes with a dictionary of %d, want at most %d", length, dictionary, maxVolume)
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
