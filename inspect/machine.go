package inspect

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// ReadMachine reads a machine file.
func ReadMachine(file string) (machine.File, error) {
	content, err := atomicfile.Read(file, machine.MaxFile)
	if err != nil {
		return machine.File{}, err
	}
	m, err := machine.Parse(content, filepath.Dir(file))
	if err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
}

// OpenMachine opens the firmware and the option ROMs of a machine, for a prediction without learned data.
func OpenMachine(h machine.Hardware) (pcrs.Machine, error) {
	files, err := h.Files(exists)
	if err != nil {
		return pcrs.Machine{}, err
	}
	m, err := files.Open(atomicfile.Read)
	m.Shape = h.Shape()
	return m, err
}

// OpenBoot reads all that a boot on a machine depends on beside the image.
func OpenBoot(m machine.File) (pcrs.Boot, error) {
	files, err := m.Files(exists)
	if err != nil {
		return pcrs.Boot{}, err
	}
	return m.Boot(files, atomicfile.Read)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
