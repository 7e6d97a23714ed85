// Package initrd is the node's first process: it opens the verity-protected
// root file system that the kernel command line names, and hands over to
// systemd in it. The root hash is its only key; it asks nothing, stores nothing
// and offers no prompt.
package initrd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot/devmapper"
	"github.com/hullmark/hullmark/image/verity"
)

// diskTimeout bounds the wait for the disk that the node boots from.
const diskTimeout = 60 * time.Second

// DeviceName is the root's name in the device mapper.
const DeviceName = "root"

const (
	sysroot = "/sysroot"
	systemd = "/usr/lib/systemd/systemd"
)

// Run takes PID 1 from the kernel to systemd. It returns only to report why
// that failed; the root is then not in use.
func Run() error {
	if os.Getpid() != 1 {
		return errors.New("this program is the first process of a machine and does nothing elsewhere")
	}
	if err := mountKernelFilesystems(); err != nil {
		return err
	}
	root, err := RootHash()
	if err != nil {
		return err
	}
	if err := loadModules("/lib/modules"); err != nil {
		return err
	}
	armWatchdog("/dev/watchdog0")
	parts, err := waitForPartitions(scanner{sys: "/sys", dev: "/dev", started: startedFrom()}, root, diskTimeout)
	if err != nil {
		return err
	}
	device, err := openVerity(parts, root)
	if err != nil {
		return fmt.Errorf("open verity root on %s: %w", parts.data, err)
	}
	if err := mountRoot(device); err != nil {
		return err
	}
	return switchRoot()
}

func mountKernelFilesystems() error {
	for _, m := range []struct{ kind, dir string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return fmt.Errorf("mount %s: %w", m.kind, err)
		}
		err := unix.Mount(m.kind, m.dir, m.kind, unix.MS_NOSUID, "")
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.dir, err)
		}
	}
	return nil
}

// RootHash returns the root hash of the release that runs, which the kernel's command line names: that is in PCR 11, and the disk has no
// say in it.
func RootHash() (verity.Root, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return verity.Root{}, err
	}
	return verity.RootOf(string(line))
}

// loadModules loads every module in dir in the order of the names, which begin
// with numbers so that each follows what it needs.
func loadModules(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return err
	}
	for _, name := range names { // Glob sorts
		if err := loadModule(name); err != nil {
			return fmt.Errorf("load kernel module %s: %w", filepath.Base(name), err)
		}
	}
	return nil
}

func loadModule(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	switch {
	case errors.Is(err, unix.EEXIST): // built in, or pulled in by the kernel itself
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT):
		// Made for another machine, or in need of a module that is. If the root needs it, the root is not found.
	default:
		return err
	}
	return nil
}

// watchdogTimeout is how long the machine may hang before it is reset, in seconds. systemd takes the watchdog over (RuntimeWatchdogSec=).
const watchdogTimeout = 180

// armWatchdog has the machine reset if nobody takes its watchdog over in time. That the device is closed by the start of systemd,
// without the letter that would disarm it, leaves it armed (Linux, Documentation/watchdog/watchdog-api.rst). A machine without one
// boots all the same.
func armWatchdog(device string) {
	fd, err := unix.Open(device, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "initrd: no watchdog:", err)
		return
	}
	if err := unix.IoctlSetPointerInt(fd, unix.WDIOC_SETTIMEOUT, watchdogTimeout); err != nil {
		fmt.Fprintln(os.Stderr, "initrd: watchdog:", err)
	}
}

// openVerity makes the verity device and returns its path.
func openVerity(p partitions, root verity.Root) (string, error) {
	f, err := os.Open(p.tree)
	if err != nil {
		return "", err
	}
	defer f.Close()
	super, err := verity.ReadSuperblock(f)
	if err != nil {
		return "", err
	}
	target, err := verityTarget(p, super, root)
	if err != nil {
		return "", err
	}
	control, err := devmapper.Open()
	if err != nil {
		return "", err
	}
	defer control.Close()
	dev, err := control.CreateReadOnly(DeviceName, "CRYPT-VERITY-"+fmt.Sprintf("%x", super.UUID)+"-"+DeviceName, target)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/dev/dm-%d", unix.Minor(dev)), nil
}

func mountRoot(device string) error {
	if err := os.MkdirAll(sysroot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, sysroot, "erofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount %s (erofs) as root: %w", device, err)
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(dir, sysroot+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s into the root: %w", dir, err)
		}
	}
	return nil
}

// switchRoot makes the mounted root the root of this process and starts
// systemd as the same process. It returns only with an error.
func switchRoot() error {
	freeInitramfs()
	if err := unix.Chdir(sysroot); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("switch root: move: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("switch root: chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	return fmt.Errorf("start %s: %w", systemd, unix.Exec(systemd, []string{systemd}, os.Environ()))
}

// freeInitramfs gives back the memory of the modules, of microcode and of this
// program, which would otherwise stay allocated below the new root for ever. Nothing
// depends on its success.
func freeInitramfs() {
	_ = os.RemoveAll("/lib")
	_ = os.RemoveAll("/kernel")
	_ = os.Remove("/init")
}
