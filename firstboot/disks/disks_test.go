package disks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

// machine has disks as sysfs shows them: files by their path below /sys.
func machine(t *testing.T, files map[string]string) System {
	t.Helper()
	s := System{Sys: t.TempDir(), Dev: t.TempDir()}
	for name, content := range files {
		path := filepath.Join(s.Sys, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func several(t *testing.T) System {
	t.Helper()
	s := machine(t, map[string]string{
		"block/sda/size": "2000000\n", "block/sda/device/vpd_pg80": "\x00\x80\x00\x08 SATA-1\x00",
		"block/vda/size": "4000000\n", "block/vda/serial": "virtio-1\n",
		"block/nvme0n1/size": "8000000\n", "block/nvme0n1/device/serial": "NVME-1  \n",
		"block/nvme1n1/size": "8000000\n", "block/nvme1n1/device/serial": "NVME-2\n",
		"block/nvme1n2/size": "8000000\n", "block/nvme1n2/device/serial": "NVME-2\n",
		"block/sdb/size": "2000000\n",
		"block/sdc/size": "2000000\n", "block/sdc/ro": "1\n", "block/sdc/device/serial": "read-only\n",
		"block/sdd/size": "0\n", "block/loop0/size": "100\n", "block/dm-0/size": "100\n", "block/sr0/size": "100\n",
	})
	return s
}

func TestList(t *testing.T) {
	all, err := several(t).List()
	const want = "/dev/nvme0n1 (4.1 GB, serial NVME-1), /dev/nvme1n1 (4.1 GB, serial NVME-2), /dev/nvme1n2 (4.1 GB, serial NVME-2), " +
		"/dev/sda (1.0 GB, serial SATA-1), /dev/sdb (1.0 GB, without a serial number), /dev/vda (2.0 GB, serial virtio-1)"
	if got := Names(all); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestFindRefuses(t *testing.T) {
	s := several(t)
	for _, c := range []struct {
		selector  hullmark.DiskSelector
		code, got string
	}{
		{hullmark.DiskSelector{Serial: "other"}, "disk-missing", "serial NVME-1"},
		{hullmark.DiskSelector{Serial: "read-only"}, "disk-missing", "serial NVME-1"},
		{hullmark.DiskSelector{Serial: "NVME-2"}, "disk-ambiguous", "/dev/nvme1n1 (4.1 GB, serial NVME-2), /dev/nvme1n2"},
		{hullmark.DiskSelector{Serial: "SATA-1"}, "disk-missing", ""}, // sysfs has it, devtmpfs not yet
		{hullmark.DiskSelector{Path: filepath.Join(s.Sys, "block/sda/size")}, "disk-missing", ""},
	} {
		_, err := s.Find(Wanted{DiskSelector: c.selector, Field: "stateDisk", Step: "DISK"})
		var condition *hullmark.Condition
		if !errors.As(err, &condition) || condition.Code != c.code || condition.Step != "DISK" || !strings.Contains(condition.Got, c.got) || !strings.Contains(condition.Next, "stateDisk") {
			t.Errorf("%+v: %v", c.selector, err)
		}
	}
}

func TestBehindAnotherDisk(t *testing.T) {
	for name, s := range map[string]System{"booted otherwise": machine(t, map[string]string{"class/block/sda/size": "1"}), "no sysfs": {Sys: "/nonexistent"}} {
		if got, err := s.Behind("/dev/null"); err != nil || got != "/dev/null" {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}
