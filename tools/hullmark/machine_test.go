package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// machineFixture is a machine file of the fixture's firmware, with more fields.
func (f measureFixture) machine(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "machine.json")
	write(t, file, fmt.Appendf(nil, `{"schema": "hullmark.machine/v1", "firmware": %q, "variables": %q, "cpus": 1, "stateDisk": "0"%s}`, f.firmware, f.vars, more))
	return file
}

// learned is data as a boot of that machine would have taught it.
func (f measureFixture) learned(t *testing.T, cpus int) []byte {
	t.Helper()
	firmware, err := os.ReadFile(f.firmware)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(firmware)
	text, err := pcrs.LearnedData{
		Schema: pcrs.LearnedSchema, Origin: "a test", Firmware: digest[:],
		Shape:       pcrs.Shape{CPUs: cpus, MemoryMiB: 3072, TPM: "crb", Disks: 1, BootSlot: 1},
		EarlyVolume: pcrs.DigestsOf([]byte("early"), pcrs.PredictedBanks()...), ACPI: []pcrs.Digests{pcrs.DigestsOf([]byte("tables"), pcrs.PredictedBanks()...)},
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestMeasureOnAMachine(t *testing.T) {
	f := newMeasureFixture(t)
	credential := filepath.Join(t.TempDir(), "a")
	write(t, credential, []byte("content"))
	machine := f.machine(t, fmt.Sprintf(`, "nodeConfig": %q, "smbios": ["io.systemd.stub.kernel-cmdline-extra=debug", "other=1"], "esp": {"loader/credentials/a.cred": %q}`, f.config, credential))
	parse := func() measurements.Document {
		t.Helper()
		out, err := hullmarkMeasure(f.image, "--machine", machine, "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		d, err := measurements.Parse([]byte(out))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := parse()
	if len(d.Registers) != 13 || d.Machine.Shape != nil || !strings.Contains(d.NotPredicted[0].Reason, "hullmark learn") {
		t.Errorf("without learned data: %d registers, shape %v, %v", len(d.Registers), d.Machine.Shape, d.NotPredicted)
	}
	write(t, filepath.Join(filepath.Dir(machine), "learned.json"), f.learned(t, 1))
	d = parse()
	if len(d.Registers) != 16 || len(d.NotPredicted) != 0 || d.Machine.Shape == nil || d.Machine.Shape.CPUs != 1 {
		t.Errorf("with learned data: %d registers, shape %v", len(d.Registers), d.Machine.Shape)
	}
	text := fmt.Sprint(d.Registers[9].Events, d.Registers[12].Events)
	for _, want := range []string{"SMBIOS string", "global credentials a.cred"} {
		if !strings.Contains(text, want) {
			t.Errorf("PCR 9 and 12 do not have %q: %s", want, text)
		}
	}
}

func TestMachineFileRefuses(t *testing.T) {
	f := newMeasureFixture(t)
	other := filepath.Join(t.TempDir(), "other.json")
	write(t, other, f.learned(t, 2))
	garbage := filepath.Join(t.TempDir(), "garbage.json")
	write(t, garbage, []byte("{}"))
	for name, c := range map[string]struct{ more, want string }{
		"unknown field":   {`, "cpu": 1`, "unknown field"},
		"another type":    {`, "memoryMiB": "1G"`, `field "memoryMiB"`},
		"no TPM":          {`, "tpm": "none"`, "measures nothing"},
		"odd TPM":         {`, "tpm": "spi"`, "TPM interface"},
		"odd disk":        {`, "stateDisk": "much"`, "stateDisk"},
		"no node config":  {`, "nodeConfig": "absent.json"`, "absent.json"},
		"no learned data": {`, "learned": "absent.json"`, "hullmark learn writes it"},
		"other machine":   {fmt.Sprintf(`, "learned": %q`, other), "learn this machine"},
		"no learned form": {fmt.Sprintf(`, "learned": %q`, garbage), "schema"},
		"no ESP file":     {`, "esp": {"loader/credentials/a.cred": "absent"}`, "absent"},
		"kernel image":    {fmt.Sprintf(`, "esp": {"EFI/BOOT/BOOTX64.EFI": %q}`, f.config), "is the kernel image"},
	} {
		if _, err := hullmarkMeasure(f.image, "--machine", f.machine(t, c.more)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	for name, c := range map[string]struct{ content, want string }{
		"array":      {"[]", "another type is wanted"},
		"two values": {`{"schema": "hullmark.machine/v1"} {}`, "data after the end"},
		"schema":     {`{"schema": "hullmark.machine/v2"}`, "hullmark.machine/v2"},
		"too long":   {strings.Repeat(" ", machine.MaxFile+1), "too long"},
	} {
		file := filepath.Join(t.TempDir(), "machine.json")
		write(t, file, []byte(c.content))
		for _, verb := range []string{"learn", "measure"} {
			args := []string{verb, "--machine", file}
			if verb == "measure" {
				args = append(args, f.image)
			}
			code, output := hullmarkCLI(t, args...)
			wantExit(t, code, exitFailed, output, c.want)
			if strings.Contains(strings.TrimSpace(output), "\n") {
				t.Errorf("%s: %s says more than one line: %s", name, verb, output)
			}
		}
	}
}

func TestMachineFileOrFlags(t *testing.T) {
	f := newMeasureFixture(t)
	machine := f.machine(t, "")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"measure", f.image, "--machine", machine, "--vars", f.vars}, exitUsage, "one of them"},
		{[]string{"vm", f.image, "--machine", machine, "--memory", "1024"}, exitUsage, "--memory and --machine"},
		{[]string{"vm", f.image, "--machine", f.machine(t, fmt.Sprintf(`, "esp": {"loader/credentials/a.cred": %q}`, f.config))}, exitFailed, "boots the disk as it is"},
	} {
		code, output := hullmarkCLI(t, c.args...)
		wantExit(t, code, c.code, output, c.want)
	}
}
