package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// learnTime bounds the start of the firmware, and learnEvery is how often its memory is looked at meanwhile.
const (
	learnTime  = 3 * time.Minute
	learnEvery = time.Second
)

// blankDisk is the size in bytes of the disk that stands for the image while a machine is learned.
const blankDisk = 1 << 20

func newLearnCommand() *cobra.Command {
	var file, output, log string
	cmd := &cobra.Command{
		Use:   "learn (--machine FILE | --log FILE)",
		Short: "Start a machine's firmware once, and store what cannot be derived of it",
		Long: `Start a machine's firmware once, and store what cannot be derived of it.

Two inputs of PCR 0 and 1 cannot be computed from files: the volume of early code, which OVMF changes in memory before it measures it, and the ACPI tables
that QEMU makes for the machine's processors, memory and devices. No operating system and no image is needed for them: the firmware starts with a blank disk
in place of the image, its event log is read from the machine's memory, and the machine is switched off. Everything else in that log is held against what is
derived, so that learning fails where predicting would.

The result is a small file that belongs to firmware and shape, and to no image. With it, hullmark measure --machine predicts PCR 0 to 15 of any image.

Where firmware cannot be had, as on clouds, --log shows what the log of such a machine (/sys/kernel/security/tpm0/binary_bios_measurements) says of it, and what stays open;
hullmark measure --log makes documents of it. A log is the machine's own claim: it proves nothing of what the firmware is.`,
		Example: "  hullmark learn --machine machine.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (file == "") == (log == "") {
				return withCode(exitUsage, errors.New("learn: name a machine (--machine), or a log (--log)"))
			}
			if log != "" {
				return showLearned(cmd.OutOrStdout(), log)
			}
			if err := notOver(output, file); err != nil {
				return fmt.Errorf("learn: %w", err)
			}
			m, err := inspect.ReadMachine(file)
			if err != nil {
				return err
			}
			if output == "" {
				output = m.Learned
			}
			learned, err := learn(cmd.Context(), m, cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("learn %s: %w", file, err)
			}
			text, err := learned.Encode()
			if err != nil {
				return err
			}
			if err := writeWhole(output, text, 0o644); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), output)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "machine", "", "machine `FILE`")
	f.StringVar(&log, "log", "", "event log `FILE` of a machine whose firmware cannot be had")
	f.StringVar(&output, "out", "", "`FILE` to write (default: what the machine file names)")
	return cmd
}

// learn starts the machine in a folder of its own, so that nothing of the real machine is touched.
func learn(ctx context.Context, m machine.File, notes io.Writer) (learned pcrs.LearnedData, err error) {
	predicted, err := inspect.OpenMachine(m.Hardware)
	if err != nil {
		return learned, err
	}
	dir, err := os.MkdirTemp("", "hullmark-learn-")
	if err != nil {
		return learned, err
	}
	defer os.RemoveAll(dir)
	c := vm.Config{Dir: filepath.Join(dir, "machine"), Image: filepath.Join(dir, "blank.raw"), Hardware: m.Hardware}
	if err := os.WriteFile(c.Image, make([]byte, blankDisk), 0o600); err != nil {
		return learned, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, learnTime, fmt.Errorf("the firmware did not get as far as booting within %v", learnTime))
	defer cancel()
	running, err := vm.Start(ctx, c)
	if err != nil {
		return learned, err
	}
	defer running.Kill()
	begin := time.Now()
	fmt.Fprintf(notes, "the firmware of %v starts…\n", predicted.Shape)
	log, err := firmwareLog(ctx, running)
	if err != nil {
		return learned, err
	}
	fmt.Fprintf(notes, "%d events read from its memory after %.1f s\n", len(log.Events), time.Since(begin).Seconds())
	version, err := running.Version()
	if err != nil {
		return learned, err
	}
	return pcrs.Learn("firmware alone with a blank disk, QEMU "+version, predicted, log)
}

// firmwareLog waits until the firmware has measured all that it measures before it boots, and returns its log.
func firmwareLog(ctx context.Context, m *vm.Machine) (pcrs.Log, error) {
	for {
		select {
		case <-ctx.Done():
			return pcrs.Log{}, context.Cause(ctx)
		case <-m.Done():
			return pcrs.Log{}, errors.Join(errors.New("the machine ended while its firmware started"), m.Wait())
		case <-time.After(learnEvery):
		}
		candidates, err := m.FirmwareLogs()
		if err != nil {
			return pcrs.Log{}, err
		}
		for _, raw := range candidates {
			if ctx.Err() != nil {
				break
			}
			// Memory holds copies and remains; only a whole log with every separator counts.
			if log, err := pcrs.ParseLog(raw); err == nil && separated(log) {
				return log, nil
			}
		}
	}
}

// separated reports whether PCR 0 to 7 have their separators.
func separated(log pcrs.Log) bool {
	for r := range pcrs.Register(8) {
		events := log.Of(r)
		found := false
		for _, e := range events {
			found = found || e.Type == pcrs.EvSeparator
		}
		if !found {
			return false
		}
	}
	return true
}

// readTPMLog reads the event log of a TPM.
func readTPMLog(file string) (*pcrs.MachineLog, error) {
	raw, err := readBounded(file, pcrs.MaxLog)
	if err != nil {
		return nil, err
	}
	log, err := pcrs.ParseLog(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	digest := sha256.Sum256(raw)
	return &pcrs.MachineLog{Log: log, SHA256: digest[:]}, nil
}

// showLearned says what a log tells of a machine's firmware.
func showLearned(out io.Writer, file string) error {
	log, err := readTPMLog(file)
	if err != nil {
		return err
	}
	events, open, err := pcrs.FirmwareEvents(log.Log)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, e := range events {
		fmt.Fprintf(out, "%v  %s\n", e.Register, oneLine(e.What()))
	}
	for _, u := range open {
		fmt.Fprintf(out, "%v  open: %s\n", u.Register, oneLine(u.Reason))
	}
	_, err = fmt.Fprintln(out, `
This is what the machine claims. A document that is made of it (hullmark measure --log) is met by machines that measure the same; that their firmware is a good
one, nobody has shown. Take the log on a machine that you trust to be of the kind, and compare two of them. Against a host that lies, only evidence of the hardware helps,
which names the firmware or the paravisor (docs/launch.md).`)
	return err
}
