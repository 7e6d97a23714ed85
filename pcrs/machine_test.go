package pcrs

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/pcrs/firmware"
)

func gunzip(t testing.TB, path string) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(readFile(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func vars(t testing.TB, path string) firmware.Vars {
	t.Helper()
	v, err := firmware.OpenVars(gunzip(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// packaged reads a file of a Debian package that the tests need.
func packaged(t testing.TB, path, pkg string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%s is missing: apt-get install %s", path, pkg)
	}
	return b
}

// machineOf is the machine that a recorded boot ran on.
func machineOf(t testing.TB, name string) Machine {
	t.Helper()
	switch name {
	case "ovmf-2025.02":
		return Machine{Vars: vars(t, "testdata/ovmf-2025.02.vars.gz")}
	case "ovmf-2025.02-secureboot":
		return Machine{Firmware: Firmware{SecureBoot: true}, Vars: vars(t, "testdata/ovmf-2025.02-snakeoil.vars.gz")}
	case "ovmf-2025.02-setupmode":
		return Machine{Firmware: Firmware{SecureBoot: true}, Vars: vars(t, "testdata/ovmf-2025.02.vars.gz")}
	case "ovmf-2022.11-e1000e":
		rom, err := firmware.OpenROM(packaged(t, "/usr/lib/ipxe/qemu/efi-e1000e.rom", "ipxe-qemu"))
		if err != nil {
			t.Fatal(err)
		}
		return Machine{Firmware: Firmware{SecureBoot: true}, Vars: vars(t, "testdata/ovmf-2022.11-booted.vars.gz"), ROMs: []firmware.ROM{rom}}
	}
	t.Fatalf("no recorded boot %s", name)
	return Machine{}
}

// TestFirmwareRegistersEqualTheTPM predicts what firmware alone measures.
func TestFirmwareRegistersEqualTheTPM(t *testing.T) {
	for _, name := range recorded {
		p := &predictor{boot: Boot{Machine: machineOf(t, name)}}
		for _, step := range []func() error{p.secureBoot, p.optionROMs, p.bootAttempt} {
			if err := step(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if p.state == secureBootOn {
			p.measureAuthority(0) // The image of that boot was signed with the only certificate.
		}
		if err := p.hash(); err != nil {
			t.Fatal(err)
		}
		for _, bank := range PredictedBanks() {
			got, err := Log{Events: p.events}.Replay(bank)
			if err != nil {
				t.Fatal(err)
			}
			want := recordedValues(t, name, bank)
			for _, r := range []Register{2, 3, 6, 7} {
				if !want[r].Equal(got[r]) {
					t.Errorf("%s: %v (%v): predicted %v, the TPM has %v", name, r, bank, got[r], want[r])
				}
			}
		}
	}
}

func TestSecureBootSwitch(t *testing.T) {
	m := machineOf(t, "ovmf-2025.02-secureboot")
	if !m.SecureBoot() {
		t.Error("keys are enrolled, Secure Boot should be on")
	}
	m.Vars = m.Vars.With(guidSecureBootEnable, "SecureBootEnable", []byte{0})
	if m.SecureBoot() {
		t.Error("SecureBootEnable is 0, Secure Boot should be off")
	}
}

func FuzzVarsEvents(f *testing.F) {
	f.Add(gunzip(f, "testdata/ovmf-2025.02-snakeoil.vars.gz"))
	f.Add(gunzip(f, "testdata/ovmf-2022.11-booted.vars.gz"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		v, err := firmware.OpenVars(b)
		if err != nil {
			return
		}
		p := &predictor{boot: Boot{Machine: Machine{Firmware: Firmware{SecureBoot: true}, Vars: v}}}
		if p.secureBoot() == nil {
			fmt.Fprint(io.Discard, describe(p.allowed))
		}
	})
}

func FuzzROMEvents(f *testing.F) {
	f.Add(packaged(f, "/usr/lib/ipxe/qemu/efi-virtio.rom", "ipxe-qemu"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		rom, err := firmware.OpenROM(b)
		if err != nil {
			return
		}
		events, err := romEvents(rom)
		if err == nil && len(events) != len(rom.Drivers) {
			panic("a driver has no event")
		}
		for _, e := range events {
			_ = e.hash(PredictedBanks())
		}
	})
}

func TestROMOfNoProgram(t *testing.T) {
	rom := firmware.ROM{Drivers: []firmware.Driver{{Image: []byte("no program")}}}
	if _, err := romEvents(rom); err == nil || !strings.Contains(err.Error(), "driver 1") {
		t.Errorf("a driver that is no PE image: %v", err)
	}
}

func TestOpenFirmware(t *testing.T) {
	f, err := OpenFirmware(packaged(t, "/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.drivers) != len(PredictedBanks()) || len(f.version) < 2 || len(f.applications) == 0 {
		t.Errorf("%+v", f)
	}
	if _, err := OpenFirmware(nil); err == nil {
		t.Error("opened an empty file")
	}
}
