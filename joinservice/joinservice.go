// Package joinservice decides which claims earn which ticket. It is a library:
// the operator's CLI admits the first node with it, by the same rules as the
// service that admits every other.
package joinservice

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/kubeadm/step"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Authorizer admits machines. It performs no input or output and keeps no records:
// whoever runs it stores an Admission's record before its ticket is sent.
type Authorizer struct {
	// Root is the cluster's present one.
	Root hullmark.ClusterRoot
	// Policy is the one in force, whose signature was checked.
	Policy measurements.Policy
	// Documents are those that the policy accepts, as far as they are at hand.
	Documents []measurements.Document
	// Keys derives disk keys.
	Keys DiskKeys
	// Waiver is what the operator allows in this run.
	Waiver Waiver
	// Servers are the API servers of the other control planes, as far as they are known.
	Servers []step.Seen

	// references are made of Policy and Documents, by whoever judges many machines by them.
	references *measurements.References
	// groups are Policy's, likewise; an authorizer without them admits only machines that a rule names.
	groups []group
	// vouched is the voucher of the one machine that is judged, if it has one that the policy takes.
	vouched *vouched
}

// DiskKeys derives disk keys, and opens what the same master keys protect in pools; keys.Keyset is the one that has its master keys at
// hand. One that cannot be reached returns a *hullmark.Condition with Retry.
type DiskKeys interface {
	// Current returns the generation for new disks.
	Current() uint32
	// DiskKey derives the key of one node's one disk; first is the cluster's first root. A generation that the keeper lacks is
	// an error without a condition.
	DiskKey(generation uint32, first hullmark.ClusterRoot, owner hullmark.EKID, disk hullmark.UUID) (hullmark.Secret, error)
	// Decrypt returns the secret in a pool's file.
	Decrypt(first hullmark.ClusterRoot, text hullmark.EncryptedText) (hullmark.Secret, error)
}

// Admission is what an admitted machine gets, and what has to be recorded of it.
type Admission struct {
	// Member is the machine's rule: its role and name.
	Member measurements.Member
	// Group is the one that the machine has its rule from; nil if the rule is its own.
	Group *measurements.Group
	// Verdict names the document that the machine's registers match.
	Verdict measurements.Verdict
	// Ticket is for the machine, once Record is stored.
	Ticket hullmark.Ticket
	// Record replaces the machine's record.
	Record Record
}

// Admit decides over a machine that claims a ticket of the given kind. record
// is the machine's, or nil. Every refusal is a *hullmark.Condition.
func (d *Authorizer) Admit(kind hullmark.TicketKind, claims attest.Claims, record *Record) (Admission, error) {
	admission, err := d.identify(claims)
	if err != nil {
		return Admission{}, err
	}
	if err := d.checkSkew(kind, admission); err != nil {
		return Admission{}, err
	}
	if kind == hullmark.Init && record != nil && (claims.Disk.State == hullmark.DiskReady || record.Committed > 0) {
		record = record.withUnseenEpochs()
	}
	record = d.override(claims, record)
	next, formatAllowed, err := record.Issue(claims.Disk, d.waive(claims, record))
	if err != nil {
		return Admission{}, err
	}
	trust, err := d.keepTrust(claims, admission.Member, admission.Verdict.Document, record)
	if err != nil {
		return Admission{}, err
	}
	if next.Trust = trust; trust == hullmark.TrustTPM {
		next.Trust = ""
	}
	grant, err := d.grant(claims, next, formatAllowed)
	if err != nil {
		return Admission{}, err
	}
	admission.Ticket, admission.Record = hullmark.Ticket{Kind: kind, Disk: grant}, next
	return admission, nil
}

// identify decides whether a machine is wanted and booted what it should, and
// whether its disk is its own. The Admission has no ticket yet.
func (d *Authorizer) identify(claims attest.Claims) (Admission, error) {
	member, group, ok := d.member(claims)
	if !ok {
		return Admission{}, &hullmark.Condition{
			Code: "not-a-member", Step: "ATTEST", Title: "no membership rule admits this machine",
			Got: claims.EKID.String(), Next: "add a rule for its identity to the policy",
		}
	}
	verdict := d.Judge(claims)
	if !verdict.Accepted() {
		return Admission{}, d.mismatch(verdict)
	}
	for _, err := range []error{d.checkTrust(claims, member, verdict.Document), d.checkOwner(claims), d.checkGeneration(claims)} {
		if err != nil {
			return Admission{}, err
		}
	}
	return Admission{Member: member, Group: group, Verdict: verdict}, nil
}

// member returns the rule for a machine, and the group that it is of if it has none of its own.
func (d *Authorizer) member(claims attest.Claims) (_ measurements.Member, group *measurements.Group, ok bool) {
	if own, named := d.Policy.Member(claims.EKID); named {
		return own, nil, true
	}
	if v := d.vouched; v != nil && v.voucher.EKID == claims.EKID {
		return v.voucher.Member(v.group), &v.group, true
	}
	if group = groupOf(d.Policy, d.groups, claims.EKID, claims.EKCertificate); group == nil {
		return measurements.Member{}, nil, false
	}
	return group.Member(claims.EKID), group, true
}

