package build

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/hullmark/hullmark/image/cpio"
)

// microcode maps the folders in which packages have the microcode of processors, a file a family, to the one file of an archive in
// which the kernel looks before it starts the other processors (Linux, Documentation/arch/x86/microcode.rst).
var microcode = map[string]string{
	"usr/lib/firmware/amd-ucode":   "kernel/x86/microcode/AuthenticAMD.bin",
	"usr/lib/firmware/intel-ucode": "kernel/x86/microcode/GenuineIntel.bin",
}

// packMicrocode returns the archive of all microcode in a tree, or nothing if there is none. The kernel chooses: what is for another
// processor, or no newer than what the machine's firmware has loaded, it leaves.
func packMicrocode(tree members) ([]byte, error) {
	var entries []cpio.Entry
	for dir, name := range microcode {
		var all []byte
		for _, file := range slices.Sorted(maps.Keys(tree)) {
			if path.Dir(file) != dir {
				continue
			}
			content, err := tree.read(file)
			if err != nil {
				return nil, fmt.Errorf("pack microcode: %w", err)
			}
			all = append(all, content...)
		}
		if len(all) > 0 {
			entries = append(entries, cpio.Entry{Name: name, Mode: 0o644, Data: all})
		}
	}
	if len(entries) == 0 {
		return nil, nil
	}
	var archive bytes.Buffer
	if err := cpio.Write(&archive, entries); err != nil {
		return nil, fmt.Errorf("pack microcode: %w", err)
	}
	return archive.Bytes(), nil
}
