package measurements

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/pcrs"
)

// required are the registers that every accepted boot has to match, whatever a
// policy says: image, command line, initrd, and nothing added to them.
var required = []pcrs.Register{4, 9, 11, 12, 13}

// RequiredRegisters returns the registers that are judged whatever a policy says.
func RequiredRegisters() []pcrs.Register { return slices.Clone(required) }

// Verdict says whether measured registers are an accepted boot. The zero value denies.
type Verdict struct {
	// Document is the accepted document that all judged registers match.
	Document DocumentID
	// SVN is the security version of that document.
	SVN uint32
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

// Judge compares the measured registers of a bank with every document that the
// policy accepts. All judged registers must match one and the same document:
// those of RequiredRegisters, and those that the policy enforces for it. PCR 8
// and 15 are not judged here: whoever verified the evidence has to.
func Judge(policy Policy, documents []Document, bank pcrs.Bank, measured pcrs.Values) Verdict {
	var denied Verdict
	for _, d := range documents {
		id, err := d.Digest()
		if err != nil {
			denied.Reasons = append(denied.Reasons, Reason{Text: err.Error()})
			continue
		}
		v := judgeDocument(policy, id, d, bank, measured)
		if v.accepted {
			return v
		}
		denied.Reasons = append(denied.Reasons, v.Reasons...)
	}
	if len(documents) == 0 {
		denied.Reasons = []Reason{{Text: "no measurement document was given to compare with"}}
	}
	return denied
}

func judgeDocument(policy Policy, id DocumentID, d Document, bank pcrs.Bank, measured pcrs.Values) Verdict {
	deny := func(r Reason) Verdict {
		r.Document = id
		return Verdict{Reasons: []Reason{r}}
	}
	i := slices.IndexFunc(policy.Documents, func(a Accepted) bool { return a.Document == id })
	if i < 0 {
		return deny(Reason{Text: "the policy does not accept this document"})
	}
	if d.SVN < policy.MinimumSVN {
		return deny(Reason{Text: fmt.Sprintf("its security version is %d, the policy wants at least %d", d.SVN, policy.MinimumSVN)})
	}
	if !slices.Contains(pcrs.PredictedBanks(), bank) {
		return deny(Reason{Text: fmt.Sprintf("registers of bank %v decide nothing", bank)})
	}
	return compare(id, d, append(RequiredRegisters(), policy.Documents[i].Enforce...), bank, measured)
}

func compare(id DocumentID, d Document, judged []pcrs.Register, bank pcrs.Bank, measured pcrs.Values) Verdict {
	v := Verdict{Document: id, SVN: d.SVN}
	expected := d.Values(bank)
	slices.Sort(judged)
	for _, r := range judged {
		want, pinned := expected[r]
		switch {
		case !pinned:
			v.Reasons = append(v.Reasons, Reason{Document: id, Register: r, Text: fmt.Sprintf("%v has to match, but the document does not predict it", r)})
		case !want.Equal(measured[r]):
			v.Reasons = append(v.Reasons, mismatch(id, r, want, measured[r]))
		default:
			v.Matched = append(v.Matched, r)
		}
	}
	if len(v.Reasons) > 0 {
		return Verdict{Reasons: v.Reasons}
	}
	v.accepted = true
	return v
}

func mismatch(id DocumentID, r pcrs.Register, want, got pcrs.Digest) Reason {
	text := fmt.Sprintf("%v: want %v, got %v", r, want, got)
	if len(got) == 0 {
		text = fmt.Sprintf("%v: want %v, but it was not measured", r, want)
	}
	return Reason{Document: id, Register: r, Expected: want, Measured: got, Text: text}
}
