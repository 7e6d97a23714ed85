//go:build builds

package build

import (
	"archive/tar"
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each platform's image builds from the one lock, and has the platform's kernel, console, drivers and source of configurations.
func TestPlatforms(t *testing.T) {
	for _, c := range []struct {
		profile, kernel, words, source string
		initrd, loaded                 []string // kernel modules
		beside                         []string // other profiles, which go with any platform
	}{
		{"qemu", "-cloud-amd64", "console=ttyS0", "fw_cfg", []string{"virtio_blk"}, []string{"virtio_net"}, nil},
		{"azure", "-cloud-amd64", "console=ttyS0", "azure", []string{"hv_storvsc", "pci_hyperv", "nvme"}, []string{"hv_netvsc", "mlx5_core", "mana"}, nil},
		{"gcp", "-cloud-amd64", "console=ttyS0", "gcp", []string{"virtio_scsi", "nvme"}, []string{"gve", "virtio_net"}, nil},
		{"aws", "-cloud-amd64", "nvme_core.io_timeout=4294967295", "aws", []string{"nvme"}, []string{"ena"}, nil},
		{"baremetal", "deb13-amd64", "console=tty0", "partition", []string{"ahci", "megaraid_sas", "mpt3sas", "xhci_pci"}, nil, []string{"firmware", "storage"}},
	} {
		o, l, tools := settled(t)
		o.Profiles = append([]string{c.profile}, c.beside...)
		r, err := Build(t.Context(), o)
		if err != nil {
			t.Errorf("%s: %v", c.profile, err)
			continue
		}
		if release := measuredSection(t, r.Image, ".osrel"); !strings.Contains(string(release), "\nVARIANT_ID="+strings.Join(o.Profiles, "-")+"\n") {
			t.Errorf("%s: what PCR 11 measures does not name it:\n%s", c.profile, release)
		}
		if uname := measuredSection(t, r.Image, ".uname"); !strings.HasSuffix(string(bytes.TrimRight(uname, "\x00")), c.kernel) {
			t.Errorf("%s: kernel %s", c.profile, uname)
		}
		if !strings.Contains(" "+r.Cmdline+" ", " "+c.words+" ") || !strings.Contains(r.Cmdline, "module.sig_enforce=1") {
			t.Errorf("%s: command line %s", c.profile, r.Cmdline)
		}
		tree := members{}
		folder, hit, err := Tree(t.Context(), o, l.For(o.Profiles...), tools)
		if err != nil || !hit {
			t.Fatalf("%s: the tree that was just built: %v, %v", c.profile, hit, err)
		}
		if err := tree.addTree(folder); err != nil {
			t.Fatal(err)
		}
		if source, err := tree.read("usr/lib/hullmark/config-source"); err != nil || string(source) != c.source+"\n" {
			t.Errorf("%s: configurations come from %q, %v", c.profile, source, err)
		}
		modules, err := readKernelModules(tree)
		if err != nil {
			t.Fatal(err)
		}
		initrd := measuredSection(t, r.Image, ".initrd")
		for _, name := range c.initrd {
			if !modules.builtin[name] && !bytes.Contains(initrd, []byte("-"+name+".ko")) {
				t.Errorf("%s: %s is neither in the initrd nor built in", c.profile, name)
			}
		}
		checkLoaded(t, tree, modules, c.profile, c.loaded)
		// What systemd-networkd asks the kernel for when a node configuration has bonds, VLANs and bridges.
		if _, err := modules.order([]string{"bonding", "8021q", "bridge"}); err != nil {
			t.Errorf("%s: %v", c.profile, err)
		}
		if slices.Contains(o.Profiles, "storage") {
			checkStorage(t, tree, modules)
		}
		if slices.Contains(o.Profiles, "firmware") {
			checkFirmware(t, r.Image, tree)
		}
		if err := os.Remove(r.Image); err != nil {
			t.Fatal(err)
		}
	}
}

// What the profile storage leaves out: whatever listens, starts by itself, or wants an interpreter that no image has.
var notInStorage = regexp.MustCompile(`^usr/s?bin/(rpcbind|rpc\.\w+|sm-notify|blkmapd|nfsidmap|request-key|dmeventd|lvmpolld|iscsistart|kpartx|useradd|passwd)$|` +
	`/system/(open-iscsi|rpc|nfs|lvm2|dm-event|blk-avail).*|/rules\.d/(69-lvm|60-kpartx|70-.*iscsi.*|99-nfs|.*-sg3_.*)\.rules$`)

// checkStorage looks at the tree of an image for nodes with iSCSI, NFS, multipath and LVM.
func checkStorage(t *testing.T, tree members, modules kernelModules) {
	t.Helper()
	for _, name := range []string{
		"usr/sbin/iscsiadm", "usr/sbin/iscsid", "usr/sbin/iscsi-iname", "usr/sbin/mount.nfs", "usr/sbin/multipath", "usr/sbin/multipathd", "usr/sbin/lvm",
		"usr/lib/systemd/system/iscsid.socket", "usr/lib/systemd/system/multipathd.socket", "usr/lib/systemd/system/modprobe@.service", "usr/lib/udev/rules.d/60-multipath.rules",
	} {
		if _, ok := tree[name]; !ok {
			t.Errorf("%s is not in the image", name)
		}
	}
	if _, err := modules.order([]string{"iscsi_tcp", "nfsv4", "dm_multipath", "dm_round_robin", "dm_service_time", "dm_snapshot", "dm_thin_pool"}); err != nil {
		t.Error(err)
	}
	for name, f := range tree {
		if notInStorage.MatchString(name) {
			t.Errorf("%s is in the image", name)
		}
		if strings.HasPrefix(name, "etc/systemd/system/") && regexp.MustCompile(`iscsi|multipath|lvm|nfs|rpc`).MatchString(name) {
			t.Errorf("%s starts something with the machine", name)
		}
		if f.header.Typeflag == tar.TypeReg && f.header.Mode&0o111 != 0 && !strings.HasPrefix(name, "var/lib/dpkg/") {
			if text, err := tree.read(name); err != nil || bytes.HasPrefix(text, []byte("#!")) {
				t.Errorf("%s wants an interpreter, and there is none: %.40q, %v", name, text, err)
			}
		}
	}
	// multipathd wants this file with its own first lines; in a read-only root it can make none.
	if text, err := tree.read("etc/multipath/bindings"); err != nil {
		t.Error(err)
	} else if library, err := tree.read("usr/lib/libmultipath.so.0"); err != nil || !bytes.Contains(library, text) {
		t.Errorf("multipathd would not start: it begins its bindings otherwise than %q, %v", text, err)
	}
	if text, err := tree.read("etc/iscsi/initiatorname.iscsi"); err != nil || bytes.Contains(text, []byte("InitiatorName")) {
		t.Errorf("all machines have one name: %q, %v", text, err)
	}
}

// checkFirmware looks for the firmware of cards and its licences, and for microcode where the kernel looks before it starts other processors.
func checkFirmware(t *testing.T, image string, tree members) {
	t.Helper()
	for _, name := range []string{"usr/lib/firmware/bnx2x/bnx2x-e2-7.13.21.0.fw", "usr/lib/firmware/intel/ice/ddp/ice.pkg", "usr/share/doc/firmware-bnx2x/copyright"} {
		if _, ok := tree[name]; !ok {
			t.Errorf("%s is not in the image", name)
		}
	}
	microcode := measuredSection(t, image, ".ucode")
	for _, maker := range []string{"GenuineIntel", "AuthenticAMD"} {
		if !bytes.Contains(microcode, []byte("kernel/x86/microcode/"+maker+".bin\x00")) {
			t.Errorf("%d bytes of microcode, none for %s", len(microcode), maker)
		}
	}
}

// checkLoaded looks for modules that start with the machine: a list names each, and the kernel has it.
func checkLoaded(t *testing.T, tree members, modules kernelModules, profile string, names []string) {
	t.Helper()
	var lists []byte
	for name := range tree {
		if strings.HasPrefix(name, "usr/lib/modules-load.d/") {
			text, err := tree.read(name)
			if err != nil {
				t.Fatal(err)
			}
			lists = append(lists, text...)
		}
	}
	for _, name := range names {
		if _, err := modules.order([]string{name}); err != nil || !strings.Contains(string(lists), "\n"+name+"\n") {
			t.Errorf("%s: %s is not loaded: %v", profile, name, err)
		}
	}
}
