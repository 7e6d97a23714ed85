package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// vmOptions are the flags of `hullmark vm`, as they were typed.
type vmOptions struct {
	config     vm.Config
	machine    string
	tpm, accel string
	stateDisk  string
	forwards   []string
	nodeConfig string
	grace      time.Duration
}

func newVMCommand() *cobra.Command {
	var o vmOptions
	cmd := &cobra.Command{
		Use:   "vm IMAGE",
		Short: "Boot an image in a virtual machine with a TPM of its own",
		Long: `Boot an image in a virtual machine with a TPM of its own.

The console goes to standard output and to a log in the machine's folder. The folder also keeps the machine's disk, which is installed
from the image at the first start and when another image is named, the TPM, the certificate of its endorsement key, the CA that signed
it, the firmware's variables and the state disk: starting again with the same folder is the same machine. The image is never written. Interrupt once to press the power button, twice to cut the power.`,
		Example: "  hullmark vm out/node.raw --forward 7443:7443 --config node.json --dir node1",
		Args:    exactArg("vm", "one image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.describe(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			config, err := o.resolve(args[0])
			var coded codedError
			if err != nil && !errors.As(err, &coded) {
				return withCode(exitUsage, err)
			}
			if err != nil {
				return err
			}
			config.Output = cmd.OutOrStdout()
			return runVM(cmd.Context(), config, o.grace, cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	cmd.AddCommand(newVMNetworkCommand())
	return cmd
}

func (o *vmOptions) addFlags(cmd *cobra.Command) {
	flags, c := cmd.Flags(), &o.config
	flags.StringVar(&c.Dir, "dir", "", "folder of the machine's state (default: IMAGE with the ending .vm)")
	flags.StringVar(&o.machine, "machine", "", "machine `FILE`, in place of "+strings.Join(describing, ", "))
	flags.StringVar(&o.stateDisk, "state-disk", "", "size of the state disk, made sparse at the first start, such as 10G; 0 for none (default: the existing disk's, else 10G)")
	flags.IntVar(&c.MemoryMiB, "memory", machine.DefaultMemoryMiB, "memory in MiB")
	flags.IntVar(&c.CPUs, "cpus", machine.DefaultCPUs, "virtual CPUs")
	flags.StringArrayVar(&o.forwards, "forward", nil, "HOST:GUEST, a TCP port of the guest to reach on 127.0.0.1; HOST 0 takes a free one; repeatable")
	flags.StringArrayVar(&c.Networks, "network", nil, "`FOLDER` of a running network (hullmark vm network) to be in, which then has the forwards; repeatable, a card for each (default: alone)")
	flags.StringVar(&o.nodeConfig, "config", "", "file with the node config, given to the guest by fw_cfg")
	flags.StringVar(&c.SecureProcessor, "secure-processor", "", "`SOCKET` of what plays the hardware of a confidential machine, in tests")
	flags.StringVar(&c.Firmware.Code, "firmware", "", "OVMF code file (default: the tools tree's or the host's)")
	flags.StringVar(&c.Firmware.Vars, "vars", "", "OVMF variables file to start from (default: without keys)")
	flags.StringVar(&o.tpm, "tpm", string(machine.CRB), "TPM interface: crb, tis or none")
	flags.BoolVar(&c.SecureBoot, "secure-boot", false, "firmware with Secure Boot; --vars decides whose keys are enrolled")
	flags.BoolVar(&c.NICROM, "nic-rom", false, "keep the network card's boot ROM, which is measured into PCR 2")
	flags.BoolVar(&c.ExitOnReboot, "no-reboot", false, "end where the guest reboots")
	flags.StringVar(&c.Tools, "tools", "", "tools tree to run QEMU and swtpm from (default: the host's)")
	flags.StringVar(&o.accel, "accel", string(vm.AccelAuto), "auto, kvm or tcg; auto tries whether KVM really works")
	flags.DurationVar(&o.grace, "grace", 30*time.Second, "how long a stopped guest may take to switch itself off")
}

// describing are the flags that a machine file stands for.
var describing = []string{"state-disk", "memory", "cpus", "config", "firmware", "vars", "tpm", "secure-boot", "nic-rom", "tools"}

// describe takes what a machine file says, if one was named.
func (o *vmOptions) describe(typed func(flag string) bool) error {
	if o.machine == "" {
		return nil
	}
	for _, name := range describing {
		if typed(name) {
			return withCode(exitUsage, fmt.Errorf("--%s and --machine both say it; name one", name))
		}
	}
	m, err := inspect.ReadMachine(o.machine)
	if err != nil {
		return err
	}
	if len(m.ESP) > 0 {
		return fmt.Errorf("%s: esp: a machine boots the disk as it is; put the files on the ESP of a copy of the image, and leave them out here", o.machine)
	}
	o.config.Hardware, o.nodeConfig = m.Hardware, m.NodeConfig
	o.tpm = string(m.TPM)
	o.stateDisk = strconv.FormatInt(m.StateDisk, 10)
	return nil
}

// resolve turns what was typed into a configuration.
func (o *vmOptions) resolve(image string) (vm.Config, error) {
	c := o.config
	c.Image, c.TPM, c.Accel = image, machine.TPM(o.tpm), vm.Accel(o.accel)
	c.Bus = cmp.Or(c.Bus, machine.VirtIO)
	if c.Cards == 0 {
		c.Cards = max(1, len(c.Networks))
	}
	if c.Dir == "" {
		c.Dir = strings.TrimSuffix(image, filepath.Ext(image)) + ".vm"
	}
	var err error
	if c.Forwards, err = parseForwards(o.forwards); err != nil {
		return c, err
	}
	if o.nodeConfig != "" {
		content, err := os.ReadFile(o.nodeConfig)
		if err != nil {
			return c, withCode(exitFailed, fmt.Errorf("node config: %w", err))
		}
		if _, err := hullmark.ParseNodeConfig(content); err != nil {
			return c, fmt.Errorf("%s: %w", o.nodeConfig, err)
		}
		c.NodeConfig = content
	}
	if c.StateDisk, err = stateDiskSize(o.stateDisk, c.Dir); err != nil {
		return c, err
	}
	return c, c.Check()
}

func parseForwards(texts []string) ([]vm.Forward, error) {
	var forwards []vm.Forward
	for _, text := range texts {
		f, err := vm.ParseForward(text)
		if err != nil {
			return nil, err
		}
		forwards = append(forwards, f)
	}
	return forwards, nil
}

// stateDiskSize is the size that was asked for, else that of the disk that is there, else the default.
func stateDiskSize(text, dir string) (int64, error) {
	if text != "" {
		return machine.ParseSize(text)
	}
	size, err := vm.StateDiskSize(dir)
	if err != nil || size > 0 {
		return size, err
	}
	return machine.DefaultStateDisk, nil
}

// runVM runs a machine to its end. The first interrupt stops it, the second cuts its power.
func runVM(ctx context.Context, config vm.Config, grace time.Duration, notes io.Writer) error {
	// The machine's own context must outlive the interrupt, which otherwise would cut the power at once.
	life, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	interruptible := context.AfterFunc(ctx, cut)
	m, err := vm.Start(life, config)
	if err != nil {
		return err
	}
	if !interruptible() {
		return m.Wait()
	}
	describeVM(m, notes)
	select {
	case <-m.Done():
		return m.Wait()
	case <-ctx.Done():
	}
	stopVM(m, grace, notes)
	return m.Wait()
}

func stopVM(m *vm.Machine, grace time.Duration, notes io.Writer) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	go func() {
		select {
		case <-again:
			m.Kill()
		case <-m.Done():
		}
	}()
	fmt.Fprintf(notes, "\npower button pressed; the guest has %v (interrupt again to cut the power)\n", grace)
	if !m.Stop(grace) {
		fmt.Fprintln(notes, "the guest did not switch itself off")
	}
}

// describeVM says once what runs and where its things are.
func describeVM(m *vm.Machine, notes io.Writer) {
	a := m.Acceleration()
	fmt.Fprintf(notes, "execution  %s: %s\n", a.Accel, a.Reason)
	s := m.Files()
	fmt.Fprintf(notes, "firmware   %s\nvariables  %s\n", s.Firmware, s.Vars)
	for _, rom := range s.OptionROMs {
		fmt.Fprintf(notes, "option rom %s\n", rom)
	}
	for i, mac := range m.CardAddresses() {
		fmt.Fprintf(notes, "card %d     %s\n", i, mac)
	}
	for _, f := range m.Forwards() {
		fmt.Fprintf(notes, "forward    127.0.0.1:%d to guest port %d\n", f.Host, f.Guest)
	}
	if len(m.EK().Public) > 0 {
		fmt.Fprintf(notes, "ek         %s\nek ca      %s\n", hullmark.EKIDOf(m.EK().Public), filepath.Join(m.Dir(), vm.CAFile))
	}
	fmt.Fprintf(notes, "console    %s\n\n", m.Console())
}
