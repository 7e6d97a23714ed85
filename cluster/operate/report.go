package operate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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

// Report is what a verified quote shows, beside what was predicted.
type Report struct {
	// EKID is the EKID, in hexadecimal digits.
	EKID string `json:"ekid"`
	// Certified says that the key has a certificate of the named CAs.
	Certified bool `json:"ekCertified"`
	// Trust is the class of the evidence, and Promise what that means, for people.
	Trust   string `json:"trust"`
	Promise string `json:"promise"`
	// Accepted says that the policy accepts the registers.
	Accepted bool `json:"accepted"`
	// Registers are all that were quoted, in their order.
	Registers []RegisterReport `json:"registers"`
	// Hardware are the registers that the platform's hardware signed, or a document predicts of it, in their order.
	Hardware []HardwareReport `json:"hardware,omitempty"`
}

// HardwareReport compares a register that is no TPM's; the fields are those of RegisterReport.
type HardwareReport struct {
	Register  pcrs.Register `json:"register"`
	Predicted string        `json:"predicted,omitempty"`
	Measured  string        `json:"measured,omitempty"`
	Result    string        `json:"result"`
}

// RegisterReport compares one register; values are hexadecimal digits.
type RegisterReport struct {
	// Register is the PCR's number.
	Register int `json:"register"`
	// Predicted is empty if no document predicts the register.
	Predicted string `json:"predicted,omitempty"`
	Measured  string `json:"measured"`
	// Result is "equal", "differs" or "not predicted".
	Result string `json:"result"`
}

// report compares every quoted register. PCR 8 and 15 were compared when the
// evidence was verified: with the node's own config, and with zero.
func (x *exchange) report(claims attest.Claims) Report {
	out := Report{
		EKID: claims.EKID.String(), Certified: claims.Certified, Trust: string(claims.Platform.Trust), Promise: claims.Platform.Trust.Promise(),
		Accepted: x.authorizer.Judge(claims).Accepted(),
	}
	predicted := x.predicted(claims)
	for _, pcr := range attest.Quoted() {
		row := RegisterReport{Register: pcr, Predicted: predicted[pcrs.Register(pcr)].String(), Measured: pcrs.Digest(claims.Registers[pcr][:]).String()}
		row.Result = compare(row.Predicted, row.Measured)
		out.Registers = append(out.Registers, row)
	}
	measured := joinservice.Values(claims)
	for _, r := range slices.Sorted(maps.Keys(union(measured, predicted))) {
		if !r.PCR() {
			row := HardwareReport{Register: r, Predicted: predicted[r].String(), Measured: measured[r].String()}
			row.Result = compare(row.Predicted, row.Measured)
			out.Hardware = append(out.Hardware, row)
		}
	}
	return out
}

// union has the registers of both.
func union(a, b pcrs.Values) pcrs.Values {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

func compare(predicted, measured string) string {
	switch predicted {
	case "":
		return notPredicted
	case measured:
		return equal
	}
	return differs
}

// nearest returns the document of which the fewest judged registers differ, and those: none of the document that is accepted. There
// is always a document; Init and Recover begin with one.
func (x *exchange) nearest(claims attest.Claims) (document measurements.Document, differing []pcrs.Register) {
	for i, d := range x.authorizer.Documents {
		if found := x.differing(d, claims); i == 0 || len(found) < len(differing) {
			document, differing = d, found
		}
	}
	return document, differing
}

// differing returns the registers that are judged by a document and have another value than it predicts.
func (x *exchange) differing(document measurements.Document, claims attest.Claims) (differing []pcrs.Register) {
	predicted, measured := document.Values(pcrs.SHA256), joinservice.Values(claims)
	for _, r := range x.authorizer.Policy.Judged(document) {
		if !predicted[r].Equal(measured[r]) {
			differing = append(differing, r)
		}
	}
	return differing
}

// predicted adds to the nearest document's values what only this node's exchange knows.
func (x *exchange) predicted(claims attest.Claims) pcrs.Values {
	document, _ := x.nearest(claims)
	values := document.Values(pcrs.SHA256)
	config := attest.Extended(hullmark.ConfigEvent(claims.NodeConfig))
	values[attest.ConfigRegister] = config[:]
	values[attest.FuseRegister] = make([]byte, pcrs.SHA256.Size())
	return values
}

// explain says for every judged register that differs which event does, as far as the node's log can tell.
func (x *exchange) explain(claims attest.Claims) error {
	log, logErr := readLog(claims.EventLog)
	document, differing := x.nearest(claims)
	id, err := document.Digest()
	if err != nil {
		return err
	}
	if len(differing) == 0 {
		verdict := x.authorizer.Judge(claims)
		return fmt.Errorf("the node booted what document %s (%s) describes, and gets nothing all the same: %v; next: look what the policy demands of it (hullmark policy show)", id, imageName(document), verdict)
	}
	differences, err := pcrs.Explain(document.Prediction(), pcrs.SHA256, joinservice.Values(claims), log)
	if err != nil {
		return err
	}
	lines := []string{fmt.Sprintf("the node did not boot what document %s (%s) describes:", id, imageName(document))}
	for _, d := range differences {
		if slices.Contains(differing, d.Register) {
			lines = append(lines, "  "+d.String())
		}
	}
	if logErr != nil {
		lines = append(lines, "  (the node's event log cannot be used: "+logErr.Error()+")")
	}
	next := "next: check which image, firmware and devices the machine has; the node got nothing"
	if !slices.ContainsFunc(differing, ofImage) {
		next = "next: what differs is the firmware's. If this kind of machine is new, make a document of its firmware: this command with --dry-run --save-log LOG, " +
			"then hullmark measure IMAGE --log LOG (docs/firmware.md, First contact). If it is not, find out who changed it; the node got nothing"
	}
	return errors.New(strings.Join(append(lines, next), "\n"))
}

// ofImage reports whether a register depends on the image: no other firmware explains that it differs.
func ofImage(r pcrs.Register) bool { return r == 4 || r > 7 }

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
