package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
)

// exchangeOptions are the flags of the verbs that give a node its disk key.
type exchangeOptions struct {
	operatorOptions
	authorityOptions
	ek      string
	output  string
	saveLog string
}

func (o *exchangeOptions) addFlags(cmd *cobra.Command) {
	o.operatorOptions.addFlags(cmd, 10*time.Minute)
	o.authorityOptions.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.ek, "ekid", "", "the `EKID` that the node's TPM has to have: 64 hexadecimal digits")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the table: text or json")
	f.StringVar(&o.saveLog, "save-log", "", "write the node's event log to `FILE`, if it leads to the registers that the node quotes (for hullmark measure --log)")
}

// target is the node, whose evidence is shown as a table.
func (o *exchangeOptions) target(out, notes io.Writer) (t operate.Target, err error) {
	if err := o.check(); err != nil {
		return t, err
	}
	t.Node, t.Report = o.at(notes), func(r operate.Report) error { return writeReport(out, o.output, r) }
	if o.saveLog != "" {
		t.Log = func(raw []byte) error { return writeWhole(o.saveLog, raw, 0o644) }
	}
	if o.ek != "" {
		node, err := hullmark.ParseEKID(o.ek)
		if err != nil {
			return t, withCode(exitUsage, fmt.Errorf("--ekid: %w", err))
		}
		t.Anchor.EKID = &node
	}
	t.Anchor.Authorities, t.Anchor.Roots, err = o.read()
	return t, err
}

// readDocuments reads the measurement documents that a node may match.
func readDocuments(files []string) (documents []measurements.Document, err error) {
	for _, file := range files {
		document, err := readDocument(file)
		if err != nil {
			return nil, err
		}
		documents = append(documents, document)
	}
	return documents, nil
}

// writeReport prints the table of registers.
func writeReport(out io.Writer, format string, r operate.Report) error {
	if format == "json" {
		return writeJSON(out, r)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "register\tpredicted\tmeasured\t\n")
	for _, row := range r.Registers {
		fmt.Fprintf(t, "PCR %d\t%s\t%s\t%s\n", row.Register, row.Predicted, row.Measured, row.Result)
	}
	for _, row := range r.Hardware {
		fmt.Fprintf(t, "%v\t%s\t%s\t%s\n", row.Register, row.Predicted, row.Measured, row.Result)
	}
	certified := ""
	if r.Certified {
		certified = " (its EK is certified)"
	}
	fmt.Fprintf(t, "\nnode\t%s%s\ntrust\t%s: %s\n", r.EKID, certified, r.Trust, r.Promise)
	return t.Flush()
}
