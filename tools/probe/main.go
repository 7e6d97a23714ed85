// Command probe is the first and only process of a probe: it writes what the kernel says of the TPM to the console and switches
// the machine off.
package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if err := report(); err != nil {
		fmt.Printf("\nprobe: failed: %v\n", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // the first process must not end
}

// report writes one line for the event log and one for each register, then one that says that all is there.
func report() error {
	for _, m := range [][2]string{{"sysfs", "/sys"}, {"securityfs", "/sys/kernel/security"}, {"proc", "/proc"}} {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[0], err)
		}
	}
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
	fmt.Printf("probe: cmdline %s\nprobe: done\n", strings.TrimSpace(string(cmdline)))
	return nil
}
