//go:build vectors

package launch_test

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/vectors"
	"github.com/hullmark/hullmark/launch"
	"github.com/hullmark/hullmark/pcrs"
)

// TestRecordedLaunches computes what another program computes for firmware of real builds.
func TestRecordedLaunches(t *testing.T) {
	var file struct {
		Cases []struct {
			Firmware, VMM, CPU, Digest, Error string
			VCPUs                             int
			Features                          uint64
			Kernel, Initrd, Cmdline           *string
		}
	}
	if err := json.Unmarshal(vectors.File(t, "launch/launch.json"), &file); err != nil || len(file.Cases) == 0 {
		t.Fatal(err)
	}
	for _, c := range file.Cases {
		guest := launch.SNP{Firmware: vectors.File(t, "launch/"+c.Firmware), VMM: launch.VMM(c.VMM), VCPUs: c.VCPUs, Features: c.Features}
		if c.CPU != "" {
			signature, err := launch.ParseCPU(c.CPU)
			if err != nil {
				t.Fatal(err)
			}
			guest.CPU = signature
		}
		if c.Kernel != nil {
			guest.Kernel = &launch.Kernel{Image: []byte(*c.Kernel), Initrd: []byte(*c.Initrd), CommandLine: *c.Cmdline}
		}
		event, err := guest.Event()
		switch {
		case c.Error != "" && (err == nil || !strings.Contains(err.Error(), "no page for kernel hashes")):
			t.Errorf("%+v: %v, want %s", c, err, c.Error)
		case c.Error == "" && (err != nil || hex.EncodeToString(event.Digests[pcrs.SHA384]) != c.Digest):
			t.Errorf("%+v: %v, %v", c, event.Digests, err)
		default:
			t.Logf("%s on %s, %d processors, features %d: as recorded", c.Firmware, c.VMM, c.VCPUs, c.Features)
		}
	}
}
