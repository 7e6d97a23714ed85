package initrd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image/gpt"
)

const variables = "/sys/firmware/efi/efivars"

// startedVariable names the partition from which firmware started the kernel image (Boot Loader Interface, systemd.io). The stub sets it,
// if there is such a partition. Whoever writes it decides what is looked at, and no more: the root has to have the root hash.
const startedVariable = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// startedFrom returns the partition from which firmware started the kernel image. It is nil if that is not known, or if the initrd has no
// driver for firmware variables, which only images have that can be installed from a medium.
func startedFrom() *gpt.GUID {
	if err := unix.Mount("efivarfs", variables, "efivarfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil
	}
	defer func() { _ = unix.Unmount(variables, 0) }()
	content, err := os.ReadFile(filepath.Join(variables, startedVariable))
	if err != nil {
		return nil
	}
	guid, err := parseStarted(content)
	if err != nil {
		fmt.Fprintf(os.Stderr, "initrd: variable %s: %v\n", startedVariable, err)
		return nil
	}
	return &guid
}

// parseStarted reads the variable as the kernel shows it: four bytes of attributes, and a GUID as text in UTF-16 with a NUL.
func parseStarted(content []byte) (gpt.GUID, error) {
	const text = 36
	if len(content) != 4+2*(text+1) {
		return gpt.GUID{}, errors.New("it is no GUID")
	}
	wide := make([]uint16, text)
	for i := range wide {
		wide[i] = uint16(content[4+2*i]) | uint16(content[5+2*i])<<8
	}
	return gpt.ParseGUID(string(utf16.Decode(wide)))
}
