package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/launch"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// maxKernel bounds the files that a host hands over beside the firmware, in bytes.
const maxKernel = 1 << 30

// launchOptions are the flags of `hullmark launch`.
type launchOptions struct {
	firmware, platform, vmm, cpu  string
	svsm, kernel, initrd, cmdline string
	measured                      string
	variables, vcpus, memory      int
	features                      uint64
	zeroFPU                       bool
	typed                         func(flag string) bool
}

func newLaunchCommand() *cobra.Command {
	var o launchOptions
	var output string
	cmd := &cobra.Command{
		Use:   "launch --firmware FILE --platform snp|tdx",
		Short: "Compute what confidential hardware measures of a firmware before it runs",
		Long: `Compute what confidential hardware measures of a firmware before it runs.

For AMD SEV-SNP that is the launch digest, which depends on the firmware, on how many processors of which model there are, on what starts them, and on a
kernel that the host hands over. For Intel TDX it is MRTD, of which there are two: hosts differ in the order of pages. With --memory, the list of memory that
QEMU hands over, an event of RTMR 0, is computed as well. Nothing is run.

The firmware of SEV-SNP on QEMU with separate variables is the code alone (OVMF_CODE_4M.fd), that of TDX is the whole image (OVMF.fd).`,
		Example: "  hullmark launch --firmware OVMF.fd --platform snp --vmm qemu --vcpus 4 --cpu EPYC-Milan\n  hullmark launch --firmware OVMF.fd --platform tdx --memory 4096 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("launch", output); err != nil {
				return err
			}
			o.typed = cmd.Flags().Changed
			values, err := o.compute()
			if err != nil {
				return fmt.Errorf("launch: %w", err)
			}
			return writeLaunch(cmd.OutOrStdout(), values, output)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.firmware, "firmware", "", "firmware `FILE`")
	f.StringVar(&o.platform, "platform", "", "snp or tdx")
	f.StringVar(&o.vmm, "vmm", "qemu", "what starts the machine: qemu, ec2 or gce")
	f.IntVar(&o.vcpus, "vcpus", 1, "virtual processors (snp)")
	f.StringVar(&o.cpu, "cpu", "", "`MODEL` of the processors: QEMU's name (EPYC-v4) or a signature (0x800f12); on gce, Milan or Genoa (snp)")
	f.Uint64Var(&o.features, "features", 1, "SEV_FEATURES at launch (snp)")
	f.StringVar(&o.kernel, "kernel", "", "kernel `FILE` that QEMU starts by itself (snp)")
	f.StringVar(&o.initrd, "initrd", "", "initrd `FILE` beside it (snp)")
	f.StringVar(&o.cmdline, "cmdline", "", "kernel command line beside it (snp)")
	f.IntVar(&o.memory, "memory", 0, "memory in `MIB`, for the list of it (tdx)")
	f.StringVar(&o.svsm, "svsm", "", "SVSM `FILE` that runs below the firmware (snp)")
	f.IntVar(&o.variables, "variables-size", 0, "`BYTES` of variables that are mapped between SVSM and firmware (snp)")
	f.BoolVar(&o.zeroFPU, "kvm-before-6.10", false, "the host's Linux is older than 6.10, and leaves the floating point unit's first state out (snp)")
	f.StringVar(&o.measured, "measured", "", "launch `DIGEST` that a report shows: say which one input is another (snp)")
	f.StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	require(cmd, "firmware", "platform")
	return cmd
}

// launchValue is what is printed of one measurement.
type launchValue struct {
	Register pcrs.Register `json:"register"`
	// Of tells several values of a register apart.
	Of     string        `json:"of"`
	Value  pcrs.Digest   `json:"value"`
	Origin pcrs.Origin   `json:"origin"`
	Parts  []pcrs.Source `json:"parts,omitempty"`
	// Measured is the digest that was compared, and Difference the input that is another.
	Measured   pcrs.Digest `json:"measured,omitempty"`
	Difference string      `json:"difference,omitempty"`
}