// Judge compares what a machine proved with the documents that the policy accepts.
func (d *Authorizer) Judge(claims attest.Claims) measurements.Verdict {
	if d.references != nil {
		return d.references.Judge(pcrs.SHA256, Values(claims))
	}
	return measurements.Judge(d.Policy, d.Documents, pcrs.SHA256, Values(claims))
}

// Values returns the registers that a TPM quoted, and those beside them that the platform's hardware signed, in the form that
// predictions have.
func Values(claims attest.Claims) pcrs.Values {
	values := make(pcrs.Values, pcrs.RegisterCount)
	for r, value := range claims.Measured {
		if !r.PCR() { // Those are the quote's to say.
			values[r] = slices.Clone(value)
		}
	}
	for _, pcr := range attest.Quoted() {
		values[pcrs.Register(pcr)] = slices.Clone(claims.Registers[pcr][:])
	}
	return values
}

// checkOwner refuses a disk that was formatted for another machine, unless a signed rebind hands it over.
func (d *Authorizer) checkOwner(claims attest.Claims) error {
	if claims.Disk.State != hullmark.DiskReady || claims.Disk.Owner == claims.EKID {
		return nil
	}
	if slices.Contains(d.Policy.Rebinds, measurements.Rebind{Old: claims.Disk.Owner, New: claims.EKID}) {
		return nil
	}
	return &hullmark.Condition{
		Code: "disk-owner", Step: "ATTEST", Title: "the state disk was formatted for another machine",
		Expected: claims.EKID.String(), Got: claims.Disk.Owner.String(),
		Next: "attach the machine's own disk, or sign a rebind of this one",
	}
}

// override returns the record as the newest signed override of this disk sets
// it, if none as new was used on the record before.
func (d *Authorizer) override(claims attest.Claims, record *Record) *Record {
	if claims.Disk.State != hullmark.DiskReady {
		return record
	}
	var used uint64
	if record != nil {
		used = record.Serial
	}
	for _, o := range slices.Backward(d.Policy.Overrides) { // their serials ascend
		if o.Serial > used && o.EKID == claims.EKID && o.UUID == claims.Disk.UUID {
			next := &Record{Disk: o.UUID, Committed: o.Epoch, Issued: o.Epoch, Serial: o.Serial, Trust: class(claims)}
			if record != nil && record.Disk == o.UUID {
				next.Trust = record.Trust
			}
			return next
		}
	}
	return record
}

// waive adds to the operator's waiver the one that a signed reset gives. A
// reset is for another disk than the recorded one: with the same it would never be spent.
func (d *Authorizer) waive(claims attest.Claims, record *Record) Waiver {
	waiver := d.Waiver
	if record != nil && record.Disk != claims.Disk.UUID &&
		slices.Contains(d.Policy.Resets, measurements.Reset{EKID: claims.EKID, OldUUID: record.Disk}) {
		waiver.NewDisk = true
	}
	return waiver
}

// codeGeneration is of a disk whose generation of the keyset is not at hand.
const codeGeneration = "generation-missing"

// grant derives the disk's key: of the generation and owner that a ready disk
// was made for, and of the highest generation and this machine for a new one.
func (d *Authorizer) grant(claims attest.Claims, record Record, formatAllowed bool) (hullmark.DiskGrant, error) {
	generation, owner := d.Keys.Current(), claims.EKID
	if claims.Disk.State == hullmark.DiskReady {
		generation, owner = claims.Disk.Generation, claims.Disk.Owner
	}
	key, err := d.Keys.DiskKey(generation, d.Policy.First(d.Root), owner, claims.Disk.UUID)
	var unreachable *hullmark.Condition
	if errors.As(err, &unreachable) {
		return hullmark.DiskGrant{}, unreachable
	}
	if err != nil {
		return hullmark.DiskGrant{}, &hullmark.Condition{
			Code: codeGeneration, Step: "ATTEST", Title: err.Error(),
			Next: "ask a control-plane node that holds this generation",
		}
	}
	return hullmark.DiskGrant{
		Key: key, Generation: generation, UUID: claims.Disk.UUID, Owner: owner, FormatAllowed: formatAllowed,
		Epoch: hullmark.EpochWindow{Committed: record.Least(), Issued: record.Issued},
	}, nil
}

