package measurements

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/pcrs"
)

// required are the registers that every accepted boot has to match: those of image, command line and initrd, and those that
// show whether something was added to them. pinned registers have to match too, if the document predicts them: firmware, its configuration
// and keys. No policy can say otherwise (docs/protocol.md, the verifier's order).
var (
	required = []pcrs.Register{4, 9, 11, 12, 13}
	pinned   = []pcrs.Register{0, 2, 3, 6, 7, 14}
)

// RequiredRegisters returns the registers of a boot of the document that are judged whatever a policy says, ascending. A
// register that is no TPM's is judged if the document predicts it.
func RequiredRegisters(d Document) []pcrs.Register {
	registers, predicted := slices.Clone(required), d.Values(pcrs.SHA256)
	for _, r := range pinned {
		if _, ok := predicted[r]; ok {
			registers = append(registers, r)
		}
	}
	for r := range predicted {
		if !r.PCR() {
			registers = append(registers, r)
		}
	}
	slices.Sort(registers)
	return registers
}

// CheckRequired fails for a document that no boot can meet, because it does not predict what has to match whatever a policy says.
func CheckRequired(d Document) error {
	predicted := d.Values(pcrs.SHA256)
	for _, r := range required {
		if _, ok := predicted[r]; ok {
			continue
		}
		reason := "it says nothing of it"
		if i := slices.IndexFunc(d.NotPredicted, func(n NotPredicted) bool { return n.Register == r }); i >= 0 {
			reason = d.NotPredicted[i].Reason
		}
		return fmt.Errorf("no boot can meet the document: %v always has to match, and is not predicted: %s", r, reason)
	}
	return nil
}

// Judged returns the registers of a boot of the document that have to match by this policy, ascending: those that always have to,
// and those that the policy enforces.
func (p Policy) Judged(d Document) []pcrs.Register {
	registers := RequiredRegisters(d)
	if id, err := d.Digest(); err == nil {
		if i := slices.IndexFunc(p.Documents, func(a Accepted) bool { return a.Document == id }); i >= 0 {
			registers = append(registers, p.Documents[i].Enforce...)
		}
	}
	slices.Sort(registers)
	return registers
}

// Verdict says whether measured registers are an accepted boot. The zero value denies.
type Verdict struct {
	// Document is the accepted document that all judged registers match.
	Document DocumentID
	// SVN is the security version of that document, and Versions what it says of Kubernetes and etcd.
	SVN      uint32
	Versions hullmark.Versions
	// Matched are the registers that were compared and matched, ascending.
	Matched []pcrs.Register
	// Reasons say why the boot is denied, every one of them, document by document.
	Reasons []Reason

	accepted bool
}

// Accepted reports whether the boot is accepted.
func (v Verdict) Accepted() bool { return v.accepted }

// String says the verdict with every reason, one a line.
func (v Verdict) String() string {
	if v.accepted {
		return fmt.Sprintf("accepted: document %v", v.Document)
	}
	lines := []string{"denied"}
	for _, r := range v.Reasons {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, "\n")
}

// Reason is one reason against a boot.
type Reason struct {
	// Document is the document that was compared, zero if none was.
	Document DocumentID
	// Register is the register that differs; it has a meaning only with Expected.
	Register pcrs.Register
	// Expected and Measured are its values; Expected is empty for a reason about no register.
	Expected, Measured pcrs.Digest
	// Agreement says which builders signed, if that is the reason: all that had to match did. Nil otherwise.
	Agreement *Agreement
	// Text says the reason.
	Text string
}

// String says the reason in one line.
func (r Reason) String() string {
	if r.Document == (DocumentID{}) {
		return r.Text
	}
	return fmt.Sprintf("document %s…: %s", r.Document.String()[:12], r.Text)
}

// Judge is NewReferences(policy, documents).Judge(bank, measured), for whoever judges once.
func Judge(policy Policy, documents []Document, bank pcrs.Bank, measured pcrs.Values) Verdict {
	return NewReferences(policy, documents).Judge(bank, measured)
}

// References are documents together with what a policy says of each. Making them encodes and
// hashes every document; a verifier of many boots does that once. They do not follow later changes of either.
type References struct{ references []reference }

// reference is one document: either why it decides nothing, or which values are expected.
type reference struct {
	id       DocumentID
	svn      uint32
	versions hullmark.Versions
	against  *Reason
	// agreement is set if too few builders signed it.
	agreement *Agreement
	judged    []pcrs.Register
	expected  map[pcrs.Bank]pcrs.Values
}

