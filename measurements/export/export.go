// Package export writes the registers that a measurement document expects in
// the forms that other verifiers read. It adds nothing to a document: a register
// that is not predicted, or not chosen, is in no form.
package export

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Format names a form.
type Format string

// The forms. docs/export.md says who reads them, and what each leaves out.
const (
	// JSON is the registers by bank and name.
	JSON Format = "json"
	// CoRIM is an unsigned CoRIM with one CoMID (draft-ietf-rats-corim-10).
	CoRIM Format = "corim"
	// Keylime is a Keylime tpm_policy.
	Keylime Format = "keylime"
	// RVPS is a message for the reference value provider service of Trustee.
	RVPS Format = "rvps"
	// Pcrlock is a folder of components for systemd-pcrlock(8).
	Pcrlock Format = "pcrlock"
)

var writers = map[Format]func(reference) ([]File, error){
	JSON: writeJSON, CoRIM: writeCoRIM, Keylime: writeKeylime, RVPS: writeRVPS, Pcrlock: writePcrlock,
}

// Formats returns all forms.
func Formats() []Format { return []Format{JSON, CoRIM, Keylime, RVPS, Pcrlock} }

// ParseFormat reads the name of a form.
func ParseFormat(name string) (Format, error) {
	if _, ok := writers[Format(name)]; !ok {
		return "", fmt.Errorf("format %q: want one of %s", name, Names())
	}
	return Format(name), nil
}

// Names lists the names of all forms for people.
func Names() string {
	var names []string
	for _, f := range Formats() {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}

// Several reports whether a form is several files, which belong into a folder of their own.
func (f Format) Several() bool { return f == Pcrlock }

// File is one file of an export. Its name matters to the reader only if the form is Several.
type File struct {
	Name    string
	Content []byte
}

// ErrRegisters is why an export fails that works with other registers.
var ErrRegisters = errors.New("choose other registers")

// reference is what is exported of a document.
type reference struct {
	id        measurements.DocumentID
	image     measurements.Image
	registers []measurements.Register
	// banks are those of which a TPM's registers have values.
	banks []pcrs.Bank
}

// Export writes registers of a document in a form; none chosen means all that it
// predicts. The same document, form and registers give the same bytes.
func Export(d measurements.Document, f Format, chosen ...pcrs.Register) ([]File, error) {
	write, ok := writers[f]
	if !ok {
		return nil, fmt.Errorf("export: format %q: want one of %s", string(f), Names())
	}
	id, err := d.Digest()
	if err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	registers, err := choose(d, f, chosen)
	if err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	files, err := write(reference{id: id, image: d.Image, registers: registers, banks: d.Banks()})
	if err != nil {
		return nil, fmt.Errorf("export as %s: %w", f, err)
	}
	return files, nil
}

// choose returns the registers that are asked for, ascending, or all that the form has words for.
func choose(d measurements.Document, f Format, chosen []pcrs.Register) ([]measurements.Register, error) {
	var out []measurements.Register
	for _, r := range d.Registers {
		if len(chosen) == 0 && f.names(r.Register) || slices.Contains(chosen, r.Register) {
			out = append(out, r)
		}
	}
	if len(out) == 0 && len(chosen) == 0 {
		return nil, errors.New("the document predicts no register that the form has words for")
	}
	for _, r := range chosen {
		switch {
		case !slices.ContainsFunc(out, func(o measurements.Register) bool { return o.Register == r }):
			return nil, fmt.Errorf("%v: the document does not predict it%s; %w", r, reason(d, r), ErrRegisters)
		case !f.names(r):
			return nil, fmt.Errorf("%v: the form has words for registers of TPMs alone; %w", r, ErrRegisters)
		}
	}
	return out, nil
}

// names reports whether a form has words for a register.
func (f Format) names(r pcrs.Register) bool { return f == JSON || f == CoRIM || f == RVPS || r.PCR() }

// reason is why a document does not predict a register, if it says so.
func reason(d measurements.Document, r pcrs.Register) string {
	for _, u := range d.NotPredicted {
		if u.Register == r {
			return " (" + u.Reason + ")"
		}
	}
	return ""
}

// one is an export of one file.
func one(name string, v any) ([]File, error) {
	content, err := hullmark.CanonicalJSON(v)
	return []File{{Name: name, Content: content}}, err
}
