package build

import (
	"bytes"
	"testing"

	"github.com/hullmark/hullmark/image/cpio"
)

// All files of a maker are one, in the order of their names, under the name that the kernel looks for; other firmware is not among them.
func TestMicrocodeIsOneFileOfEachMaker(t *testing.T) {
	tree := members{}
	for name, content := range map[string]string{
		"usr/lib/firmware/intel-ucode/06-3a-09.initramfs": "second", "usr/lib/firmware/intel-ucode/06-0f-02": "first ",
		"usr/lib/firmware/amd-ucode/microcode_amd.bin": "amd", "usr/lib/firmware/amd/amd_sev.sbin": "sev", "usr/lib/firmware/qed/zipped.bin": "card",
	} {
		tree.addBytes(name, 0o644, []byte(content))
	}
	var want bytes.Buffer
	if err := cpio.Write(&want, []cpio.Entry{
		{Name: "kernel/x86/microcode/GenuineIntel.bin", Mode: 0o644, Data: []byte("first second")},
		{Name: "kernel/x86/microcode/AuthenticAMD.bin", Mode: 0o644, Data: []byte("amd")},
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := packMicrocode(tree); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%q, %v; want %q", got, err, want.Bytes())
	}
	for dir := range microcode {
		tree.remove(dir, false)
	}
	if got, err := packMicrocode(tree); err != nil || got != nil {
		t.Errorf("no microcode: %q, %v", got, err)
	}
}
