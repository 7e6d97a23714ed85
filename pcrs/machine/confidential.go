package machine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark/launch"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// The platforms of confidential machines.
const (
	SNP = "snp"
	TDX = "tdx"
)

// Confidential is what hardware that keeps the host out measures of a machine beside its TPM (snp), or in the place of one (tdx).
type Confidential struct {
	// Platform is SNP or TDX.
	Platform string `json:"platform"`
	// VMM is what starts the machine; launch.QEMU by default.
	VMM launch.VMM `json:"vmm,omitempty"`
	// CPU is the processor's model, as launch.ParseCPU reads it; on GCE the host's product.
	CPU string `json:"cpu,omitempty"`
	// Features are SEV_FEATURES; 1 by default.
	Features uint64 `json:"features,omitempty"`
	// OldKVM says that the host's Linux is older than 6.10.
	OldKVM bool `json:"kvmBefore610,omitempty"`
	// Order is the order of pages of a TDX host; launch.Interleaved by default.
	Order launch.PageOrder `json:"pageOrder,omitempty"`
	// Log is the event log of a TDX guest on such a machine, from which its tables are learned; without one, RTMR 0 is not predicted.
	Log string `json:"log,omitempty"`
}

func (c Confidential) check() error {
	switch {
	case c.Platform == SNP && (c.Order != "" || c.Log != ""):
		return errors.New("pageOrder and log belong to tdx")
	case c.Platform == TDX && (c.CPU != "" || c.Features != 0 || c.OldKVM || cmp.Or(c.VMM, launch.QEMU) != launch.QEMU):
		return errors.New("vmm, cpu, features and kvmBefore610 belong to snp")
	case c.Platform == SNP && cmp.Or(c.VMM, launch.QEMU) != launch.EC2 && c.CPU == "":
		return errors.New("cpu: what the hardware measures depends on the processor's model, so it has to be named")
	case c.Platform != SNP && c.Platform != TDX:
		return fmt.Errorf("platform %q: snp and tdx are known", c.Platform)
	}
	return nil
}

// hardware returns what a confidential machine's hardware adds to a prediction; nil for other machines.
func (f File) hardware(files Files, m pcrs.Machine, read Read) (func(pcrs.Prediction) (pcrs.Prediction, error), error) {
	c := f.Confidential
	if c == nil {
		return nil, nil
	}
	code, err := read(files.Code, firmware.MaxFile)
	if err != nil {
		return nil, err
	}
	if c.Platform == SNP {
		guest := launch.SNP{Firmware: code, VMM: cmp.Or(c.VMM, launch.QEMU), VCPUs: f.CPUs, Features: c.Features, ZeroFPU: c.OldKVM}
		switch {
		case guest.VMM == launch.GCE:
			guest.AddressBits, err = launch.GCEAddressBits(c.CPU)
		case guest.VMM == launch.QEMU:
			guest.CPU, err = launch.ParseCPU(c.CPU)
		}
		return guest.Predict, err
	}
	variables, err := read(files.Vars, firmware.MaxVars)
	if err != nil {
		return nil, err
	}
	guest := launch.TD{Firmware: slices.Concat(variables, code), Order: cmp.Or(c.Order, launch.Interleaved), MemoryMiB: f.MemoryMiB, Machine: m}
	if c.Log != "" {
		if guest.Platform, err = learnTD(c.Log, read); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Log, err)
		}
	}
	return guest.Predict, nil
}

func learnTD(file string, read Read) ([]pcrs.Event, error) {
	raw, err := read(file, pcrs.MaxLog)
	if err != nil {
		return nil, err
	}
	log, err := pcrs.ParseCCEL(raw, pcrs.SHA384)
	if err != nil {
		return nil, err
	}
	return launch.LearnTD(log)
}
