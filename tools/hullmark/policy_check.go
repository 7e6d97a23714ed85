package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// policyCheckOptions are the flags of `hullmark policy check`.
type policyCheckOptions struct {
	policyOptions
	list, bank, output string
}

func newPolicyCheckCommand() *cobra.Command {
	var o policyCheckOptions
	cmd := &cobra.Command{
		Use:   "check DOCUMENT...",
		Short: "Say whether the policy accepts a machine's registers, with every reason",
		Long: `Say whether the policy accepts a machine's registers, with every reason.

All registers that count have to match one and the same of the documents, and the policy has to accept that one. Exit codes: 0 accepted, 4 denied.`,
		Example: "  hullmark policy check node.json --cluster prod.cluster --pcrs registers",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("policy check: name the documents to compare with (see hullmark policy check --help)")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.list, "pcrs", "", "`FILE` with the machine's registers, as tpm2_pcrread prints them")
	cmd.Flags().StringVar(&o.bank, "bank", "sha256", "`BANK` to compare: sha256, sha384 or sha512")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	require(cmd, "pcrs")
	return cmd
}

func (o *policyCheckOptions) run(files []string, out, notes io.Writer) error {
	if err := checkOutput("policy check", o.output); err != nil {
		return err
	}
	bank, err := pcrs.ParseBank(o.bank)
	if err != nil {
		return withCode(exitUsage, fmt.Errorf("--bank: %w", err))
	}
	var documents []measurements.Document
	for _, file := range files {
		document, err := readDocument(file)
		if err != nil {
			return err
		}
		documents = append(documents, document)
	}
	boot, err := (&explainOptions{list: o.list}).read(bank)
	if err != nil {
		return err
	}
	_, policy, err := o.openAny(notes)
	if err != nil {
		return err
	}
	verdict := measurements.Judge(policy, documents, bank, boot.Measured)
	if o.output == "json" {
		if err := writeJSON(out, judged(verdict)); err != nil {
			return err
		}
	}
	if !verdict.Accepted() {
		return withCode(exitDenied, errors.New(verdict.String()))
	}
	if o.output == "json" {
		return nil
	}
	_, err = fmt.Fprintln(out, verdict)
	return err
}

// verdictJSON is the JSON that hullmark policy check writes.
type verdictJSON struct {
	Accepted bool `json:"accepted"`
	// Document, SVN and Matched say which document was met, and in which registers; they are absent in a denial.
	Document *measurements.DocumentID `json:"document,omitempty"`
	SVN      uint32                   `json:"svn,omitempty"`
	Matched  []pcrs.Register          `json:"matched,omitempty"`
	Reasons  []string                 `json:"reasons,omitempty"`
}

func judged(v measurements.Verdict) verdictJSON {
	out := verdictJSON{Accepted: v.Accepted()}
	if out.Accepted {
		out.Document, out.SVN, out.Matched = &v.Document, v.SVN, v.Matched
	}
	for _, r := range v.Reasons {
		out.Reasons = append(out.Reasons, r.String())
	}
	return out
}
