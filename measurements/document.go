// Package measurements says which boots are accepted: a document publishes the
// expected registers of one image on named firmware, a policy signed by a
// cluster's root key accepts documents and names members, and a verdict judges
// measured registers by both.
//
// It decides nothing about whose registers they are.
package measurements

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/pcrs"
)

// DocumentSchema names the format of a Document.
const DocumentSchema = "hullmark.measurement/v2"

// Limits of a document.
const (
	// MaxDocument is the largest encoded document, in bytes.
	MaxDocument = 1 << 20
	maxEvents   = 1024
	maxText     = 512
	maxROMs     = 32
)

// DocumentID names a document: the SHA-256 of its encoded form. Policies name documents by it.
type DocumentID = hullmark.DocumentID

// Document is what an image is expected to measure on named firmware.
type Document struct {
	// Schema is DocumentSchema.
	Schema string `json:"schema"`
	// Image names the image.
	Image Image `json:"image"`
	// Release is what was released; its fields stand among the document's own.
	Release
	// Machine is what the registers depend on beside the image.
	Machine Machine `json:"machine"`
	// Registers are the predicted registers, ascending.
	Registers []Register `json:"registers"`
	// NotPredicted are registers that the document says nothing about, ascending.
	NotPredicted []NotPredicted `json:"notPredicted"`
}

// Release says what was released, made by what, of what. Empty fields were not given.
type Release struct {
	// Name is what people call the release.
	Name string `json:"release"`
	// SVN is the security version: it is raised when older images must no longer be accepted.
	SVN uint32 `json:"svn"`
	// Builder is the program that built the image, as PATH@VERSION of its Go module.
	Builder string `json:"builder,omitempty"`
	// Lock is the SHA-256 of the locked package set, SBOM that of the SBOM in SPDX's form, CycloneDX that of the same SBOM in its form.
	Lock      pcrs.Digest `json:"lock,omitempty"`
	SBOM      pcrs.Digest `json:"sbom,omitempty"`
	CycloneDX pcrs.Digest `json:"cyclonedx,omitempty"`
}

// Image identifies an image. Digests are SHA-256.
type Image struct {
	// ID and Version are IMAGE_ID and IMAGE_VERSION of os-release(5).
	ID      string `json:"id"`
	Version string `json:"version"`
	// Disk is the digest of the whole raw disk.
	Disk pcrs.Digest `json:"disk"`
	// RootHash is the dm-verity root hash in the kernel command line.
	RootHash pcrs.Digest `json:"rootHash"`
	// UKI is the digest of the unified kernel image, as a file.
	UKI pcrs.Digest `json:"uki"`
	// Stub is the version of the systemd-stub in it.
	Stub string `json:"stub"`
	// Versions are those that os-release(5) in the kernel image says of Kubernetes and etcd; empty for an image that says none.
	hullmark.Versions
}

// Machine identifies firmware and devices by the SHA-256 of their files, or by a log.
type Machine struct {
	// Firmware and Variables are absent of a machine that is known by its log.
	Firmware   pcrs.Digest   `json:"firmware,omitempty"`
	Variables  pcrs.Digest   `json:"variables,omitempty"`
	OptionROMs []pcrs.Digest `json:"optionROMs"`
	// SecureBoot reports whether firmware enforces Secure Boot.
	SecureBoot bool `json:"secureBoot"`
	// Shape is what PCR 0, 1 and 10 depend on; it is absent where they are not predicted.
	Shape *pcrs.Shape `json:"shape,omitempty"`
	// Log names the event log of another boot, in the place of files that cannot be had; absent of other machines.
	Log *Log `json:"log,omitempty"`
}

// Log is the event log that a machine is known by. It is the machine's own claim.
type Log struct {
	// SHA256 is the digest of its file.
	SHA256 pcrs.Digest `json:"sha256"`
	// StartupLocality is the last byte of PCR 0 before its first event (TCG PC Client PFP §10.4.5.3).
	StartupLocality uint8 `json:"startupLocality,omitempty"`
	// Quote says of which quote the log leads to the values; absent if none was shown.
	Quote *pcrs.LogQuote `json:"quote,omitempty"`
}

