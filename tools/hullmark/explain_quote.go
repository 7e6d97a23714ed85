package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
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

// explainedQuote is what a quote proves of the registers.
type explainedQuote struct {
	// Registers are those that it covers.
	Registers []pcrs.Register `json:"registers"`
	// Nonce is what its asker had it include.
	Nonce pcrs.Digest `json:"nonce"`
	// KeyRestricted reports that the key can sign only what its TPM composed; in PEM it does not say.
	KeyRestricted bool   `json:"keyRestricted"`
	key           string // its file
}

// open checks the quote and holds the listed registers to it; nil without a quote.
func (o quoteOptions) open(bank pcrs.Bank, listed map[pcrs.Bank]pcrs.Values) (*explainedQuote, error) {
	if o == (quoteOptions{}) {
		return nil, nil
	}
	var files [3][]byte
	for i, file := range []struct {
		name  string
		limit int64
	}{{o.key, verifier.MaxKeyFile}, {o.message, wire.MaxQuoted}, {o.signature, wire.MaxSignature}} {
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
	return &explainedQuote{Registers: covered, Nonce: quote.Nonce, KeyRestricted: key.Restricted, key: o.key}, nil
}

// covers reports whether a quote is there and proves the register's value.
func (q *explainedQuote) covers(r pcrs.Register) bool {
	return q != nil && slices.Contains(q.Registers, r)
}

// unproven are the predicted registers that a quote should have covered and did not.
func (e explained) unproven() []pcrs.Register {
	var out []pcrs.Register
	for _, row := range e.Registers {
		if e.Quote != nil && !row.Proven && len(row.Expected) > 0 {
			out = append(out, row.Register)
		}
	}
	return out
}

// proofText says what the measured values rest on.
func (e explained) proofText() string {
	if e.Quote == nil {
		return "The registers are taken as given: no quote was shown that proves them (--quote)."
	}
	text := fmt.Sprintf("A quote that the key in %s signed covers %d of the registers. Its nonce is %v; whether that is fresh, and whose the key is, is for you to know.",
		e.Quote.key, len(e.Quote.Registers), nonceText(e.Quote.Nonce))
	if !e.Quote.KeyRestricted {
		text += " In PEM a key does not say that a TPM holds it and that it signs nothing but quotes."
	}
	return text
}

func nonceText(nonce pcrs.Digest) string {
	if len(nonce) == 0 {
		return "empty"
	}
	return nonce.String()
}
