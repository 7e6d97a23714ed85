package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/inspect/explain"
	"github.com/hullmark/hullmark/pcrs"
)

// quoteOptions name a quote as tpm2-tools leave it in files.
type quoteOptions struct{ message, signature, key string }

func (o *quoteOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.message, "quote", "", "`FILE` with a quote that covers the registers (tpm2_quote --message)")
	f.StringVar(&o.signature, "signature", "", "`FILE` with the quote's signature (tpm2_quote --signature)")
	f.StringVar(&o.key, "ak", "", "`FILE` with the public key that signed the quote: TPM2B_PUBLIC or PEM (tpm2_createak --public)")
}

// check wants all of the files, or none.
func (o quoteOptions) check(list string) error {
	if o == (quoteOptions{}) {
		return nil
	}
	if o.message == "" || o.signature == "" || o.key == "" || list == "" {
		return withCode(exitUsage, errors.New("a quote takes --quote, --signature, --ak, and the registers that it is of (--pcrs)"))
	}
	return nil
}

// open checks the quote and holds the listed registers to it; nil without a quote.
func (o quoteOptions) open(bank pcrs.Bank, listed map[pcrs.Bank]pcrs.Values) (*explain.Quote, error) {
	if o == (quoteOptions{}) {
		return nil, nil
	}
	var files [3][]byte
	for i, file := range []struct {
		name  string
		limit int64
	}{{o.key, verifier.MaxKeyFile}, {o.message, verifier.MaxQuote}, {o.signature, verifier.MaxSignature}} {
		var err error
		if files[i], err = readBounded(file.name, file.limit); err != nil {
			return nil, err
		}
	}
	key, err := verifier.ParseKey(files[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.key, err)
	}
	quote, err := verifier.OpenQuote(key, files[1], files[2])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.message, err)
	}
	if err := quote.Check(listed); err != nil {
		return nil, fmt.Errorf("%s: %w", o.message, err)
	}
	covered := quote.Covered(bank)
	if len(covered) == 0 {
		return nil, fmt.Errorf("%s: the quote covers no register of bank %v; quote that bank, or compare another with --bank", o.message, bank)
	}
	return &explain.Quote{Registers: covered, Nonce: quote.Nonce, KeyRestricted: key.Restricted, Key: o.key}, nil
}

// openLog reads the log, and holds it to the registers of its boot and to their quote, if those are named. Then it leaves out the banks
// of which that does not hold: whoever made the log chose what it says in those.
func (o measureOptions) openLog() (*pcrs.MachineLog, error) {
	log, err := readTPMLog(o.log)
	if err != nil || o.list == "" {
		return log, err
	}
	text, err := readBounded(o.list, pcrs.MaxList)
	if err != nil {
		return nil, err
	}
	listed, err := pcrs.ParseList(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.list, err)
	}
	var held []pcrs.Bank
	for _, bank := range log.Banks {
		quote, err := o.holds(log.Log, bank, listed)
		switch {
		case err == nil:
			held, log.Quote = append(held, bank), quote // Whatever the bank, it is the same key's.
		case bank == pcrs.SHA256:
			return nil, err
		}
	}
	log.Banks = held
	return log, nil
}

// holds fails unless PCR 0 to 7 of a bank are those that the log leads to, and that the quote covers, if there is one.
func (o measureOptions) holds(log pcrs.Log, bank pcrs.Bank, listed map[pcrs.Bank]pcrs.Values) (*pcrs.LogQuote, error) {
	if len(listed[bank]) == 0 {
		return nil, fmt.Errorf("%s: it has no registers of bank %v", o.list, bank)
	}
	if err := log.Follows(bank, listed[bank]); err != nil {
		return nil, fmt.Errorf("%s: %w", o.list, err)
	}
	quote, err := o.quote.open(bank, listed)
	if err != nil || quote == nil {
		return nil, err
	}
	confirmed := &pcrs.LogQuote{}
	for r := range pcrs.Register(8) {
		if !slices.Contains(quote.Registers, r) {
			return nil, fmt.Errorf("%s: the quote does not cover %v; have the TPM quote PCR 0 to 7", o.quote.message, r)
		}
		confirmed.Registers = append(confirmed.Registers, r)
	}
	confirmed.Key, err = digestOf(o.quote.key)
	return confirmed, err
}
