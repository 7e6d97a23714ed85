package build

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func moduleTree() members {
	m := members{}
	dir := "usr/lib/modules/6.1-x/"
	m.addBytes(dir+"vmlinuz", 0o644, []byte("kernel"))
	m.addBytes(dir+"modules.dep", 0o644, []byte("kernel/dm-verity.ko: kernel/dm-bufio.ko kernel/dm-mod.ko\nkernel/dm-bufio.ko: kernel/dm-mod.ko\nkernel/dm-mod.ko:\nkernel/erofs.ko:\n"))
	m.addBytes(dir+"modules.builtin", 0o644, []byte("kernel/drivers/virtio/virtio_pci.ko\n"))
	for _, name := range []string{"dm-verity", "dm-bufio", "dm-mod", "erofs"} {
		m.addBytes(dir+"kernel/"+name+".ko", 0o644, []byte("module "+name))
	}
	return m
}

func TestModulesComeAfterWhatTheyNeed(t *testing.T) {
	k, err := readKernelModules(moduleTree())
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.order([]string{"erofs", "virtio_pci", "dm_verity", "dm-mod"})
	want := []string{"kernel/erofs.ko", "kernel/dm-mod.ko", "kernel/dm-bufio.ko", "kernel/dm-verity.ko"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := k.order([]string{"floppy"}); err == nil || !strings.Contains(err.Error(), "floppy") {
		t.Errorf("unknown module: %v", err)
	}
}

func TestInitrdDependsOnItsContentAlone(t *testing.T) {
	first, err := packInitrd(moduleTree(), []byte("program"), []string{"dm_verity"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := packInitrd(moduleTree(), []byte("program"), []string{"dm_verity"})
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("packed twice, two results (%v)", err)
	}
	if !bytes.HasPrefix(first, []byte("070701")) {
		t.Errorf("starts with %q, not an archive of kernels", first[:6])
	}
}

func TestOnlyOneKernelIsAccepted(t *testing.T) {
	m := moduleTree()
	m.addBytes("usr/lib/modules/6.2-x/vmlinuz", 0o644, nil)
	if _, err := readKernelModules(m); err == nil {
		t.Error("two kernels were accepted")
	}
}
