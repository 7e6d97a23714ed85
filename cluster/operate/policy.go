package operate

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Accept is the policy's entry of a document: enforce are the registers that have to match beside those that always have. Nil takes
// what init takes, which is PCR 1 if the document predicts it; an empty list takes none. The error is ErrUsage. A document that does not
// predict what always has to match is an error: no machine could meet it.
func Accept(document measurements.Document, enforce []pcrs.Register) (measurements.Accepted, error) {
	id, err := document.Digest()
	if err != nil {
		return measurements.Accepted{}, err
	}
	if err := measurements.CheckRequired(document); err != nil {
		return measurements.Accepted{}, err
	}
	if enforce == nil {
		enforce = joinservice.DefaultEnforced(document)
	}
	required, predicted := measurements.RequiredRegisters(document), document.Values(pcrs.SHA256)
	for _, r := range enforce {
		if slices.Contains(required, r) {
			return measurements.Accepted{}, as(ErrUsage, fmt.Errorf("--enforce %d: it has to match anyway", r))
		}
		if _, ok := predicted[r]; !ok {
			return measurements.Accepted{}, as(ErrUsage, fmt.Errorf("--enforce %d: the document does not predict it", r))
		}
	}
	return measurements.Accepted{Document: id, Enforce: enforce}, nil
}

// AddDocument accepts a document, or changes what is enforced of one that is accepted: enforce is as Accept has it, but nil leaves what is
// enforced of an accepted one. Attestations are envelopes in which builders of the policy signed it; of the signatures that it has already,
// those stay of builders whom the policy names.
func AddDocument(document measurements.Document, enforce []pcrs.Register, attestations ...[]byte) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		accepted, err := Accept(document, enforce)
		if err != nil {
			return "", nil, err
		}
		if len(attestations) > 0 && policy.Builders.Threshold == 0 {
			return "", nil, as(ErrUsage, errors.New("the policy names no builders; next: name them (hullmark policy builders)"))
		}
		documents := slices.Clone(policy.Documents)
		i := slices.IndexFunc(documents, func(a measurements.Accepted) bool { return a.Document == accepted.Document })
		if i < 0 {
			i, documents = len(documents), append(documents, accepted)
		}
		if enforce == nil {
			accepted.Enforce = documents[i].Enforce
		}
		documents[i].Enforce, policy.Documents = accepted.Enforce, documents
		said := fmt.Sprintf("document %s (%s) accepted, %s", accepted.Document, imageName(document), Terms(document, accepted))
		if policy.Builders.Threshold == 0 {
			return said, []measurements.Document{document}, nil
		}
		agreement, err := addSignatures(policy, &documents[i], document, attestations)
		if err != nil {
			return "", nil, err
		}
		return said + "\nbuilders: " + agreement.String(), []measurements.Document{document}, nil
	}
}

// addSignatures puts those of the policy's builders into its entry of a document, and says who has signed it by then.
func addSignatures(policy *measurements.Policy, entry *measurements.Accepted, document measurements.Document, attestations [][]byte) (_ measurements.Agreement, err error) {
	signatures := slices.Clone(entry.Signatures)
	for _, attestation := range attestations {
		made, err := policy.Builders.Signatures(attestation, document)
		if err != nil {
			return measurements.Agreement{}, err
		}
		signatures = append(signatures, made...)
	}
	if entry.Signatures, err = policy.Builders.Keep(document, signatures); err != nil {
		return measurements.Agreement{}, err
	}
	return policy.Agreement(document)
}

// SetBuilders says who has to have signed each release. The zero value demands nobody. Signatures that are there stay until
// their document is added again.
func SetBuilders(builders measurements.Builders) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		policy.Builders = builders
		if builders.Threshold == 0 && len(builders.Of) == 0 {
			return "no builder has to sign a release", nil, nil
		}
		if err := builders.Check(); err != nil {
			return "", nil, as(ErrUsage, err)
		}
		return fmt.Sprintf("%d of %d builders have to sign a release", builders.Threshold, len(builders.Of)), nil, nil
	}
}

// Terms says what has to match of a document's boots, what does not although it is predicted, what is not predicted, with the reason, and
// what runs before the image by the word of a log.
func Terms(document measurements.Document, accepted measurements.Accepted) string {
	lines := []string{"enforced: " + Enforced(document, accepted) + "; and of each node its configuration (8), and that it has no ticket yet (15)"}
	predicted := document.Values(pcrs.SHA256)
	for _, r := range measurements.Enforceable() {
		if _, ok := predicted[r]; ok && !slices.Contains(accepted.Enforce, r) {
			why := ""
			if own := document.OwnHardware(); r == 1 && own != nil {
				why = fmt.Sprintf(" of this machine alone: it holds %q", own[0])
			}
			lines = append(lines, fmt.Sprintf("not enforced: %v, which the document predicts%s (--enforce %d)", r, why, r))
		}
	}
	for r := range pcrs.Register(15) {
		if _, ok := predicted[r]; !ok && r != 8 && r != 10 {
			lines = append(lines, fmt.Sprintf("open: %v: %s", r, whyOpen(document, r)))
		}
	}
	for _, u := range document.NotPredicted {
		if !u.Register.PCR() {
			lines = append(lines, fmt.Sprintf("open: %v: %s", u.Register, u.Reason))
		}
	}
	return strings.Join(append(lines, learnedPrograms(document)...), "\n")
}

