package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier"
)

// releaseOptions are the flags of the verbs that give a node its disk key.
type releaseOptions struct {
	operatorOptions
	ek, ekCA string
	output   string
}

func (o *releaseOptions) addFlags(cmd *cobra.Command) {
	o.operatorOptions.addFlags(cmd, 10*time.Minute)
	f := cmd.Flags()
	f.StringVar(&o.ek, "ek", "", "the endorsement key's `ID` that the node's TPM has to have: 64 hexadecimal digits")
	f.StringVar(&o.ekCA, "ek-ca", "", "PEM `FILE` of the CAs of which one has to have signed the EK's certificate")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the table: text or json")
}

// runRelease is what such a verb does: prepare reads everything before the node is dialled.
func runRelease[R interface{ do(context.Context) error }](cmd *cobra.Command, output string, prepare func(out, notes io.Writer) (R, error)) error {
	if err := checkOutput(cmd.Name(), output); err != nil {
		return err
	}
	run, err := prepare(cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return fmt.Errorf("%s: %w", cmd.Name(), err)
	}
	if err := run.do(cmd.Context()); err != nil {
		return fmt.Errorf("%s: %w", cmd.Name(), tell(err))
	}
	return nil
}

func newRelease(kind hullmark.TicketKind, o *releaseOptions, out, notes io.Writer) release {
	return release{operator: &o.operatorOptions, kind: kind, output: o.output, out: out, notes: notes}
}

func (r *release) openCluster() (err error) {
	r.file, err = r.operator.open(r.notes)
	return err
}

// readAuthorities reads the CAs that have to vouch for the EK, if any are named.
func (r *release) readAuthorities(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	r.anchor.Authorities, err = verifier.ParseAuthorities(text)
	return err
}

// setEK names the machine that has to answer.
func (r *release) setEK(text string) error {
	node, err := hullmark.ParseNodeID(text)
	if err != nil {
		return withCode(exitUsage, fmt.Errorf("--ek: %w", err))
	}
	r.anchor.Node = &node
	return nil
}
