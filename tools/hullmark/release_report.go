package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// The results of comparing one register.
const (
	equal        = "equal"
	differs      = "differs"
	notPredicted = "not predicted"
)

// report is what a verified quote shows, beside what was predicted.
type report struct {
	Node      string           `json:"node"`
	Certified bool             `json:"ekCertified"`
	Trust     string           `json:"trust"`
	Promise   string           `json:"promise"`
	Accepted  bool             `json:"accepted"`
	Registers []registerReport `json:"registers"`
}

// registerReport is one row of the table.
type registerReport struct {
	Register  int    `json:"register"`
	Predicted string `json:"predicted,omitempty"`
	Measured  string `json:"measured"`
	Result    string `json:"result"`
}

// writeReport prints the table of registers.
func (r *release) writeReport(claims attest.Claims) error {
	report := r.report(claims)
	if r.output == "json" {
		return writeJSON(r.out, report)
	}
	t := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "register\tpredicted\tmeasured\t\n")
	for _, row := range report.Registers {
		fmt.Fprintf(t, "PCR %d\t%s\t%s\t%s\n", row.Register, row.Predicted, row.Measured, row.Result)
	}
	fmt.Fprintf(t, "\nnode\t%s%s\ntrust\t%s: %s\n", report.Node, certifiedNote(report.Certified), report.Trust, report.Promise)
	return t.Flush()
}

func certifiedNote(certified bool) string {
	if certified {
		return " (its EK is certified)"
	}
	return ""
}

// report compares every quoted register. PCR 8 and 15 were compared when the
// evidence was verified: with the node's own config, and with zero.
func (r *release) report(claims attest.Claims) report {
	out := report{
		Node: claims.Node.String(), Certified: claims.Certified, Trust: string(claims.Trust), Promise: claims.Trust.Promise(),
		Accepted: r.authorizer.Judge(claims.Registers).Accepted(),
	}
	predicted := r.predicted(claims)
	for _, pcr := range attest.Quoted() {
		row := registerReport{Register: pcr, Predicted: predicted[pcrs.Register(pcr)].String(), Measured: pcrs.Digest(claims.Registers[pcr][:]).String()}
		switch row.Predicted {
		case "":
			row.Result = notPredicted
		case row.Measured:
			row.Result = equal
		default:
			row.Result = differs
		}
		out.Registers = append(out.Registers, row)
	}
	return out
}

// nearest returns the document of which the fewest registers differ: the one that is met, if one is.
func (r *release) nearest(claims attest.Claims) measurements.Document {
	measured := joinservice.Values(claims.Registers)
	return slices.MinFunc(r.authorizer.Documents, func(a, b measurements.Document) int {
		return cmp.Compare(departures(a, measured), departures(b, measured))
	})
}

// departures counts the registers that have another value than the document predicts.
func departures(document measurements.Document, measured pcrs.Values) int {
	n := 0
	for register, predicted := range document.Values(pcrs.SHA256) {
		if !predicted.Equal(measured[register]) {
			n++
		}
	}
	return n
}

// predicted adds to the nearest document's values what only this node's exchange knows.
func (r *release) predicted(claims attest.Claims) pcrs.Values {
	values := r.nearest(claims).Values(pcrs.SHA256)
	config := attest.Extended(hullmark.ConfigEvent(claims.NodeConfig))
	values[attest.ConfigRegister] = config[:]
	values[attest.FuseRegister] = make([]byte, pcrs.SHA256.Size())
	return values
}

// explain says for every judged register that differs which event does, as far as the node's log can tell.
func (r *release) explain(claims attest.Claims) error {
	log, logErr := readLog(claims.EventLog)
	document := r.nearest(claims)
	id, err := document.Digest()
	if err != nil {
		return err
	}
	differences, err := pcrs.Explain(document.Prediction(), pcrs.SHA256, joinservice.Values(claims.Registers), log)
	if err != nil {
		return err
	}
	lines := []string{fmt.Sprintf("the node did not boot what document %s (%s) describes:", id, imageName(document))}
	for _, d := range differences {
		if d.Register != attest.ConfigRegister {
			lines = append(lines, "  "+printable(d.String()))
		}
	}
	if logErr != nil {
		lines = append(lines, "  (the node's event log cannot be used: "+printable(logErr.Error())+")")
	}
	lines = append(lines, "next: check which image, firmware and devices the machine has; the node got nothing")
	return errors.New(strings.Join(lines, "\n"))
}

// imageName is what people call the image of a document.
func imageName(document measurements.Document) string {
	return document.Image.ID + " " + document.Image.Version
}

// readLog reads the log that a node offers as an explanation; nil without one.
func readLog(raw []byte) (*pcrs.Log, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	log, err := pcrs.ParseLog(raw)
	if err != nil {
		return nil, err
	}
	return &log, nil
}
