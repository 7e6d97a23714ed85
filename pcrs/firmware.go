package pcrs

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

var (
	guidSecureBootEnable = efi.MustGUID("f0a30bc7-af08-4556-99c4-001009c93a44")
	guidAutoCreatedEntry = efi.MustGUID("8108ac4e-9f11-4d59-850e-e21a522c59b2")
)

// Firmware is what a code file of firmware tells about the boots that it makes.
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
	applications []firmware.Application
	// volume is the name of that volume, and files are the names of all that is in it.
	volume efi.GUID
	files  map[efi.GUID]bool
}

// OpenFirmware reads a code file, as firmware.Open does, and hashes what a boot measures of it.
func OpenFirmware(file []byte) (Firmware, error) {
	f, err := firmware.Open(file)
	if err != nil {
		return Firmware{}, err
	}
	return Firmware{
		SHA256: f.SHA256, SecureBoot: f.SecureBoot, version: f.Version,
		drivers: DigestsOf(f.Drivers, PredictedBanks()...), applications: f.Applications, volume: f.Volume, files: f.Files,
	}, nil
}

// romEvents returns one event per driver, in the order of the file.
func romEvents(r firmware.ROM) (events []Event, err error) {
	for i, d := range r.Drivers {
		f, err := pe.Parse(bytes.NewReader(d.Image), int64(len(d.Image)))
		if err != nil {
			return nil, fmt.Errorf("option ROM: driver %d: %w", i+1, err)
		}
		e := authenticodeEvent(2, f, Source{Kind: FromOptionROM, Name: Digest(r.SHA256[:]).String(), Number: i + 1})
		e.Type = EvBootServicesDriver
		if d.Runtime {
			e.Type = EvRuntimeServicesDriver
		}
		events = append(events, e)
	}
	return events, nil
}
