package build

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/image/slot"
)

func checkout() Options { return Options{Source: "../.."} }

func TestProfilesAreKnown(t *testing.T) {
	o := checkout()
	known, err := Profiles(o)
	if want := []string{"aws", "azure", "baremetal", "debug", "firmware", "gcp", "qemu", "storage", "unsigned-modules"}; err != nil || !slices.Equal(known, want) {
		t.Errorf("%v, %v; want %v", known, err, want)
	}
	for _, c := range []struct {
		profiles []string
		want     string
	}{
		{nil, ""},
		{[]string{"azure", "debug"}, ""},
		{[]string{"baremetal", "firmware", "storage"}, ""},
		{[]string{"nosuch"}, "there is aws, azure, baremetal, debug, firmware, gcp, qemu, storage, unsigned-modules"},
		{[]string{"aws", "azure"}, "aws, azure: each is for a platform"},
	} {
		o.Profiles = c.profiles
		if err := CheckProfiles(o); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.profiles, err, c.want)
		}
	}
}

// A profile says in the image where its nodes find their configuration, in a word that the agent knows.
func TestPlatformsNameASource(t *testing.T) {
	files, err := filepath.Glob("../../mkosi/mkosi.profiles/*/" + platformFile)
	if err != nil || len(files) != 5 {
		t.Fatalf("%d platforms, %v", len(files), err)
	}
	if !strings.HasSuffix(platformFile, config.ImageFile) {
		t.Errorf("%s is not what the agent reads, %s", platformFile, config.ImageFile)
	}
	for _, file := range files {
		name, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Named(strings.TrimSpace(string(name)), nil); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// What is not free is in the firmware profile's set alone.
func TestOnlyFirmwareIsNotFree(t *testing.T) {
	l, err := ReadLock(Options{LockFile: "../../hullmark.lock"})
	if err != nil {
		t.Fatal(err)
	}
	found := map[bool]int{}
	for _, p := range l.Packages {
		free := strings.Contains(p.Path, "/pool/main/") || strings.Contains(p.Path, "/pool/updates/main/")
		if !free && p.Set != "root+firmware" {
			t.Errorf("%s of set %s is not of main: %s", p.Name, p.Set, p.Path)
		}
		found[free]++
	}
	if found[true] == 0 || found[false] == 0 {
		t.Errorf("%d free packages, %d that are not", found[true], found[false])
	}
}

// storageFile reads what the profile puts into the image.
func storageFile(t *testing.T, name string) string {
	t.Helper()
	return readText(t, "../../mkosi/mkosi.profiles/storage/mkosi.extra/"+name)
}

// filtered tells whether LVM refuses a disk with these names (lvm.conf, global_filter): a pattern refuses one of them, and none accepts another.
func filtered(t *testing.T, names ...string) bool {
	t.Helper()
	patterns := regexp.MustCompile(`"r\|([^"]*)\|"`).FindAllStringSubmatch(storageFile(t, "etc/lvm/lvmlocal.conf"), -1)
	if len(patterns) < 10 || strings.Contains(storageFile(t, "etc/lvm/lvmlocal.conf"), `"a|`) {
		t.Fatalf("%d patterns", len(patterns))
	}
	return slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc(patterns, func(p []string) bool { return regexp.MustCompile(p[1]).MatchString(name) })
	})
}

// LVM looks neither at the disks of the node itself nor at what pods may write to, by whichever name the kernel has for them.
func TestLVMLeavesForeignDisks(t *testing.T) {
	refused := [][]string{
		{"/dev/dm-2", "/dev/mapper/hullmark-state"},
		{"/dev/dm-1", "/dev/mapper/hullmark-state_dif"},
		{"/dev/dm-0"},
		{"/dev/vdb", "/dev/disk/by-luks/vdb"},
		{"/dev/sdb", "/dev/disk/by-path/ip-203.0.113.5:3260-iscsi-iqn.2026-01.example:disk-lun-1"},
		{"/dev/sdc", "/dev/disk/by-path/pci-0000:3b:00.0-fc-0x500a0980-lun-0"},
		{"/dev/dm-5", "/dev/mapper/3600140", "/dev/disk/by-id/dm-uuid-mpath-3600140"},
		{"/dev/rbd0"},
		{"/dev/nbd0"},
		{"/dev/loop3"},
	}
	disk, _ := slot.Plan(slot.Sizes{Config: 1})
	medium, _ := slot.PlanMedium(slot.Sizes{})
	for _, p := range append(disk, medium...) {
		refused = append(refused, []string{"/dev/sda1", "/dev/disk/by-partlabel/" + p.Name})
	}
	for _, names := range refused {
		if !filtered(t, names...) {
			t.Errorf("LVM would look at %v", names)
		}
	}
	for _, names := range [][]string{{"/dev/nvme1n1"}, {"/dev/sdd", "/dev/disk/by-path/pci-0000:00:1f.2-ata-4"}, {"/dev/md127"}} {
		if filtered(t, names...) {
			t.Errorf("LVM would not look at %v", names)
		}
	}
	if rule := storageFile(t, "usr/lib/udev/rules.d/61-storage-luks.rules"); !strings.Contains(rule, `ENV{ID_FS_TYPE}=="crypto_LUKS", SYMLINK+="disk/by-luks/`) {
		t.Errorf("the state disk has no name that LVM refuses: %s", rule)
	}
	for _, line := range []string{"event_activation = 0", "auto_activation_volume_list = []", "monitoring = 0"} {
		if !strings.Contains(storageFile(t, "etc/lvm/lvmlocal.conf"), "\n\t"+line+"\n") {
			t.Errorf("lvmlocal.conf has no %s", line)
		}
	}
}

// Multipath takes disks that come by a network of storage, and no other: the protocols are libmultipath's names.
func TestMultipathTakesNoDiskOfTheMachine(t *testing.T) {
	text := storageFile(t, "etc/multipath.conf")
	m := regexp.MustCompile(`(?s)blacklist \{\s*protocol "([^"]*)"\s*\}.*blacklist_exceptions \{\s*protocol "([^"]*)"\s*\}`).FindStringSubmatch(text)
	if m == nil || m[1] != ".*" {
		t.Fatalf("not everything is refused at first: %q", m)
	}
	for protocol, taken := range map[string]bool{
		"scsi:iscsi": true, "scsi:fcp": true, "scsi:ata": false, "scsi:sas": false, "scsi:spi": false, "scsi:unspec": false, "nvme:pcie": false, "undef": false,
	} {
		if regexp.MustCompile(m[2]).MatchString(protocol) != taken {
			t.Errorf("%s: taken %v, want %v", protocol, !taken, taken)
		}
	}
	if !strings.Contains(text, "find_multipaths yes") || !strings.Contains(text, "skip_kpartx yes") {
		t.Error("it takes disks with one path, or partitions of what is on them")
	}
}

// No image has a name by which targets would take it for another machine.
func TestImagesHaveNoISCSIName(t *testing.T) {
	if text := storageFile(t, "etc/iscsi/initiatorname.iscsi"); strings.Contains(text, "InitiatorName") {
		t.Errorf("each machine would be %s", text)
	}
	if unit := storageFile(t, "usr/lib/systemd/system/iscsid.service"); strings.Contains(unit, "[Install]") || !strings.Contains(unit, "\nRequires=hullmark-iscsi.service ") {
		t.Error("iscsid may start without a name, or at boot")
	}
}
