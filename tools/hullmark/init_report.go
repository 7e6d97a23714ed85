package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/joinservice"
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
func (r *initRun) writeReport(claims attest.Claims) error {
	report := r.report(claims)
	if r.options.output == "json" {
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
func (r *initRun) report(claims attest.Claims) report {
	out := report{
		Node: claims.Node.String(), Certified: claims.Certified, Trust: string(claims.Trust), Promise: claims.Trust.Promise(),
		Accepted: r.desk.Judge(claims.Registers).Accepted(),
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

// predicted adds to the document's values what only this node's exchange knows.
func (r *initRun) predicted(claims attest.Claims) pcrs.Values {
	values := r.document.Values(pcrs.SHA256)
	config := attest.Extended(hullmark.ConfigEvent(claims.NodeConfig))
	values[attest.ConfigRegister] = config[:]
	values[attest.FuseRegister] = make([]byte, pcrs.SHA256.Size())
	return values
}

// explain says for every judged register that differs which event does, as far as the node's log can tell.
func (r *initRun) explain(claims attest.Claims) error {
	log, logErr := readLog(claims.EventLog)
	differences, err := pcrs.Explain(r.document.Prediction(), pcrs.SHA256, joinservice.Values(claims.Registers), log)
	if err != nil {
		return err
	}
	lines := []string{"the node did not boot what " + r.options.measurements + " describes:"}
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
