package main

import (
	"encoding/hex"
	"testing"

	"github.com/hullmark/hullmark/internal/romtest"
	"github.com/hullmark/hullmark/launch"
	"github.com/hullmark/hullmark/pcrs"
)

// TestTwoProgramsAgree compares what plays the hardware with what predicts it: two programs that share no code.
func TestTwoProgramsAgree(t *testing.T) {
	image := romtest.Good().Image()
	for _, processors := range []int{1, 2, 3, 64} {
		got, err := launchDigest(image, processors)
		if err != nil {
			t.Fatal(err)
		}
		e, err := launch.SNP{Firmware: image, VMM: launch.QEMU, VCPUs: processors, CPU: signature}.Event()
		if err != nil {
			t.Fatal(err)
		}
		if want := e.Digests[pcrs.SHA384].String(); got != want {
			t.Errorf("%d processors: %s, predicted %s", processors, got, want)
		}
	}
	for name, broken := range map[string][]byte{"nothing": nil, "no table": make([]byte, 8192), "half a page": image[:len(image)-100]} {
		if _, err := launchDigest(broken, 1); err == nil {
			t.Errorf("%s: measured", name)
		}
	}
}

func launchDigest(image []byte, processors int) (string, error) {
	d, err := launchOf(image, processors)
	return hex.EncodeToString(d[:]), err
}
