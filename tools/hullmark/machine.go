package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/pcrs"
)

// machineSchema names the format of a machine file.
const machineSchema = "hullmark.machine/v1"

// maxMachineFile is the largest machine file, in bytes.
const maxMachineFile = 64 << 10

// machineFile describes a machine: what a boot depends on beside the image. Paths are relative to the file's folder. What is left out is as `hullmark vm`
// has it.
type machineFile struct {
	// Schema is machineSchema.
	Schema string `json:"schema"`
	// Tools is a tools tree, from which firmware and option ROMs come that are not named.
	Tools string `json:"tools,omitempty"`
	// Firmware and Variables are OVMF's two files.
	Firmware  string `json:"firmware,omitempty"`
	Variables string `json:"variables,omitempty"`
	// SecureBoot asks for firmware with Secure Boot; Variables then decide whose keys are enrolled.
	SecureBoot bool `json:"secureBoot,omitempty"`
	// TPM is the TPM's interface, crb or tis.
	TPM       vm.TPMInterface `json:"tpm,omitempty"`
	CPUs      int             `json:"cpus,omitempty"`
	MemoryMiB int             `json:"memoryMiB,omitempty"`
	// StateDisk is the size of the second disk, such as 10G; 0 for none.
	StateDisk string `json:"stateDisk,omitempty"`
	// NICROM leaves the network card's option ROM in place.
	NICROM bool `json:"nicROM,omitempty"`
	// NodeConfig is the file with the node configuration.
	NodeConfig string `json:"nodeConfig,omitempty"`
	// SMBIOS are OEM strings that the host gives to the machine.
	SMBIOS []string `json:"smbios,omitempty"`
	// ESP are files beside the kernel image: path on the ESP to path of the file.
	ESP map[string]string `json:"esp,omitempty"`
	// Learned is the file that `hullmark learn` writes; learned.json if it is left out.
	Learned string `json:"learned,omitempty"`
}

// machine is a machine file with its paths resolved.
type machine struct {
	config  vm.Config
	esp     map[string]string
	learned string
	// named reports whether the file names the learned data, rather than leaving it at the usual name.
	named bool
}

// readMachine reads a machine file strictly: a field that is not known is an error.
func readMachine(path string) (machine, error) {
	content, err := readBounded(path, maxMachineFile)
	if err != nil {
		return machine{}, err
	}
	var f machineFile
	in := json.NewDecoder(bytes.NewReader(content))
	in.DisallowUnknownFields()
	if err := in.Decode(&f); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			err = fmt.Errorf("%s at byte %d where another type is wanted, in field %q", wrong.Value, wrong.Offset, wrong.Field)
		}
		return machine{}, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return machine{}, fmt.Errorf("%s: more than one JSON value", path)
	}
	m, err := f.resolve(filepath.Dir(path))
	if err != nil {
		return machine{}, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func (f machineFile) resolve(dir string) (machine, error) {
	if f.Schema != machineSchema {
		return machine{}, fmt.Errorf("schema %q, want %q", f.Schema, machineSchema)
	}
	at := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	m := machine{named: f.Learned != "", learned: at(cmp.Or(f.Learned, "learned.json")), esp: map[string]string{}, config: vm.Config{
		Dir: dir, Tools: at(f.Tools), Firmware: vm.Firmware{Code: at(f.Firmware), Vars: at(f.Variables)}, SecureBoot: f.SecureBoot,
		TPM: cmp.Or(f.TPM, vm.TPMCRB), CPUs: cmp.Or(f.CPUs, 2), MemoryMiB: cmp.Or(f.MemoryMiB, 3072), NICROM: f.NICROM, SMBIOS: f.SMBIOS, StateDisk: defaultStateDisk, Accel: vm.AccelAuto,
	}}
	for name, path := range f.ESP {
		m.esp[name] = at(path)
	}
	var err error
	if f.StateDisk != "" {
		if m.config.StateDisk, err = parseSize(f.StateDisk); err != nil {
			return machine{}, fmt.Errorf("stateDisk: %w", err)
		}
	}
	if m.config.NodeConfig, err = readNodeConfig(at(f.NodeConfig)); err != nil {
		return machine{}, err
	}
	if f.TPM == vm.TPMNone {
		return machine{}, errors.New("tpm: a machine without a TPM measures nothing")
	}
	return m, m.config.Check()
}

// predicted opens what the prediction of a boot on the machine needs. Learned data is taken where it exists.
func (m machine) predicted() (pcrs.Machine, error) {
	shape, err := m.config.Shape()
	if err != nil {
		return pcrs.Machine{}, err
	}
	out, err := openMachine(measureOptions{firmware: shape.Firmware, vars: shape.VarsTemplate, roms: shape.OptionROMs})
	if err != nil {
		return out, err
	}
	out.Shape = pcrs.Shape{CPUs: shape.CPUs, MemoryMiB: shape.MemoryMiB, TPM: string(shape.TPM), Disks: 1, BootSlot: vm.ImageSlot, SMM: shape.SecureBoot}
	if m.config.StateDisk > 0 {
		out.Shape.Disks++
	}
	return out, nil
}

// readESP reads the files that lie beside the kernel image, by their path there.
func (m machine) readESP() (map[string][]byte, error) {
	files, left := map[string][]byte{}, int64(pcrs.MaxESPBytes)
	for _, name := range slices.Sorted(maps.Keys(m.esp)) {
		content, err := readBounded(m.esp[name], left)
		if err != nil {
			return nil, err
		}
		files[name] = content
		left -= int64(len(content))
	}
	return files, nil
}

// cmdlineExtra begins the OEM string that the stub appends to the command line (systemd-stub(7)).
const cmdlineExtra = "io.systemd.stub.kernel-cmdline-extra="

// smbiosExtra are the command lines among the machine's OEM strings.
func (m machine) smbiosExtra() (out []string) {
	for _, text := range m.config.SMBIOS {
		if extra, ok := strings.CutPrefix(text, cmdlineExtra); ok {
			out = append(out, extra)
		}
	}
	return out
}

// readLearned reads the machine's learned data, nil if there is none.
func (m machine) readLearned() (*pcrs.LearnedData, error) {
	content, err := readBounded(m.learned, pcrs.MaxLearned)
	if errors.Is(err, fs.ErrNotExist) && !m.named {
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
		return nil, fmt.Errorf("%s: %w", m.learned, err)
	}
	return &l, nil
}
