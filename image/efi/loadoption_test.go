package efi

import (
	"encoding/hex"
	"testing"
)

// The entry that OVMF makes of its setup program, byte for byte as its variable Boot0000 holds it.
func TestLoadOption(t *testing.T) {
	volume, file := MustGUID("7cb8bdc9-f8eb-4f34-aaea-3ee4af6516a1"), MustGUID("462caa21-7614-4503-836e-8ab6f4662331")
	const want = "090100002c0055006900410070007000000004071400c9bdb87cebf8344faaea3ee4af6516a10406140021aa2c4614760345836e8ab6f46623317fff0400"
	if got := hex.EncodeToString(LoadOption(OptionActive|OptionHidden|OptionApplication, "UiApp", VolumePath(volume, file), nil)); got != want {
		t.Errorf("the setup program's entry is\n%s, want\n%s", got, want)
	}
	if got := hex.EncodeToString(PCIPath(3)); got != "02010c00d041030a0000000001010600"+"0003"+"7fff0400" {
		t.Errorf("the path of device 3 is %s", got)
	}
	const device = "02010c00d041030a0000000001010600"
	for want, path := range map[string][]byte{
		device + "0003" + "031710000100000000000000" + "00000000" + "7fff0400": NVMePath(3),
		device + "021f" + "03120a000000ffff0000" + "7fff0400":                  SATAPath(31, 2),
		device + "0003" + "0302080000000000" + "7fff0400":                      SCSIPath(3),
	} {
		if got := hex.EncodeToString(path); got != want {
			t.Errorf("a disk's path is %s, want %s", got, want)
		}
	}
}