// Register is a predicted register: its values, and the events that produce them.
type Register struct {
	// Register is a PCR, or a register of a confidential machine.
	Register pcrs.Register `json:"register"`
	// Values are one for each of the register's banks.
	Values pcrs.Digests `json:"values"`
	// Events are in the order in which they happen; none means that the register stays zero.
	Events []Event `json:"events"`
}

// Event is one extend.
type Event struct {
	Type pcrs.EventType `json:"type"`
	// Source says what is hashed; Source.String is a sentence of it.
	Source pcrs.Source `json:"source"`
	Origin pcrs.Origin `json:"origin"`
	// Digests are one for each of the register's banks.
	Digests pcrs.Digests `json:"digests"`
}

// NotPredicted is a register that is not predicted, with the reason.
type NotPredicted struct {
	Register pcrs.Register `json:"register"`
	Reason   string        `json:"reason"`
}

// New describes a released image on a machine by its prediction. A release without a name has the image's version for one.
func New(image Image, release Release, machine pcrs.Machine, p pcrs.Prediction) (Document, error) {
	release.Name = cmp.Or(release.Name, image.Version)
	d := Document{
		Schema: DocumentSchema, Image: image, Release: release,
		Machine: describe(machine),
	}
	d.Registers, d.NotPredicted = []Register{}, []NotPredicted{}
	for _, u := range p.Unpredicted {
		d.NotPredicted = append(d.NotPredicted, NotPredicted(u))
	}
	if err := d.addRegisters(p); err != nil {
		return Document{}, fmt.Errorf("describe image: %w", err)
	}
	if err := d.check(); err != nil {
		return Document{}, fmt.Errorf("describe image: %w", err)
	}
	return d, nil
}

func describe(machine pcrs.Machine) Machine {
	m := Machine{OptionROMs: []pcrs.Digest{}, SecureBoot: machine.SecureBoot()}
	if log := machine.Log; log != nil {
		m.Log = &Log{SHA256: log.SHA256, StartupLocality: log.Locality, Quote: log.Quote}
		return m
	}
	m.Firmware, m.Variables = machine.Firmware.SHA256[:], machine.Vars.SHA256[:]
	for _, rom := range machine.ROMs {
		m.OptionROMs = append(m.OptionROMs, rom.SHA256[:])
	}
	if machine.Learned != nil {
		m.Shape = &machine.Shape
	}
	return m
}

func (d *Document) addRegisters(p pcrs.Prediction) error {
	for _, r := range p.Registers {
		register := Register{Register: r, Values: pcrs.Digests{}, Events: []Event{}}
		for _, e := range p.Log.Of(r) {
			register.Events = append(register.Events, Event{Type: e.Type, Source: e.From(), Origin: e.Origin, Digests: e.Digests})
		}
		d.Registers = append(d.Registers, register)
	}
	for _, bank := range p.Banks() {
		values, err := p.Values(bank)
		if err != nil {
			return err
		}
		for _, r := range d.Registers {
			if slices.Contains(r.Register.Banks(), bank) {
				r.Values[bank] = values[r.Register]
			}
		}
	}
	return nil
}

// Banks returns the banks of which the document has a TPM's values: all that are predicted, or those that the log has which the machine
// is known by.
func (d Document) Banks() []pcrs.Bank {
	if d.Machine.Log == nil {
		return pcrs.PredictedBanks()
	}
	values := d.Values(pcrs.SHA256)
	return slices.DeleteFunc(pcrs.PredictedBanks(), func(b pcrs.Bank) bool {
		return b != pcrs.SHA256 && (len(values) == 0 || len(d.Values(b)) == 0)
	})
}

// Values returns the expected values: those of a TPM in the bank, and of other registers in their own (pcrs.Register.In).
func (d Document) Values(bank pcrs.Bank) pcrs.Values {
	out := pcrs.Values{}
	for _, r := range d.Registers {
		if value, ok := r.Values[r.Register.In(bank)]; ok {
			out[r.Register] = value
		}
	}
	return out
}

// OwnHardware returns what the document's PCR 1 holds of one machine that no other machine has, by the names that firmware gives it.
func (d Document) OwnHardware() (names []string) {
	for _, r := range d.Registers {
		for _, e := range r.Events {
			for _, part := range e.Source.Parts {
				if r.Register == 1 && part.Kind == pcrs.FromHardware {
					names = append(names, part.Name)
				}
			}
		}
	}
	return names
}

