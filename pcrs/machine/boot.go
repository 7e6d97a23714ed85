package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// Read reads a file, of at most limit bytes. Where there is none, its error is fs.ErrNotExist.
type Read func(file string, limit int64) ([]byte, error)

// Open opens the files for a prediction.
func (f Files) Open(read Read) (m pcrs.Machine, err error) {
	if m.Firmware, err = open(read, f.Code, firmware.MaxFile, pcrs.OpenFirmware); err != nil {
		return m, err
	}
	if m.Vars, err = open(read, f.Vars, firmware.MaxVars, firmware.OpenVars); err != nil {
		return m, err
	}
	for _, file := range f.ROMs {
		rom, err := open(read, file, firmware.MaxROM, firmware.OpenROM)
		if err != nil {
			return m, err
		}
		m.ROMs = append(m.ROMs, rom)
	}
	return m, nil
}

func open[T any](read Read, file string, limit int64, parse func([]byte) (T, error)) (T, error) {
	var none T
	content, err := read(file, limit)
	if err != nil {
		return none, err
	}
	v, err := parse(content)
	if err != nil {
		return none, fmt.Errorf("%s: %w", file, err)
	}
	return v, nil
}

// Boot reads all that a boot on the machine depends on beside the image; files are those of its hardware. Learned data is taken
// where it exists.
func (f File) Boot(files Files, read Read) (b pcrs.Boot, err error) {
	if b.Machine, err = files.Open(read); err != nil {
		return b, err
	}
	b.Machine.Shape = f.Shape()
	if b.Hardware, err = f.hardware(files, b.Machine, read); err != nil {
		return b, err
	}
	if b.ESP, err = f.readESP(read); err != nil {
		return b, err
	}
	if b.NodeConfig, err = NodeConfig(f.NodeConfig, read); err != nil {
		return b, err
	}
	b.SMBIOSExtra = f.smbiosExtra()
	b.Machine.Learned, err = f.readLearned(read)
	return b, err
}

// NodeConfig reads a node configuration and checks it; nil if no file is named.
func NodeConfig(file string, read Read) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	content, err := read(file, hullmark.MaxNodeConfig)
	if err != nil {
		return nil, err
	}
	if _, err := hullmark.ParseNodeConfig(content); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return content, nil
}

// readESP reads the files that lie beside the kernel image, by their path there.
func (f File) readESP(read Read) (map[string][]byte, error) {
	files, left := map[string][]byte{}, int64(pcrs.MaxESPBytes)
	for _, name := range slices.Sorted(maps.Keys(f.ESP)) {
		content, err := read(f.ESP[name], left)
		if err != nil {
			return nil, err
		}
		files[name] = content
		left -= int64(len(content))
	}
	return files, nil
}

// readLearned reads the machine's learned data, nil if there is none.
func (f File) readLearned(read Read) (*pcrs.LearnedData, error) {
	content, err := read(f.Learned, pcrs.MaxLearned)
	if errors.Is(err, fs.ErrNotExist) && !f.learnedNamed {
		return nil, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("learned: %w; hullmark learn writes it", err)
	}
	if err != nil {
		return nil, err
	}
	l, err := pcrs.ParseLearned(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Learned, err)
	}
	return &l, nil
}