// whyOpen is what a document says of a register that it does not predict.
func whyOpen(document measurements.Document, r pcrs.Register) string {
	i := slices.IndexFunc(document.NotPredicted, func(u measurements.NotPredicted) bool { return u.Register == r })
	if i < 0 {
		return "the document says nothing of it"
	}
	return document.NotPredicted[i].Reason
}

// learnedPrograms says what a log alone has in PCR 4 beside the steps of the boot, which are words: what runs before the image, and no
// image and no file vouches for it.
func learnedPrograms(document measurements.Document) (lines []string) {
	for _, register := range document.Registers {
		for _, e := range register.Events {
			step := e.Type == pcrs.EvSeparator || e.Type == pcrs.EvEFIAction && !strings.ContainsFunc(e.Source.Name, func(r rune) bool { return !unicode.IsPrint(r) })
			if register.Register == 4 && e.Origin == pcrs.Learned && !step {
				lines = append(lines, fmt.Sprintf("learned: PCR 4 holds %s (%v, %v), which the log says is the firmware's own", e.Source, e.Type, e.Digests[pcrs.SHA256]))
			}
		}
	}
	return lines
}

// Enforced lists all registers that have to match, for people: those that code requires of a document's boots, and the enforced ones.
func Enforced(document measurements.Document, accepted measurements.Accepted) string {
	registers := slices.Concat(measurements.RequiredRegisters(document), accepted.Enforce)
	slices.Sort(registers)
	var words []string
	for _, r := range registers {
		word := strconv.Itoa(int(r))
		if !r.PCR() {
			word = r.String()
		}
		words = append(words, word)
	}
	return strings.Join(words, ",")
}

// AddMember admits a machine that no rule names yet.
func AddMember(member measurements.Member) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		for _, m := range policy.Members {
			if m.EKID == member.EKID || m.Name == member.Name {
				return "", nil, fmt.Errorf("the policy has a rule for %s (%s, %s) already; to replace it, remove that first (hullmark policy remove member %s)", m.Name, m.Role, m.EKID, m.Name)
			}
		}
		policy.Members = append(slices.Clone(policy.Members), member)
		return fmt.Sprintf("member %s added: %s, %s", member.Name, member.Role, member.EKID), nil, nil
	}
}

// AddGroup admits machines that somebody vouches for; a group that is there is never changed in passing.
func AddGroup(rule measurements.Group) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if slices.ContainsFunc(policy.Groups, func(g measurements.Group) bool { return g.Name == rule.Name }) {
			return "", nil, fmt.Errorf("the policy has a group %s already; to replace it, remove that first (hullmark policy remove group %s)", rule.Name, rule.Name)
		}
		policy.Groups = append(slices.Clone(policy.Groups), rule)
		if len(rule.Enrollers) > 0 {
			return fmt.Sprintf("group %s added: %d workers at most, by vouchers of %s", rule.Name, rule.Max, AuthoritiesOf(rule)), nil, nil
		}
		return fmt.Sprintf("group %s added: %d workers at most, with %s, by %s", rule.Name, rule.Max, SubjectOf(rule), AuthoritiesOf(rule)), nil, nil
	}
}

// SubjectOf is what a group asks of the subject of a certificate, for people.
func SubjectOf(g measurements.Group) string {
	var words []string
	for _, a := range g.Subject {
		words = append(words, a.Type+"="+a.Value)
	}
	return strings.Join(words, ", ")
}

// AuthoritiesOf names the CAs of a group, or its enrollers' keys, for people. Providers give several CAs the same name, so their
// digests are what tells them apart.
func AuthoritiesOf(g measurements.Group) string {
	var words []string
	for _, der := range g.Authorities {
		words = append(words, describeCA(der))
	}
	for _, der := range g.Roots {
		words = append(words, "CAs below "+describeCA(der))
	}
	for _, key := range g.Enrollers {
		words = append(words, fmt.Sprintf("enroller %x", key))
	}
	return strings.Join(words, " or ")
}

// describeCA names a CA by what its certificate says, by its digest, and by the maker of TPMs that it is known to be of.
func describeCA(der []byte) string {
	name, whose := "no certificate", ""
	if certificate, err := x509.ParseCertificate(der); err == nil {
		name = certificate.Subject.String()
		if known, ok := ekcert.Find(certificate); ok {
			whose = ", known as " + known.Maker + "'s"
		}
	}
	return fmt.Sprintf("%s (SHA-256 %x%s)", name, sha256.Sum256(der), whose)
}

