package build

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMountsFollowNoLinkOfTheDisk runs the mounts of hullmark-state.service, as the unit has them, in a namespace and a root of their
// own: a link that root left on the disk puts no folder of the disk over one of the verity root. In the place of ext4 a folder is bound.
func TestMountsFollowNoLinkOfTheDisk(t *testing.T) {
	if dir := os.Getenv("HULLMARK_TEST_ROOT"); dir != "" {
		mountAll(dir)
	}
	for name, c := range map[string]struct{ link, target string }{
		"no link":                       {},
		"a link that is not in the way": {"var/lib/kubelet/pki", "../../../usr/programs"},
		"pods":                          {"var/lib/kubelet/pods", "../../../usr/programs"},
		"containerd":                    {"var/lib/containerd", "../../usr/programs"},
		"by an absolute path":           {"var/lib/containerd", "/usr/programs"},
		"the kubelet's folder":          {"var/lib/kubelet", "../../usr"},
		"CNI's folder":                  {"var/lib/cni", "../../usr/programs"},
		"the manifest's files":          {"var/lib/hullmark", "../../usr/programs"},
		"the journal's files":           {"journal", "usr/programs"},
		"the journal's folder":          {"var/log/journal", "../../usr/programs"},
		"logs":                          {"var/log", "../usr/programs"},
		"all of lib":                    {"var/lib", "../usr/lib-of-the-disk"},
		"var":                           {"var", "usr"},
		"Kubernetes' files":             {"etc-kubernetes", "usr/programs"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			disk := filepath.Join(dir, "disk")
			for _, d := range []string{
				"var/lib/containerd", "var/lib/kubelet/pods", "var/lib/hullmark", "var/log/journal", "etc-kubernetes", "usr/programs", "usr/pods", "usr/lib/containerd",
				"usr/lib-of-the-disk/containerd", "usr/lib-of-the-disk/kubelet/pods", "usr/lib-of-the-disk/hullmark",
			} {
				mustBe(t, os.MkdirAll(filepath.Join(disk, d), 0o755))
			}
			mustBe(t, os.WriteFile(filepath.Join(disk, "usr/programs/kubelet"), []byte("#!/bin/sh\necho the disk\n"), 0o755))
			if c.link != "" {
				mustBe(t, os.RemoveAll(filepath.Join(disk, c.link)))
				mustBe(t, os.Symlink(c.target, filepath.Join(disk, c.link)))
			}
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestMountsFollowNoLinkOfTheDisk$")
			cmd.Env = append(os.Environ(), "HULLMARK_TEST_ROOT="+dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
			if os.Geteuid() != 0 {
				cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
				cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
				cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !strings.Contains(string(out), "RAN the verity root") {
				t.Errorf("a program of the disk is in the place of the verity root's:\n%s", out)
			}
			if mounted := strings.Contains(string(out), "ALL MOUNTED"); mounted != (c.link == "" || c.link == "var/lib/kubelet/pki") {
				t.Errorf("all was mounted: %v\n%s", mounted, out)
			}
		})
	}
}

func mustBe(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mountAll never returns. What it says is read by the test that started it.
func mountAll(dir string) {
	check := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	text, err := os.ReadFile("../../systemd/system/hullmark-state.service")
	check(err)
	check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	root := filepath.Join(dir, "root")
	for _, d := range []string{
		"usr/programs", "var/lib/containerd", "var/lib/kubelet/pods", "etc/kubernetes", "etc/cni", "opt/cni/bin", "run/hullmark/files", "run/hullmark/state", "proc",
		"dev", "disk",
	} {
		check(os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	// The verity root is this machine's programs, and a folder of its own: in the place of /usr/bin, which the test itself needs.
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if _, err := os.Stat("/usr/" + d); err == nil {
			check(os.Mkdir(filepath.Join(root, "usr", d), 0o755))
			check(unix.Mount("/usr/"+d, filepath.Join(root, "usr", d), "", unix.MS_BIND|unix.MS_REC, ""))
			check(os.Symlink("usr/"+d, filepath.Join(root, d)))
		}
	}
	check(os.WriteFile(filepath.Join(root, "usr/programs/kubelet"), []byte("#!/bin/sh\necho the verity root\n"), 0o755))
	check(unix.Mount("/proc", filepath.Join(root, "proc"), "", unix.MS_BIND|unix.MS_REC, ""))
	check(unix.Mount(filepath.Join(dir, "disk"), filepath.Join(root, "disk"), "", unix.MS_BIND, ""))
	check(os.WriteFile(filepath.Join(root, "dev/null"), nil, 0o644))
	check(unix.Mount("/dev/null", filepath.Join(root, "dev/null"), "", unix.MS_BIND, ""))
	check(unix.Chroot(root))
	check(os.Chdir("/"))
	all := true
	for line := range strings.Lines(string(text)) {
		program, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		program, ok := strings.CutPrefix(program, "ExecStart=/usr/bin/")
		if !ok {
			continue
		}
		if rest, ok := strings.CutPrefix(command, "-c --mkdir -t ext4 -o errors=remount-ro,nodelalloc,"); ok {
			command = strings.Replace("-c -o bind,"+rest, "/dev/mapper/hullmark-state", "/disk", 1)
		}
		out, err := exec.Command("/usr/bin/"+program, strings.Fields(command)...).CombinedOutput()
		fmt.Printf("%s %s: %v %s\n", program, command, err, out)
		if err != nil { // As systemd, which ends the unit at the first that fails.
			all = false
			break
		}
	}
	if all {
		fmt.Println("ALL MOUNTED")
	}
	out, err := exec.Command("/usr/programs/kubelet").CombinedOutput()
	fmt.Printf("RAN %s (%v)\n", out, err)
	os.Exit(0)
}
