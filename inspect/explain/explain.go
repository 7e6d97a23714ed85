// Package explain holds what a machine measured against a measurement document: which registers differ, which event departed
// first and why, and what of it a quote proves. It shows the result as text and as one HTML page.
//
// Logs and documents may be hostile: what is shown of them is bounded, and cannot be anything but text.
package explain

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Boot is what a machine shows of its boot.
type Boot struct {
	// Measured are its registers, of the bank that is compared.
	Measured pcrs.Values
	// Log is its event log, or nil.
	Log *pcrs.Log
	// Quote is what proves the registers, or nil where they are taken as given.
	Quote *Quote
}

// Quote is what a quote that was checked proves of the registers.
type Quote struct {
	// Registers are those that it covers.
	Registers []pcrs.Register `json:"registers"`
	// Nonce is what its asker had it include.
	Nonce pcrs.Digest `json:"nonce"`
	// KeyRestricted reports that the key can sign only what its TPM composed; in PEM it does not say.
	KeyRestricted bool `json:"keyRestricted"`
	// Key names the key's file, for people.
	Key string `json:"-"`
}

// covers reports whether a quote is there and proves the register's value.
func (q *Quote) covers(r pcrs.Register) bool {
	return q != nil && slices.Contains(q.Registers, r)
}

// Explanation says of each register whether it is as the document predicts, and why not. It is the JSON that hullmark explain writes.
type Explanation struct {
	// Equal reports that every register that the document predicts is equal.
	Equal bool      `json:"equal"`
	Bank  pcrs.Bank `json:"bank"`
	// Quote is absent where the registers are taken as given.
	Quote *Quote `json:"quote,omitempty"`
	// Builders says who signed the document, where that was asked.
	Builders *measurements.Agreement `json:"builders,omitempty"`
	// Registers are those that either side names, up to PCR 15, ascending.
	Registers []Register `json:"registers"`
	// Differ is how many of the predicted registers differ.
	Differ int `json:"-"`
}

// Register is one register; Result is equal, differs, not covered, or what follows says of PCR 10.
// Proven says that a quote covers the measured value.
type Register struct {
	Register      pcrs.Register `json:"register"`
	Result        string        `json:"result"`
	Proven        bool          `json:"proven"`
	Expected      pcrs.Digest   `json:"expected,omitempty"`
	Measured      pcrs.Digest   `json:"measured,omitempty"`
	ExpectedEvent *Event        `json:"expectedEvent,omitempty"`
	MeasuredEvent *Event        `json:"measuredEvent,omitempty"`
	Cause         string        `json:"cause,omitempty"`
	Note          string        `json:"note,omitempty"`
}

// Event is an event of the document, or of the log, where the two part. Of a log's event the source is only what the log claims.
type Event struct {
	Type   string      `json:"type"`
	Source pcrs.Source `json:"source"`
	// What is a sentence of the source.
	What string `json:"what"`
}

// The results of comparing one register.
const (
	equal      = "equal"
	differs    = "differs"
	notCovered = "not covered"
	follows    = "follows from PCR 0 to 9"
)

// New compares what the document predicts with what was measured. With a log, it names the first event that departs (pcrs.Explain).
func New(document measurements.Document, bank pcrs.Bank, boot Boot) (Explanation, error) {
	found, err := pcrs.Explain(document.Prediction(), bank, boot.Measured, boot.Log)
	if err != nil {
		return Explanation{}, err
	}
	return compareRegisters(document, bank, boot, found), nil
}

// compareRegisters lists what the document predicts and what was measured beside it.
func compareRegisters(document measurements.Document, bank pcrs.Bank, boot Boot, found []pcrs.Difference) Explanation {
	out := Explanation{Equal: len(found) == 0, Bank: bank, Quote: boot.Quote, Differ: len(found)}
	expected, measured := document.Values(bank), boot.Measured
	differences := map[pcrs.Register]pcrs.Difference{}
	for _, d := range found {
		differences[d.Register] = d
	}
	covered := maps.Clone(expected)
	maps.Copy(covered, measured)
	for _, r := range slices.Sorted(maps.Keys(covered)) {
		if r.PCR() && r >= 16 {
			continue // a boot ends with PCR 15; the rest is for programs that run later
		}
		row := Register{Register: r, Result: equal, Proven: boot.Quote.covers(r), Expected: expected[r], Measured: measured[r]}
		d, differing := differences[r]
		switch {
		case expected[r] == nil && r == 10 && bank == pcrs.SHA256 && pcrs.FollowsFromOthers(measured):
			row.Result = follows
		case expected[r] == nil, len(measured[r]) == 0 && !differing:
			row.Result = notCovered
		case differing:
			row.Result, row.Cause, row.Note = differs, d.Cause, d.Note
			row.ExpectedEvent, row.MeasuredEvent = eventOf(d.ExpectedEvent), eventOf(d.MeasuredEvent)
		}
		out.Registers = append(out.Registers, row)
	}
	return out
}

// row returns the row of a register; one that neither side names is not covered.
func (e Explanation) row(register pcrs.Register) Register {
	for _, row := range e.Registers {
		if row.Register == register {
			return row
		}
	}
	return Register{Register: register, Result: notCovered}
}

func eventOf(e *pcrs.Event) *Event {
	if e == nil {
		return nil
	}
	return &Event{Type: e.Type.String(), Source: e.From(), What: e.What()}
}

// String is how terminals name the event; of none it is empty.
func (e *Event) String() string {
	if e == nil {
		return ""
	}
	return e.Type + ": " + e.What
}

// Unproven are the predicted registers that a quote should have covered and did not.
func (e Explanation) Unproven() []pcrs.Register {
	var out []pcrs.Register
	for _, row := range e.Registers {
		if e.Quote != nil && !row.Proven && len(row.Expected) > 0 {
			out = append(out, row.Register)
		}
	}
	return out
}

// proof says what the measured values rest on.
func (e Explanation) proof() string {
	if e.Quote == nil {
		return "The registers are taken as given: no quote was shown that proves them (--quote)."
	}
	text := fmt.Sprintf("A quote that the key in %s signed covers %d of the registers. Its nonce is %v; whether that is fresh, and whose the key is, is for you to know.",
		e.Quote.Key, len(e.Quote.Registers), nonceText(e.Quote.Nonce))
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
