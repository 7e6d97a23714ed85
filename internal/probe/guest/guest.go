// Package guest is what the programs share that run in a probe: they say what was measured, and switch the machine off.
package guest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Main is the first process of a machine: it does what there is to do, says on the console how that ended, and switches the machine off.
func Main(do func() error) {
	if err := do(); err != nil {
		fmt.Printf("\nprobe: failed: %v\n", err)
	} else {
		fmt.Println("probe: done")
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // the first process must not end
}

// Mount mounts a file system that the kernel makes.
func Mount(kind, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, dir, kind, 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", kind, err)
	}
	return nil
}

// Report writes one line for the event log, one for each register, and one for the kernel's command line.
func Report() error {
	log, err := os.ReadFile("/sys/kernel/security/tpm0/binary_bios_measurements")
	if err != nil {
		return err
	}
	fmt.Printf("\nprobe: log %s\n", base64.StdEncoding.EncodeToString(log))
	files, err := filepath.Glob("/sys/class/tpm/tpm0/pcr-sha*/*")
	if err != nil || len(files) == 0 {
		return errors.Join(err, errors.New("no registers in sysfs"))
	}
	for _, f := range files {
		value, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		bank := strings.TrimPrefix(filepath.Base(filepath.Dir(f)), "pcr-")
		fmt.Printf("probe: register %s %s %s\n", bank, filepath.Base(f), strings.ToLower(strings.TrimSpace(string(value))))
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	fmt.Printf("probe: cmdline %s\n", strings.TrimSpace(string(cmdline)))
	return nil
}