func (o launchOptions) compute() ([]launchValue, error) {
	image, err := readBounded(o.firmware, firmware.MaxFile)
	if err != nil {
		return nil, err
	}
	only := map[string][]string{
		"snp": {"memory"},
		"tdx": {"vcpus", "cpu", "features", "kernel", "initrd", "cmdline", "svsm", "variables-size", "kvm-before-6.10", "measured"},
	}
	flags, ok := only[o.platform]
	if !ok {
		return nil, withCode(exitUsage, fmt.Errorf("--platform %q: snp or tdx", o.platform))
	}
	for _, flag := range flags {
		if o.typed(flag) {
			return nil, withCode(exitUsage, fmt.Errorf("--%s: %s measures nothing of it", flag, o.platform))
		}
	}
	if o.platform == "snp" {
		return o.snp(image)
	}
	return o.tdx(image)
}

func (o launchOptions) snp(image []byte) ([]launchValue, error) {
	s := launch.SNP{Firmware: image, VariablesSize: o.variables, VMM: launch.VMM(o.vmm), VCPUs: o.vcpus, Features: o.features, ZeroFPU: o.zeroFPU}
	var err error
	switch {
	case s.VMM == launch.GCE:
		s.AddressBits, err = launch.GCEAddressBits(o.cpu)
	case s.VMM == launch.QEMU && o.cpu == "":
		err = errors.New("--cpu: QEMU measures the model of the processors, so it has to be named")
	case o.cpu != "":
		s.CPU, err = launch.ParseCPU(o.cpu)
	}
	if err != nil {
		return nil, withCode(exitUsage, err)
	}
	if o.svsm != "" {
		if s.SVSM, err = readBounded(o.svsm, firmware.MaxFile); err != nil {
			return nil, err
		}
	}
	if s.Kernel, err = o.handedOver(); err != nil {
		return nil, err
	}
	e, err := s.Event()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.firmware, err)
	}
	value := valueOf(e)
	if o.measured == "" {
		return []launchValue{value}, nil
	}
	var digest pcrs.Digest
	if err := digest.UnmarshalText([]byte(o.measured)); err != nil || len(digest) != pcrs.SHA384.Size() {
		return nil, withCode(exitUsage, fmt.Errorf("--measured: want 96 hexadecimal digits"))
	}
	value.Measured = digest
	if value.Difference, err = s.Find(digest); err == nil && value.Difference == "" {
		value.Difference = "more than one input, or the firmware"
	}
	return []launchValue{value}, err
}

// handedOver reads the kernel and what is beside it; nil without one.
func (o launchOptions) handedOver() (k *launch.Kernel, err error) {
	if o.kernel == "" {
		if o.initrd != "" || o.cmdline != "" {
			return nil, withCode(exitUsage, errors.New("--initrd and --cmdline are measured beside a --kernel alone"))
		}
		return nil, nil
	}
	k = &launch.Kernel{CommandLine: o.cmdline}
	if k.Image, err = readBounded(o.kernel, maxKernel); err != nil {
		return nil, err
	}
	if o.initrd != "" {
		k.Initrd, err = readBounded(o.initrd, maxKernel)
	}
	return k, err
}

func (o launchOptions) tdx(image []byte) (values []launchValue, err error) {
	for _, order := range []launch.PageOrder{launch.Interleaved, launch.AddedFirst} {
		e, err := launch.MRTD(image, order)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.firmware, err)
		}
		values = append(values, valueOf(e))
	}
	if o.memory == 0 {
		return values, nil
	}
	events, err := launch.TDEvents(image, o.memory)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.firmware, err)
	}
	for _, e := range events {
		values = append(values, valueOf(e))
	}
	return values, nil
}

func valueOf(e pcrs.Event) launchValue {
	return launchValue{Register: e.Register, Of: e.Source.Name, Value: e.Digests[pcrs.SHA384], Origin: e.Origin, Parts: e.Source.Parts}
}

func writeLaunch(out io.Writer, values []launchValue, output string) error {
	if output == "json" {
		return writeJSON(out, values)
	}
	for _, v := range values {
		name := v.Register.String()
		if v.Register.Extended() {
			name += ", an event"
		}
		fmt.Fprintf(out, "%s  %v\n  %s (%s)\n", name, v.Value, v.Of, v.Origin)
		for _, part := range v.Parts {
			size := ""
			if part.Bytes > 0 {
				size = fmt.Sprintf(", %d bytes", part.Bytes)
			}
			fmt.Fprintf(out, "    %s%s\n", part.Name, size)
		}
		if v.Difference != "" {
			fmt.Fprintf(out, "  measured %v\n  what is another: %s\n", v.Measured, v.Difference)
		}
	}
	return nil
}
