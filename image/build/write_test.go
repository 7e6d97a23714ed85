package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No core file is made of a program on a node: the kernel gives each to a program that keeps nothing, and no package brings one that does.
func TestNoCoreFiles(t *testing.T) {
	const source = "../.."
	sysctl, err := os.ReadFile(filepath.Join(source, "systemd/sysctl.d/50-hullmark.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(sysctl), "\nkernel.core_pattern = |/bin/false\n") {
		t.Error("the kernel's core_pattern is not set")
	}
	locked, err := os.ReadFile(filepath.Join(source, "hullmark.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(locked), "systemd-coredump") || !strings.Contains(string(locked), "systemd-timesyncd") {
		t.Error("the image has systemd-coredump, or the lock was not read")
	}
}

// Credentials of the SMBIOS and of fw_cfg are in no register: only the command line, which is, keeps the first process from taking them.
func TestNoCredentialsFromTheHost(t *testing.T) {
	definitions, err := os.ReadFile("../../mkosi/mkosi.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(definitions), "\nKernelCommandLine=systemd.import_credentials=no\n") {
		t.Error("the first process takes credentials")
	}
}