// Prediction returns the document's events as a prediction, for pcrs.Explain.
// Events are grouped by register, so only their order within one is that of the boot.
func (d Document) Prediction() pcrs.Prediction {
	var p pcrs.Prediction
	p.Log.Banks = d.Banks()
	if d.Machine.Log != nil {
		p.Log.Locality = d.Machine.Log.StartupLocality
	}
	for _, r := range d.Registers {
		p.Registers = append(p.Registers, r.Register)
		for _, e := range r.Events {
			p.Log.Events = append(p.Log.Events, pcrs.Event{
				Register: r.Register, Type: e.Type, Digests: e.Digests, Source: &e.Source, Origin: e.Origin,
			})
		}
	}
	for _, u := range d.NotPredicted {
		p.Unpredicted = append(p.Unpredicted, pcrs.Unpredicted(u))
	}
	return p
}

// Encode returns the document's canonical form: JSON (RFC 8259) with the fields
// in the order of the types here, map keys sorted, indented by two spaces, one newline at the end.
func (d Document) Encode() ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("encode measurement document: %w", err)
	}
	return hullmark.CanonicalJSON(d)
}

// Digest returns the SHA-256 of the canonical form.
func (d Document) Digest() (DocumentID, error) {
	encoded, err := d.Encode()
	if err != nil {
		return DocumentID{}, err
	}
	return sha256.Sum256(encoded), nil
}

// Parse reads a document that Encode wrote. It fails for anything else: an
// unknown field, another order or spacing, values that are not those of their events.
func Parse(encoded []byte) (Document, error) {
	var d Document
	if err := hasSchema(encoded, MaxDocument, DocumentSchema); err != nil {
		return Document{}, fmt.Errorf("read measurement document: %w", err)
	}
	if err := strict(encoded, MaxDocument, &d); err != nil {
		return Document{}, fmt.Errorf("read measurement document: %w", err)
	}
	if err := d.check(); err != nil {
		return Document{}, fmt.Errorf("read measurement document: %w", err)
	}
	if err := hullmark.CheckCanonicalJSON(encoded, d); err != nil {
		return Document{}, fmt.Errorf("read measurement document: %w", err)
	}
	return d, nil
}

func (d Document) check() error {
	if d.Schema != DocumentSchema {
		return fmt.Errorf("schema %q, want %q", d.Schema, DocumentSchema)
	}
	if err := d.Image.check(); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := d.Machine.check(); err != nil {
		return fmt.Errorf("machine: %w", err)
	}
	if err := d.Release.check(); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return d.checkRegisters()
}

func (r Release) check() error {
	if r.Name == "" || len(r.Name) > maxText || len(r.Builder) > maxText {
		return fmt.Errorf("its name must have 1 to %d bytes, its builder at most as many", maxText)
	}
	for _, digest := range []pcrs.Digest{r.Lock, r.SBOM, r.CycloneDX} {
		if len(digest) != 0 && len(digest) != sha256.Size {
			return fmt.Errorf("lock, sbom or cyclonedx: digest of %d bytes, want %d", len(digest), sha256.Size)
		}
	}
	return nil
}

func (i Image) check() error {
	for _, text := range []string{i.ID, i.Version, i.Stub} {
		if text == "" || len(text) > maxText {
			return fmt.Errorf("id, version and stub must have 1 to %d bytes", maxText)
		}
	}
	return checkSHA256(i.Disk, i.RootHash, i.UKI)
}

func (m Machine) check() error {
	if len(m.OptionROMs) > maxROMs || m.OptionROMs == nil {
		return fmt.Errorf("%d option ROMs, want a list of at most %d", len(m.OptionROMs), maxROMs)
	}
	if m.Shape != nil {
		if err := m.Shape.Check(); err != nil {
			return err
		}
	}
	if m.Log != nil {
		if len(m.Firmware)+len(m.Variables)+len(m.OptionROMs) > 0 || m.Shape != nil {
			return errors.New("it is known by a log, and by files or a shape as well")
		}
		return m.Log.check()
	}
	return checkSHA256(append([]pcrs.Digest{m.Firmware, m.Variables}, m.OptionROMs...)...)
}

