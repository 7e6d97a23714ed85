package machine

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark"
)

// Schema names the format of a machine file.
const Schema = "hullmark.machine/v1"

// MaxFile is the largest machine file, in bytes.
const MaxFile = 64 << 10

// File is a machine file: hardware, and what else a boot depends on beside the image. Its paths are complete.
type File struct {
	Hardware
	// NodeConfig is the file with the node configuration, or empty.
	NodeConfig string
	// ESP are files beside the kernel image: path on the ESP to path of the file.
	ESP map[string]string
	// Confidential is how the hardware keeps the host out; nil of an ordinary machine.
	Confidential *Confidential
	// Learned is the file that hullmark learn writes. If the machine file does not name it, it may be missing.
	Learned      string
	learnedNamed bool
}

// fields are what stands in a machine file. Paths are relative to the file's folder. What is left out is as `hullmark vm` has it.
type fields struct {
	// Schema is Schema.
	Schema string `json:"schema"`
	// Tools is a tools tree, from which firmware and option ROMs come that are not named.
	Tools string `json:"tools,omitempty"`
	// Firmware and Variables are OVMF's two files.
	Firmware  string `json:"firmware,omitempty"`
	Variables string `json:"variables,omitempty"`
	// SecureBoot asks for firmware with Secure Boot; Variables then decide whose keys are enrolled.
	SecureBoot bool `json:"secureBoot,omitempty"`
	// TPM is the TPM's interface, crb or tis.
	TPM       TPM `json:"tpm,omitempty"`
	CPUs      int `json:"cpus,omitempty"`
	MemoryMiB int `json:"memoryMiB,omitempty"`
	// Disks is the bus of all disks: virtio, nvme, sata or scsi.
	Disks Bus `json:"disks,omitempty"`
	// StateDisk is the size of the second disk, such as 10G; 0 for none.
	StateDisk string `json:"stateDisk,omitempty"`
	// Cards is the number of network cards.
	Cards int `json:"cards,omitempty"`
	// NICROM leaves the first network card's option ROM in place.
	NICROM bool `json:"nicROM,omitempty"`
	// NodeConfig is the file with the node configuration.
	NodeConfig string `json:"nodeConfig,omitempty"`
	// SMBIOS are OEM strings that the host gives to the machine.
	SMBIOS []string `json:"smbios,omitempty"`
	// ESP are files beside the kernel image: path on the ESP to path of the file.
	ESP map[string]string `json:"esp,omitempty"`
	// Confidential is what makes the machine a confidential one.
	Confidential *Confidential `json:"confidential,omitempty"`
	// Learned is the file that `hullmark learn` writes; learned.json if it is left out.
	Learned string `json:"learned,omitempty"`
}

// Parse reads a machine file of a folder strictly: a field that is not known is an error.
func Parse(content []byte, folder string) (File, error) {
	var f fields
	if err := hullmark.DecodeStrict(content, MaxFile, &f); err != nil {
		return File{}, err
	}
	return f.resolve(folder)
}

func (f fields) resolve(folder string) (m File, err error) {
	if f.Schema != Schema {
		return m, fmt.Errorf("schema %q, want %q", f.Schema, Schema)
	}
	at := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(folder, path)
	}
	m = File{
		Hardware: Hardware{
			Tools: at(f.Tools), Firmware: Firmware{Code: at(f.Firmware), Vars: at(f.Variables)}, SecureBoot: f.SecureBoot,
			TPM: f.TPM, CPUs: f.CPUs, MemoryMiB: f.MemoryMiB, Bus: f.Disks, StateDisk: DefaultStateDisk, SMBIOS: f.SMBIOS, Cards: f.Cards, NICROM: f.NICROM,
		},
		NodeConfig: at(f.NodeConfig), ESP: map[string]string{}, Learned: at("learned.json"),
	}
	if f.Confidential != nil {
		c := *f.Confidential
		c.Log = at(c.Log)
		m.Confidential = &c
		if err := c.check(); err != nil {
			return m, fmt.Errorf("confidential: %w", err)
		}
	}
	if f.Learned != "" {
		m.Learned, m.learnedNamed = at(f.Learned), true
	}
	for name, path := range f.ESP {
		m.ESP[name] = at(path)
	}
	if f.StateDisk != "" {
		if m.StateDisk, err = ParseSize(f.StateDisk); err != nil {
			return m, fmt.Errorf("stateDisk: %w", err)
		}
	}
	if m.TPM == NoTPM {
		return m, errors.New("tpm: a machine without a TPM measures nothing")
	}
	m.Complete()
	return m, m.Check()
}

// ParseSize reads a number of bytes, or of K, M, G or T of them, by powers of 1024.
func ParseSize(text string) (int64, error) {
	digits, unit := text, int64(1)
	if i := strings.IndexByte("KMGT", text[len(text)-1]); i >= 0 {
		digits, unit = text[:len(text)-1], 1<<(10*(i+1))
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > (1<<50)/unit {
		return 0, fmt.Errorf("size %q: want a number with K, M, G or T, for example 10G", text)
	}
	return n * unit, nil
}