// mismatch is the condition of registers that no accepted document predicts;
// the first reason of the document that fits best stands for all, which the verdict lists.
func (d *Authorizer) mismatch(verdict measurements.Verdict) *hullmark.Condition {
	c := &hullmark.Condition{
		Code: CodeMismatch, Step: "ATTEST", Title: "the machine did not boot what the measurement document describes",
		Next: "compare the image, firmware and machine with the document (hullmark explain); a kind of machine that is new gets a document of its own (hullmark measure --log)",
	}
	switch {
	case len(d.Policy.Documents) == 0:
		c.Title = "the policy accepts no measurement document, so no machine"
	case len(verdict.Reasons) > 0:
		first := nearest(verdict.Reasons)
		if first.Agreement != nil {
			return tooFewBuilders("ATTEST", "the machine booted a release", first.Document, *first.Agreement)
		}
		c.Title = fmt.Sprintf("%s: %v", c.Title, first)
		c.Expected, c.Got = first.Expected.String(), first.Measured.String()
	}
	return c
}

// nearest returns the first reason against the document of which the fewest registers differ: what the machine is, but for what changed. A
// document that was not compared, as one that the policy does not accept, is nearer than none.
func nearest(reasons []measurements.Reason) measurements.Reason {
	against := map[measurements.DocumentID]int{}
	for _, r := range reasons {
		if r.Agreement != nil {
			continue // no register differs
		}
		if against[r.Document]++; len(r.Expected) == 0 {
			against[r.Document] += len(reasons)
		}
	}
	return slices.MinFunc(reasons, func(a, b measurements.Reason) int { return cmp.Compare(against[a.Document], against[b.Document]) })
}

// tooFewBuilders is the condition of a release that not enough of the policy's builders have signed. What is it says who came with it.
func tooFewBuilders(step, what string, document measurements.DocumentID, a measurements.Agreement) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "builders-too-few", Step: step, Title: what + " that too few builders have signed: " + a.String(), Retry: true,
		Expected: fmt.Sprintf("signatures of %d builders", a.Threshold), Got: fmt.Sprintf("%d for document %v", len(a.Signed), document),
		Next: "have a builder who is missing rebuild it (hullmark reproduce --attest), add what comes out (hullmark policy add document --attestation), then hullmark policy push",
	}
}

// CodeMismatch is the code of the condition that registers differ from every accepted document.
const CodeMismatch = "measurement-mismatch"

// FirstPolicy returns the policy under which an operator admits the first
// node: previous, which is the zero value before the first init, with the
// document accepted, as DefaultEnforced says, and the member's rule added. A
// policy that says all this already is returned unchanged. A document of a release
// that the policy has given up is an error.
func FirstPolicy(previous measurements.Policy, document measurements.Document, member measurements.Member) (measurements.Policy, error) {
	id, err := document.Digest()
	if err != nil {
		return measurements.Policy{}, fmt.Errorf("first policy: %w", err)
	}
	if document.SVN < previous.MinimumSVN {
		return measurements.Policy{}, fmt.Errorf("first policy: the document's security version is %d, and the cluster's policy accepts none below %d; take a later release", document.SVN, previous.MinimumSVN)
	}
	if i := slices.IndexFunc(previous.Members, func(m measurements.Member) bool { return m.Name == member.Name && m.EKID != member.EKID }); i >= 0 {
		return measurements.Policy{}, fmt.Errorf("first policy: by the policy %s is machine %s, and this one is %s; name the right machine, or give this one another name", member.Name, previous.Members[i].EKID, member.EKID)
	}
	if err := measurements.CheckRequired(document); err != nil {
		return measurements.Policy{}, fmt.Errorf("first policy: %w", err)
	}
	next := previous
	if !slices.ContainsFunc(previous.Documents, func(a measurements.Accepted) bool { return a.Document == id }) {
		accepted := measurements.Accepted{Document: id, Enforce: DefaultEnforced(document)}
		next.Documents = append(slices.Clone(previous.Documents), accepted)
	}
	if known, ok := previous.Member(member.EKID); ok && known.Role == member.Role && known.Name == member.Name {
		member.Pool, member.ProviderID = known.Pool, cmp.Or(member.ProviderID, known.ProviderID)
	}
	if !slices.Contains(previous.Members, member) {
		others := slices.DeleteFunc(slices.Clone(previous.Members), func(m measurements.Member) bool { return m.EKID == member.EKID })
		next.Members = append(others, member)
	}
	if len(next.Documents) != len(previous.Documents) || !slices.Equal(next.Members, previous.Members) {
		next.Version++
	}
	if _, err := next.Encode(); err != nil {
		return measurements.Policy{}, fmt.Errorf("first policy: %w", err)
	}
	return next, nil
}

// DefaultEnforced returns the registers that a policy enforces for a document
// beyond those that have to match anyway, unless its operator says otherwise: PCR 1, if the document predicts it.
// It holds the ACPI tables, whose code the kernel runs. PCR 5 is left out: a repartitioned disk moves it. So is a PCR 1 that holds what
// no other machine has, as firmware's boot entries do of network cards: the document would be for one machine alone.
func DefaultEnforced(document measurements.Document) []pcrs.Register {
	if _, ok := document.Values(pcrs.SHA256)[1]; ok && document.OwnHardware() == nil {
		return []pcrs.Register{1}
	}
	return nil
}
