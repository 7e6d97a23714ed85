package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/inspect/explain"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// explainOptions are the flags of `hullmark explain`.
type explainOptions struct {
	log, list, bank, output, html string
	quote                         quoteOptions
	by                            builderOptions
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

With --key and --attestation it also says which of these builders signed the document, as hullmark verify does.

Exit codes: 0 every register that the document predicts is equal, 3 one differs or is not covered by the quote, or too few of the builders signed the document, 1 failed, 2 usage.`,
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
	o.by.register(cmd)
	return cmd
}

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
	if (len(o.by.keys) > 0) != (len(o.by.attestations) > 0) || o.by.threshold != 0 && len(o.by.keys) == 0 {
		return 0, withCode(exitUsage, errors.New("explain: name the builders' keys (--key) and what they signed (--attestation), or neither"))
	}
	return bank, o.quote.check(o.list)
}

func (o *explainOptions) run(w io.Writer, file string) error {
	bank, err := o.check()
	if err != nil {
		return err
	}
	if err := notOver(o.html, append(o.by.files(), file, o.log)...); err != nil {
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
	e, err := explain.New(document, bank, boot)
	if err != nil {
		return err
	}
	if e.Builders, err = o.builders(document); err != nil {
		return err
	}
	if err := o.writePage(document, e, boot.Log); err != nil {
		return err
	}
	if err := o.write(w, e); err != nil {
		return err
	}
	if e.Differ > 0 {
		return withCode(exitMismatch, fmt.Errorf("%d of %d predicted registers differ from %s", e.Differ, len(document.Registers), file))
	}
	if e.Builders != nil && !e.Builders.Met() {
		return withCode(exitMismatch, fmt.Errorf("%s: %v", file, e.Builders))
	}
	if missing := e.Unproven(); len(missing) > 0 {
		return withCode(exitMismatch, fmt.Errorf("%s does not cover %v, which %s predicts; have the TPM quote it, too", o.quote.message, missing[0], file))
	}
	return nil
}

// builders says who of those that are named signed the document; nil if nobody is.
func (o *explainOptions) builders(document measurements.Document) (*measurements.Agreement, error) {
	if len(o.by.keys) == 0 {
		return nil, nil
	}
	builders, _, err := o.by.open("explain")
	if err != nil {
		return nil, err
	}
	signatures, err := o.by.read(builders, document)
	if err != nil {
		return nil, err
	}
	agreement, err := builders.Agree(document, signatures)
	return &agreement, err
}

// writePage writes the page, if one is wanted.
func (o *explainOptions) writePage(document measurements.Document, e explain.Explanation, log *pcrs.Log) error {
	if o.html == "" {
		return nil
	}
	content, err := explain.Page(document, e, log)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	if err := writeWhole(o.html, content, 0o644); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	return nil
}

// read takes what was measured from the list, or from the log.
func (o *explainOptions) read(bank pcrs.Bank) (boot explain.Boot, err error) {
	if o.log != "" {
		read, err := (&eventlogOptions{output: o.output}).read(o.log)
		if err != nil {
			return boot, err
		}
		boot.Log = &read
	}
	if o.list == "" {
		boot.Measured, err = boot.Log.Replay(bank)
		if len(boot.Log.Of(10)) == 0 {
			delete(boot.Measured, 10) // The kernel extends it, and logs that elsewhere.
		}
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
	if boot.Measured = banks[bank]; boot.Measured == nil {
		return boot, fmt.Errorf("%s: it has no registers of bank %v", o.list, bank)
	}
	boot.Quote, err = o.quote.open(bank, banks)
	return boot, err
}

func (o *explainOptions) write(w io.Writer, e explain.Explanation) error {
	if o.output == "json" {
		return writeJSON(w, e)
	}
	return e.WriteText(w)
}
