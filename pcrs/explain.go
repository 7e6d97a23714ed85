package pcrs

import (
	"fmt"
	"strings"
)

// Difference is a register whose measured value is not the predicted one.
type Difference struct {
	Register Register
	Bank     Bank
	// Expected is the predicted value, Measured the given one; Measured is empty if there was none.
	Expected, Measured Digest
	// ExpectedEvent is the first predicted event that did not happen, nil if
	// there is no log to tell, or if something was measured after all predicted events.
	ExpectedEvent *Event
	// MeasuredEvent is what the log has in its place, nil if it has nothing there.
	MeasuredEvent *Event
	// Cause names the input behind the difference in a user's terms, as far as it can be told.
	Cause string
	// Note says why no event is named, if none is.
	Note string
}

// String says the difference in one line.
func (d Difference) String() string {
	var b strings.Builder
	measured := d.Measured.String()
	if measured == "" {
		measured = "nothing"
	}
	fmt.Fprintf(&b, "%v (%v): want %v, got %s", d.Register, d.Bank, d.Expected, measured)
	if d.ExpectedEvent != nil {
		fmt.Fprintf(&b, "; expected %s", d.ExpectedEvent.What())
	}
	if d.MeasuredEvent != nil {
		fmt.Fprintf(&b, "; the log has %v: %s", d.MeasuredEvent.Type, d.MeasuredEvent.What())
	}
	for _, text := range []string{d.Note, d.Cause} {
		if text != "" {
			fmt.Fprintf(&b, "; %s", text)
		}
	}
	return b.String()
}

// Explain compares the predicted registers with measured values, PCRs in bank and other registers in their only one, and
// returns one Difference for each that is not equal, ascending. With the log of
// that boot it names the first event that departs and the input behind it; the log
// is believed for a register only if it replays to the measured value. log may
// be nil: then a single change that gives the measured value is named, if there is one.
func Explain(p Prediction, bank Bank, measured Values, log *Log) ([]Difference, error) {
	expected, err := p.Values(bank)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	var replayed Values
	if log != nil {
		if replayed, err = log.valuesOf(p.Registers, bank); err != nil {
			return nil, fmt.Errorf("explain: %w", err)
		}
	}
	var out []Difference
	for _, r := range p.Registers {
		if expected[r].Equal(measured[r]) || r == 10 && len(measured[r]) == 0 {
			continue // Of PCR 10 no event log tells, so that whoever has no more than one cannot compare it.
		}
		bank := r.In(bank)
		d := Difference{Register: r, Bank: bank, Expected: expected[r], Measured: measured[r]}
		switch {
		case len(measured[r]) == 0:
			d.Note = "its value was not given"
		case r == 10:
			d.Note, d.Cause = "the kernel extends it, and no event log tells", aggregateCause(bank, measured)
		case log == nil:
			d.Note = "without an event log the event cannot be named"
		case !replayed[r].Equal(measured[r]):
			d.Note = "the event log does not replay to the measured value, so it names nothing"
		case r == 0 && p.Log.Locality != log.Locality:
			d.Cause = fmt.Sprintf("PCR 0 began with startup locality %d, and %d was expected: the machine measures its first code by other means", log.Locality, p.Log.Locality)
		default:
			d.ExpectedEvent, d.MeasuredEvent = firstDeparture(bank, p.Log.Of(r), log.Of(r))
			if d.ExpectedEvent != nil || d.MeasuredEvent != nil {
				d.Cause = cause(r, d.ExpectedEvent, d.MeasuredEvent)
			}
		}
		if d.Cause == "" && len(measured[r]) == bank.Size() {
			d.Cause = singleChange(bank, r, p.Log.start(bank, r), p.Log.Of(r), measured[r])
		}
		out = append(out, d)
	}
	return out, nil
}

func firstDeparture(bank Bank, expected, measured []Event) (want, got *Event) {
	i := 0
	for i < len(expected) && i < len(measured) && expected[i].Digests[bank].Equal(measured[i].Digests[bank]) {
		i++
	}
	if i < len(expected) {
		want = &expected[i]
	}
	if i < len(measured) {
		got = &measured[i]
	}
	return want, got
}
