//go:build long

package build

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// Each platform's image builds from the one lock, and has the platform's kernel, console, drivers and source of configurations.
func TestPlatforms(t *testing.T) {
	for _, c := range []struct {
		profile, kernel, words, source string
		initrd, loaded                 []string // kernel modules
	}{
		{"qemu", "-cloud-amd64", "console=ttyS0", "fw_cfg", []string{"virtio_blk"}, []string{"virtio_net"}},
		{"azure", "-cloud-amd64", "console=ttyS0", "azure", []string{"hv_storvsc", "pci_hyperv", "nvme"}, []string{"hv_netvsc", "mlx5_core", "mana"}},
		{"gcp", "-cloud-amd64", "console=ttyS0", "gcp", []string{"virtio_scsi", "nvme"}, []string{"gve", "virtio_net"}},
		{"aws", "-cloud-amd64", "nvme_core.io_timeout=4294967295", "aws", []string{"nvme"}, []string{"ena"}},
		{"baremetal", "deb13-amd64", "console=tty0", "partition", []string{"ahci", "megaraid_sas", "mpt3sas", "xhci_pci"}, nil},
	} {
		o, l, tools := settled(t)
		o.Profiles = []string{c.profile}
		r, err := Build(t.Context(), o)
		if err != nil {
			t.Errorf("%s: %v", c.profile, err)
			continue
		}
		if release := measuredSection(t, r.Image, ".osrel"); !strings.Contains(string(release), "\nVARIANT_ID="+c.profile+"\n") {
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
		if err := tree.addTar(folder + "/" + treeTar); err != nil {
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
		if err := os.Remove(r.Image); err != nil {
			t.Fatal(err)
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
