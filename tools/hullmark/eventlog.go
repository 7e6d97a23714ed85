package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/pcrs"
)

func newEventlogCommand() *cobra.Command {
	cmd := group("eventlog", "Read a measured boot's event log", newEventlogShowCommand(), newEventlogReplayCommand())
	cmd.Long = `Read a measured boot's event log: of TCG 1.2, crypto-agile, or of a TDX guest (CCEL).

A log explains register values and proves nothing by itself: whoever has the machine can write one. On Linux it lies in
/sys/kernel/security/tpm0/binary_bios_measurements, or in /sys/firmware/acpi/tables/data/CCEL.`
	return cmd
}

// eventlogOptions are what both verbs have in common.
type eventlogOptions struct {
	ccel   bool
	output string
}

func (o *eventlogOptions) register(cmd *cobra.Command) {
	cmd.Args = cobra.ExactArgs(1)
	cmd.Flags().BoolVar(&o.ccel, "ccel", false, "the log is of a TDX guest, whose registers are RTMR 0 to 3, or with --ccel=false of a TPM (default: by the log)")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
}

// read parses the file as the kind of log that ccel says.
func (o *eventlogOptions) read(file string) (pcrs.Log, error) {
	raw, err := o.load(file)
	if err != nil {
		return pcrs.Log{}, err
	}
	return o.parse(file, raw)
}

// readAny parses the file as the kind of log that the flag says, or that it is, and then says which.
func (o *eventlogOptions) readAny(cmd *cobra.Command, file string) (pcrs.Log, error) {
	raw, err := o.load(file)
	if err != nil {
		return pcrs.Log{}, err
	}
	if cmd.Flags().Changed("ccel") {
		return o.parse(file, raw)
	}
	format, err := pcrs.FormatOf(raw)
	if err != nil {
		return pcrs.Log{}, fmt.Errorf("%s: %w; next: say which (--ccel, or --ccel=false)", file, err)
	}
	if o.ccel = format == pcrs.FormatCCEL; o.ccel {
		fmt.Fprintln(cmd.ErrOrStderr(), "read as the log of a TDX guest: it extends indexes 1 to 4 alone, which are RTMR 0 to 3, in SHA-384 (--ccel=false reads it as a TPM's)")
	}
	return o.parse(file, raw)
}

// load reads the file, and not a byte more of it than a log may have.
func (o *eventlogOptions) load(file string) ([]byte, error) {
	if err := checkOutput("eventlog", o.output); err != nil {
		return nil, err
	}
	raw, err := readBounded(file, pcrs.MaxLog)
	if err != nil {
		return nil, fmt.Errorf("read event log: %w", err)
	}
	return raw, nil
}

func (o *eventlogOptions) parse(file string, raw []byte) (pcrs.Log, error) {
	parse := pcrs.ParseLog
	if o.ccel {
		parse = pcrs.ParseCCEL
	}
	log, err := parse(raw)
	if err != nil {
		return log, fmt.Errorf("%s: %w", file, err)
	}
	return log, nil
}

func newEventlogShowCommand() *cobra.Command {
	var o eventlogOptions
	cmd := &cobra.Command{
		Use:     "show FILE",
		Short:   "List the events of a log",
		Example: "  hullmark eventlog show /sys/kernel/security/tpm0/binary_bios_measurements",
		RunE: func(cmd *cobra.Command, args []string) error {
			log, err := o.readAny(cmd, args[0])
			if err != nil {
				return err
			}
			return o.show(cmd.OutOrStdout(), log)
		},
	}
	o.register(cmd)
	return cmd
}

// shownLog is the JSON that hullmark eventlog show writes.
type shownLog struct {
	Format   pcrs.LogFormat `json:"format"`
	Banks    []pcrs.Bank    `json:"banks"`
	Locality uint8          `json:"locality"`
	Padding  int            `json:"padding"`
	Events   []shownEvent   `json:"events"`
}

type shownEvent struct {
	// Register is null in an event that extends nothing and names none.
	Register *pcrs.Register `json:"register"`
	Type     string         `json:"type"`
	// Source is what the event claims to be of, What a sentence of it.
	Source   pcrs.Source  `json:"source"`
	What     string       `json:"what"`
	Unproven bool         `json:"unproven,omitempty"`
	Digests  pcrs.Digests `json:"digests"`
	Data     []byte       `json:"data"`
}

func (o *eventlogOptions) show(w io.Writer, log pcrs.Log) error {
	if o.output == "json" {
		shown := shownLog{Format: log.Format, Banks: log.Banks, Locality: log.Locality, Padding: log.Padding, Events: []shownEvent{}}
		for _, e := range log.Events {
			s := shownEvent{Type: e.Type.String(), Source: e.From(), What: e.What(), Unproven: e.Unproven, Digests: e.Digests, Data: e.Data}
			if e.Register != pcrs.NoRegister {
				s.Register = &e.Register
			}
			shown.Events = append(shown.Events, s)
		}
		return writeJSON(w, shown)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range log.Events {
		fmt.Fprintf(table, "%v\t%v\t%s\t%s\n", e.Register, e.Type, shortDigest(e, log.Banks), oneLine(e.What()))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d events, %s, banks %v, startup locality %d, %d bytes of padding\n", len(log.Events), log.Format, log.Banks, log.Locality, log.Padding)
	return err
}

// shortDigest is the beginning of an event's digest in the strongest bank of common use, or of the one that there is.
func shortDigest(e pcrs.Event, banks []pcrs.Bank) string {
	if e.Type == pcrs.EvNoAction {
		return "-"
	}
	bank := banks[0]
	if slices.Contains(banks, pcrs.SHA256) {
		bank = pcrs.SHA256
	}
	return fmt.Sprintf("%.16s…", e.Digests[bank].String())
}

func newEventlogReplayCommand() *cobra.Command {
	var o eventlogOptions
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Compute the register values that a log leads to",
		Long: `Compute the register values that a log leads to, for every bank that it has.

Only registers that the log extends are listed. What an operating system extends after the firmware's log ended, such as PCR 10 by IMA, is in none
of these values.`,
		Example: "  hullmark eventlog replay /sys/kernel/security/tpm0/binary_bios_measurements -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			log, err := o.readAny(cmd, args[0])
			if err != nil {
				return err
			}
			return o.replay(cmd.OutOrStdout(), log)
		},
	}
	o.register(cmd)
	return cmd
}

func (o *eventlogOptions) replay(w io.Writer, log pcrs.Log) error {
	values := map[pcrs.Bank]pcrs.Values{}
	for _, bank := range log.Banks {
		all, err := log.Replay(bank)
		if err != nil {
			return err
		}
		values[bank] = pcrs.Values{}
		for r, v := range all {
			// Zero says that a boot left a register alone; but into PCR 10 Linux measures without a word in this log.
			if len(log.Of(r)) > 0 || log.Format != pcrs.FormatCCEL && r < 16 && r != 10 {
				values[bank][r] = v
			}
		}
	}
	if o.output == "json" {
		return writeJSON(w, values)
	}
	for _, bank := range log.Banks {
		for _, r := range slices.Sorted(maps.Keys(values[bank])) {
			if _, err := fmt.Fprintf(w, "%-6s  %-7s %v\n", bank, r.String(), values[bank][r]); err != nil {
				return err
			}
		}
	}
	return nil
}