func (l Log) check() error {
	if !slices.Contains([]uint8{0, 3, 4}, l.StartupLocality) {
		return fmt.Errorf("log: startup locality %d; 0, 3 and 4 exist", l.StartupLocality)
	}
	if l.Quote == nil {
		return checkSHA256(l.SHA256)
	}
	for i, r := range l.Quote.Registers {
		if !r.PCR() || i > 0 && r <= l.Quote.Registers[i-1] {
			return fmt.Errorf("log: quote: %v is no PCR, or out of order", r)
		}
	}
	if len(l.Quote.Registers) == 0 {
		return errors.New("log: quote: it covers no register")
	}
	return checkSHA256(l.SHA256, l.Quote.Key)
}

func checkSHA256(digests ...pcrs.Digest) error {
	for _, d := range digests {
		if len(d) != sha256.Size {
			return fmt.Errorf("digest of %d bytes, want %d", len(d), sha256.Size)
		}
	}
	return nil
}

// checkRegisters checks that every register is there once, and that the values are those of the events.
func (d Document) checkRegisters() error {
	if d.Registers == nil || d.NotPredicted == nil {
		return errors.New("registers or notPredicted are missing")
	}
	var seen []pcrs.Register
	events, banks := 0, d.Banks()
	for _, r := range d.Registers {
		if len(seen) > 0 && r.Register <= seen[len(seen)-1] || !r.Register.Valid() {
			return fmt.Errorf("registers: %v is out of order, or no register", r.Register)
		}
		seen = append(seen, r.Register)
		if events += len(r.Events); events > maxEvents {
			return fmt.Errorf("registers: more than %d events", maxEvents)
		}
		if err := r.check(banks); err != nil {
			return fmt.Errorf("%v: %w", r.Register, err)
		}
	}
	for _, u := range d.NotPredicted {
		if slices.Contains(seen, u.Register) || !u.Register.Valid() || len(u.Reason) > maxText {
			return fmt.Errorf("notPredicted: %v is predicted or listed twice, is no register, or its reason is too long", u.Register)
		}
		if !utf8.ValidString(u.Reason) || strings.ContainsFunc(u.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("notPredicted: the reason for %v is no printable line: %q", u.Register, u.Reason)
		}
		seen = append(seen, u.Register)
	}
	return d.replay()
}

// check wants the values of a TPM's register to be of banks.
func (r Register) check(banks []pcrs.Bank) error {
	if !r.Register.PCR() {
		banks = r.Register.Banks()
	}
	if r.Events == nil || !hasBanks(r.Values, banks) {
		return fmt.Errorf("events are missing, or values are not of %v", banks)
	}
	if !r.Register.Extended() && len(r.Events) != 1 {
		return fmt.Errorf("%d events, want the one that has its value", len(r.Events))
	}
	for i, e := range r.Events {
		known := e.Origin == pcrs.Derived || e.Origin == pcrs.Learned || e.Origin == pcrs.Node
		if !known || !hasBanks(e.Digests, banks) {
			return fmt.Errorf("event %d: origin or a bank's digest is missing or malformed", i+1)
		}
		if err := e.Source.Check(); err != nil {
			return fmt.Errorf("event %d: %w", i+1, err)
		}
		if e.Type == pcrs.EvNoAction {
			return fmt.Errorf("event %d: %v extends nothing", i+1, e.Type)
		}
	}
	return nil
}

// hasBanks reports whether there is one digest for each of the banks, and no other.
func hasBanks(digests pcrs.Digests, banks []pcrs.Bank) bool {
	for _, bank := range banks {
		if len(digests[bank]) != bank.Size() {
			return false
		}
	}
	return len(digests) == len(banks)
}

func (d Document) replay() error {
	prediction := d.Prediction()
	for _, bank := range prediction.Banks() {
		replayed, err := prediction.Values(bank)
		if err != nil {
			return err
		}
		for _, r := range d.Registers {
			if slices.Contains(r.Register.Banks(), bank) && !r.Values[bank].Equal(replayed[r.Register]) {
				return fmt.Errorf("%v (%v): the value is not what its events produce; the document was changed", r.Register, bank)
			}
		}
	}
	return nil
}