// RemoveDocument accepts the document of a digest no more.
func RemoveDocument(digest string) Edit {
	return removal("document "+digest, "", func(policy *measurements.Policy) string {
		policy.Documents = slices.DeleteFunc(slices.Clone(policy.Documents), func(a measurements.Accepted) bool { return a.Document.String() == digest })
		return "document " + digest + " is accepted no more"
	})
}

// RemoveMember admits the machine of a node's name, or of an EKID, no more, and puts it on the deny list of all groups.
func RemoveMember(which string) Edit {
	const unnamed = ", and a machine of a group is given by its EKID (hullmark node list -o json)"
	return removal("member "+which, unnamed, func(policy *measurements.Policy) string {
		for _, m := range policy.Members {
			if m.Name == which || m.EKID.String() == which {
				*policy = policy.Without(m.EKID)
				return "member " + m.Name + " is admitted no more"
			}
		}
		if ekid, err := hullmark.ParseEKID(which); err == nil {
			*policy = policy.Without(ekid)
		}
		return "no rule named the machine " + which + "; it is on the deny list of all groups now"
	})
}

// RemoveGroup admits machines of a group no more.
func RemoveGroup(name string) Edit {
	return removal("group "+name, "", func(policy *measurements.Policy) string {
		policy.Groups = slices.DeleteFunc(slices.Clone(policy.Groups), func(g measurements.Group) bool { return g.Name == name })
		return "machines of group " + name + " are admitted no more"
	})
}

// removal takes something out of the policy and says so; it fails if it was not there, and unnamed ends that error.
func removal(what, unnamed string, remove func(policy *measurements.Policy) string) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		before := *policy
		done := remove(policy)
		if len(policy.Documents) == len(before.Documents) && len(policy.Members) == len(before.Members) &&
			len(policy.Groups) == len(before.Groups) && len(policy.Denied) == len(before.Denied) {
			return "", nil, fmt.Errorf("policy remove: the policy names no %s; hullmark policy show lists what it names%s", what, unnamed)
		}
		return done, nil, nil
	}
}

// RaiseMinimum refuses all releases of a security version below svn. The error is ErrUsage if that is not above the present one.
func RaiseMinimum(svn uint32) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if svn <= policy.MinimumSVN {
			return "", nil, as(ErrUsage, fmt.Errorf("policy minimum-svn %d: it is %d already and is never lowered", svn, policy.MinimumSVN))
		}
		policy.MinimumSVN = svn
		return fmt.Sprintf("releases below security version %d are refused", svn), nil, nil
	}
}

// RevokeOperators refuses operators' certificates that were made until now. Nobody whom the policy names is left an operator: the API,
// which knows no version, would go on with them.
func RevokeOperators() Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		changed := "operators' certificates that were made until now are refused"
		if len(policy.Operators) > 0 {
			changed += ", and nobody is an operator by the policy any more"
		}
		policy.OperatorsFrom, policy.Operators = policy.Version+1, nil
		return changed, nil, nil
	}
}

// setEndpoint changes a policy's endpoint.
func setEndpoint(endpoint measurements.Endpoint) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if last := policy.Endpoint; last != nil && last.Address == endpoint.Address && slices.Equal(last.Names, endpoint.Names) {
			return "", nil, nil
		}
		policy.Endpoint = &endpoint
		return "the control plane's endpoint is to be " + endpoint.Address, nil, nil
	}
}

// MaxDemands bounds what ParsePlatforms reads, in bytes.
const MaxDemands = 512 << 10

// ParsePlatforms reads what a policy demands of platforms: {"trust":{…},"platforms":[…]}, as a policy has them.
func ParsePlatforms(text []byte) (least measurements.LeastTrust, platforms []measurements.Platform, err error) {
	var file struct {
		Trust     measurements.LeastTrust `json:"trust"`
		Platforms []measurements.Platform `json:"platforms"`
	}
	err = hullmark.DecodeStrict(text, MaxDemands, &file)
	return file.Trust, file.Platforms, err
}

// SetPlatforms replaces what is demanded of platforms, and the least classes.
func SetPlatforms(least measurements.LeastTrust, platforms []measurements.Platform) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		policy.Trust, policy.Platforms = least, platforms
		kinds := "none"
		if len(platforms) > 0 {
			names := make([]string, len(platforms))
			for i, p := range platforms {
				names[i] = p.Kind
			}
			kinds = strings.Join(names, ", ")
		}
		return fmt.Sprintf("evidence that counts: %s; least class of control planes: %s, of workers: %s",
			kinds, cmp.Or(string(least.ControlPlane), "any"), cmp.Or(string(least.Worker), "any")), nil, nil
	}
}
