package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// explainOptions are the flags of `hullmark explain`.
type explainOptions struct {
	log, list, bank, output, html string
	quote                         quoteOptions
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain DOCUMENT",
		Short: "Say which event and which input differ from a measurement document",
		Long: `Say which event and which input differ from a measurement document.

It takes the registers of a machine (--pcrs, as tpm2_pcrread prints them), its event log (--log), or both. With both, the log is believed for a register
only if it replays to that register's value, and names the first event that departs. With a log alone its own registers are taken, which proves nothing.
Without a log, a single change that would give the value is named, if there is one.

The registers are taken as given unless a quote proves them (--quote, --signature and --ak, as tpm2_quote and tpm2_createak write them). --html also writes
the comparison as one page for a browser.

Exit codes: 0 every register that the document predicts is equal, 3 one differs or is not covered by the quote, 1 failed, 2 usage.`,
		Example: "  tpm2_pcrread sha256 > registers\n  hullmark explain node.json --pcrs registers --log /sys/kernel/security/tpm0/binary_bios_measurements",
		Args:    exactArg("explain", "the measurement document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.log, "log", "", "the boot's event log `FILE`")
	f.StringVar(&o.list, "pcrs", "", "`FILE` with the machine's registers, as tpm2_pcrread or hullmark eventlog replay prints them")
	f.StringVar(&o.bank, "bank", "sha256", "`BANK` to compare: sha256, sha384 or sha512")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	f.StringVar(&o.html, "html", "", "also write the comparison to `FILE`, as one HTML page")
	o.quote.register(cmd)
	return cmd
}

// explained is the JSON that hullmark explain writes.
type explained struct {
	Equal bool      `json:"equal"`
	Bank  pcrs.Bank `json:"bank"`
	// Quote is absent where the registers are taken as given.
	Quote     *explainedQuote     `json:"quote,omitempty"`
	Registers []explainedRegister `json:"registers"`
}

// explainedRegister is one register; Result is equal, differs, not covered, or what follows says of PCR 10.
// Proven says that a quote covers the measured value.
type explainedRegister struct {
	Register      pcrs.Register `json:"register"`
	Result        string        `json:"result"`
	Proven        bool          `json:"proven"`
	Expected      pcrs.Digest   `json:"expected,omitempty"`
	Measured      pcrs.Digest   `json:"measured,omitempty"`
	ExpectedEvent string        `json:"expectedEvent,omitempty"`
	MeasuredEvent string        `json:"measuredEvent,omitempty"`
	Cause         string        `json:"cause,omitempty"`
	Note          string        `json:"note,omitempty"`
}

// Results beside those of init's report.
const (
	notCovered = "not covered"
	follows    = "follows from PCR 0 to 9"
)

// check reads the flags that say what is compared.
func (o *explainOptions) check() (pcrs.Bank, error) {
	bank, err := pcrs.ParseBank(o.bank)
	if err != nil || !slices.Contains(pcrs.PredictedBanks(), bank) {
		return 0, withCode(exitUsage, fmt.Errorf("--bank %q: want sha256, sha384 or sha512", o.bank))
	}
	if err := checkOutput("explain", o.output); err != nil {
		return 0, err
	}
	if o.log == "" && o.list == "" {
		return 0, withCode(exitUsage, errors.New("explain: name the machine's registers (--pcrs), its event log (--log), or both"))
	}
	return bank, o.quote.check(o.list)
}

func (o *explainOptions) run(w io.Writer, file string) error {
	bank, err := o.check()
	if err != nil {
		return err
	}
	if err := notOver(o.html, file, o.log); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	document, err := readDocument(file)
	if err != nil {
		return err
	}
	boot, err := o.read(bank)
	if err != nil {
		return err
	}
	found, err := pcrs.Explain(document.Prediction(), bank, boot.measured, boot.log)
	if err != nil {
		return err
	}
	e := compareRegisters(document, bank, boot, found)
	if err := o.writePage(document, e, boot.log); err != nil {
		return err
	}
	if err := o.write(w, e); err != nil {
		return err
	}
	if len(found) > 0 {
		return withCode(exitMismatch, fmt.Errorf("%d of %d predicted registers differ from %s", len(found), len(document.Registers), file))
	}
	if missing := e.unproven(); len(missing) > 0 {
		return withCode(exitMismatch, fmt.Errorf("%s does not cover %v, which %s predicts; have the TPM quote it, too", o.quote.message, missing[0], file))
	}
	return nil
}

// writePage writes the page, if one is wanted.
func (o *explainOptions) writePage(document measurements.Document, e explained, log *pcrs.Log) error {
	if o.html == "" {
		return nil
	}
	content, err := explainHTML(document, e, log)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	if err := writeWhole(o.html, content, 0o644); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	return nil
}

// measuredBoot is what a machine shows of its boot; log and quote may be nil.
type measuredBoot struct {
	measured pcrs.Values
	log      *pcrs.Log
	quote    *explainedQuote
}

// read takes what was measured from the list, or from the log.
func (o *explainOptions) read(bank pcrs.Bank) (boot measuredBoot, err error) {
	if o.log != "" {
		read, err := (&eventlogOptions{output: o.output}).read(o.log)
		if err != nil {
			return boot, err
		}
		boot.log = &read
	}
	if o.list == "" {
		boot.measured, err = boot.log.Replay(bank)
		return boot, err
	}
	text, err := readBounded(o.list, pcrs.MaxList)
	if err != nil {
		return boot, err
	}
	banks, err := pcrs.ParseList(text)
	if err != nil {
		return boot, fmt.Errorf("%s: %w", o.list, err)
	}
	if boot.measured = banks[bank]; boot.measured == nil {
		return boot, fmt.Errorf("%s: it has no registers of bank %v", o.list, bank)
	}
	boot.quote, err = o.quote.open(bank, banks)
	return boot, err
}

// compareRegisters lists what the document predicts and what was measured beside it.
func compareRegisters(document measurements.Document, bank pcrs.Bank, boot measuredBoot, found []pcrs.Difference) explained {
	out := explained{Equal: len(found) == 0, Bank: bank, Quote: boot.quote}
	expected, measured := document.Values(bank), boot.measured
	differences := map[pcrs.Register]pcrs.Difference{}
	for _, d := range found {
		differences[d.Register] = d
	}
	covered := maps.Clone(expected)
	maps.Copy(covered, measured)
	for _, r := range slices.Sorted(maps.Keys(covered)) {
		if r >= 16 {
			continue // a boot ends with PCR 15; the rest is for programs that run later
		}
		row := explainedRegister{Register: r, Result: equal, Proven: boot.quote.covers(r), Expected: expected[r], Measured: measured[r]}
		d, differing := differences[r]
		switch {
		case expected[r] == nil && r == 10 && bank == pcrs.SHA256 && pcrs.FollowsFromOthers(measured):
			row.Result = follows
		case expected[r] == nil:
			row.Result = notCovered
		case differing:
			row.Result, row.Cause, row.Note = differs, d.Cause, d.Note
			row.ExpectedEvent, row.MeasuredEvent = eventText(d.ExpectedEvent), eventText(d.MeasuredEvent)
		}
		out.Registers = append(out.Registers, row)
	}
	return out
}

// row returns the row of a register; one that neither side names is not covered.
func (e explained) row(register pcrs.Register) explainedRegister {
	for _, row := range e.Registers {
		if row.Register == register {
			return row
		}
	}
	return explainedRegister{Register: register, Result: notCovered}
}

func eventText(e *pcrs.Event) string {
	if e == nil {
		return ""
	}
	return fmt.Sprintf("%v: %s", e.Type, e.What)
}

func (o *explainOptions) write(w io.Writer, e explained) error {
	if o.output == "json" {
		return writeJSON(w, e)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "register\texpected\tmeasured\t\n")
	for _, r := range e.Registers {
		fmt.Fprintf(t, "%v\t%s\t%s\t%s\n", r.Register, shortValue(r.Expected), shortValue(r.Measured), e.resultText(r))
	}
	fmt.Fprintf(t, "\n%s\n", printable(e.proofText()))
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range e.Registers {
		if r.Result != differs {
			continue
		}
		fmt.Fprintf(w, "\n%v differs\n", r.Register)
		for _, line := range [][2]string{
			{"expected", r.Expected.String()},
			{"measured", r.Measured.String()},
			{"event expected", r.ExpectedEvent},
			{"event in the log", r.MeasuredEvent},
			{"because", r.Cause},
			{"note", r.Note},
		} {
			if line[1] == "" {
				continue
			}
			if _, err := fmt.Fprintf(w, "  %-16s  %s\n", line[0], printable(line[1])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e explained) resultText(r explainedRegister) string {
	if e.Quote != nil && !r.Proven {
		return r.Result + " (not proven: the quote leaves it out)"
	}
	return r.Result
}

func shortValue(d pcrs.Digest) string {
	if len(d) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.16s…", d.String())
}