// NewReferences prepares documents for being judged by. Those that the policy does not accept stay, as reasons to deny.
func NewReferences(policy Policy, documents []Document) References {
	var r References
	for _, d := range documents {
		r.references = append(r.references, newReference(policy, d))
	}
	return r
}

func newReference(policy Policy, d Document) reference {
	id, err := d.Digest()
	if err != nil {
		return reference{against: &Reason{Text: err.Error()}}
	}
	i := slices.IndexFunc(policy.Documents, func(a Accepted) bool { return a.Document == id })
	if i < 0 {
		return reference{against: &Reason{Document: id, Text: "the policy does not accept this document"}}
	}
	if d.SVN < policy.MinimumSVN {
		text := fmt.Sprintf("its security version is %d, the policy wants at least %d", d.SVN, policy.MinimumSVN)
		return reference{against: &Reason{Document: id, Text: text}}
	}
	r := reference{id: id, svn: d.SVN, versions: d.Image.Versions, judged: policy.Judged(d), expected: map[pcrs.Bank]pcrs.Values{}}
	agreement, err := policy.Agreement(d)
	if err != nil {
		return reference{against: &Reason{Document: id, Text: err.Error()}}
	}
	if !agreement.Met() {
		r.agreement = &agreement
	}
	for _, bank := range d.Banks() {
		r.expected[bank] = d.Values(bank)
		for register, value := range r.expected[bank] {
			r.expected[bank][register] = slices.Clone(value)
		}
	}
	return r
}

// Judge compares the measured registers, PCRs in bank and others in their only one, with every document that the
// policy accepts. All judged registers must match one and the same document:
// those of RequiredRegisters, and those that the policy enforces for it. PCR 8
// and 15 are not judged here: whoever verified the evidence has to.
func (r References) Judge(bank pcrs.Bank, measured pcrs.Values) Verdict {
	var denied Verdict
	for _, reference := range r.references {
		v := reference.judge(bank, measured)
		if v.accepted {
			return v
		}
		denied.Reasons = append(denied.Reasons, v.Reasons...)
	}
	if len(r.references) == 0 {
		denied.Reasons = []Reason{{Text: "no measurement document was given to compare with"}}
	}
	return denied
}

func (r reference) judge(bank pcrs.Bank, measured pcrs.Values) Verdict {
	if r.against != nil {
		return Verdict{Reasons: []Reason{*r.against}}
	}
	expected, predicted := r.expected[bank]
	if !predicted {
		return Verdict{Reasons: []Reason{{Document: r.id, Text: fmt.Sprintf("it has no values of bank %v, so registers of that bank decide nothing", bank)}}}
	}
	return r.compare(expected, measured)
}

func (r reference) compare(expected, measured pcrs.Values) Verdict {
	v := Verdict{Document: r.id, SVN: r.svn, Versions: r.versions}
	for _, register := range r.judged {
		want, predicted := expected[register]
		switch {
		case !predicted:
			text := fmt.Sprintf("%v has to match, but the document does not predict it", register)
			v.Reasons = append(v.Reasons, Reason{Document: r.id, Register: register, Text: text})
		case !want.Equal(measured[register]):
			v.Reasons = append(v.Reasons, mismatch(r.id, register, want, measured[register]))
		default:
			v.Matched = append(v.Matched, register)
		}
	}
	if len(v.Reasons) > 0 {
		return Verdict{Reasons: v.Reasons}
	}
	if r.agreement != nil {
		return Verdict{Reasons: []Reason{{Document: r.id, Agreement: r.agreement, Text: r.agreement.String()}}}
	}
	v.accepted = true
	return v
}

// Unattested says who signed a document of which too few builders did, and whether it is one.
func (r References) Unattested(id DocumentID) (Agreement, bool) {
	for _, reference := range r.references {
		if reference.id == id && reference.agreement != nil {
			return *reference.agreement, true
		}
	}
	return Agreement{}, false
}

func mismatch(id DocumentID, r pcrs.Register, want, got pcrs.Digest) Reason {
	text := fmt.Sprintf("%v: want %v, got %v", r, want, got)
	if len(got) == 0 {
		text = fmt.Sprintf("%v: want %v, but its value was not given", r, want)
	}
	return Reason{Document: id, Register: r, Expected: want, Measured: got, Text: text}
}
