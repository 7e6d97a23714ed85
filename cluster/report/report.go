// Package report says how a whole cluster is: each machine's release, class, epoch and certificates, held to the signed policy, and
// what changed since an earlier report. Records are what whoever administers Kubernetes can write: their texts are shown, and decide
// nothing.
package report

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Schema names the format of a Report.
const Schema = "hullmark.report/v1"

// Max is the largest report that is read, in bytes: 10,000 machines have some 1,000 each, and 200 as members of the policy.
const Max = 32 << 20

const (
	// silence is how long a machine may say nothing: agents of Ready nodes ask for their disk's next number every 12 minutes, and what
	// a machine does before that says how far it is.
	silence = time.Hour
	// endsSoon is how long before its end a certificate is told of. Kubelets renew theirs long before.
	endsSoon = 24 * time.Hour
)

// Report is how a cluster is at one time.
type Report struct {
	Schema string `json:"schema"`
	// Made is when the records were read, by this machine's clock.
	Made time.Time `json:"made"`
	// Root is the cluster's present root.
	Root   hullmark.ClusterRoot `json:"clusterRoot"`
	Policy Policy               `json:"policy"`
	// Nodes are by name.
	Nodes []Node `json:"nodes"`
	// Unread says which records could not be read.
	Unread string `json:"unread,omitempty"`
}

// Policy is what the report says of the signed policy. Of the lists behind Releases, and of Builders, nil says that the report was
// written before there were any in it: New makes all of them.
type Policy struct {
	Version    uint64    `json:"version"`
	MinimumSVN uint32    `json:"minimumSVN"`
	Rotation   uint64    `json:"rotation"`
	Members    int       `json:"members"`
	Groups     int       `json:"groups"`
	Releases   []Release `json:"releases"`
	// Builders say who has to have signed a release; a threshold of 0 demands nobody.
	Builders *measurements.Builders `json:"builders,omitempty"`
	// Operators are those whom it names.
	Operators []hullmark.Operator `json:"operators"`
	// MemberRules and GroupRules are its rules for machines, and Denied the machines that no group admits.
	MemberRules []measurements.Member `json:"memberRules"`
	GroupRules  []GroupRule           `json:"groupRules"`
	Denied      []hullmark.EKID       `json:"denied"`
}

// Demand says how many of which builders have to sign a release, such as "2 of us, them, others"; it is empty if nobody has to.
func (p Policy) Demand() string {
	if p.Builders == nil || p.Builders.Threshold == 0 {
		return ""
	}
	var names []string
	for _, b := range p.Builders.Of {
		names = append(names, b.Name)
	}
	return fmt.Sprintf("%d of %s", p.Builders.Threshold, strings.Join(names, ", "))
}

// GroupRule is what the report says of a group.
type GroupRule struct {
	Name string `json:"name"`
	Pool string `json:"pool,omitempty"`
	Max  int    `json:"max"`
	// Admits is the SHA-256 of what a machine has to show: another one is another rule.
	Admits pcrs.Digest `json:"admits"`
}

// Release is one that the policy names.
type Release struct {
	Document measurements.DocumentID `json:"document"`
	Image    string                  `json:"image"`
	Name     string                  `json:"release"`
	SVN      uint32                  `json:"svn"`
	// Registers are the values that its boots have to show, in SHA-256.
	Registers []Register `json:"registers"`
	// Builders says who of the policy's builders signed it, if it names any.
	Builders *measurements.Agreement `json:"builders,omitempty"`
	// Against says why it is not accepted although the policy names it.
	Against string `json:"against,omitempty"`
}

// Register is one that has to match.
type Register struct {
	Register pcrs.Register `json:"register"`
	Value    pcrs.Digest   `json:"value"`
}

// Node is one machine.
type Node struct {
	Name string        `json:"name"`
	EKID hullmark.EKID `json:"ekid"`
	Role hullmark.Role `json:"role"`
	// State and Seen are its last word and when that was.
	State joinservice.MachineState `json:"state"`
	Seen  time.Time                `json:"seen"`
	// Document is the one that its registers matched at its last ticket, Image and Release what people call it.
	Document   measurements.DocumentID `json:"document"`
	Image      string                  `json:"image,omitempty"`
	Release    string                  `json:"release,omitempty"`
	Kubernetes hullmark.Version        `json:"kubernetes,omitzero"`
	// Platform is what its evidence says that it runs on.
	Platform hullmark.PlatformClaims `json:"platform"`
	// Disk is its state disk; Least and Issued are the window of its epoch.
	Disk   hullmark.UUID `json:"disk"`
	Least  uint64        `json:"least"`
	Issued uint64        `json:"issued"`
	// CertificateEnds is when the last client certificate of its kubelet ends, zero if it never had one.
	CertificateEnds time.Time `json:"certificateEnds,omitzero"`
	// Rotation is that of a control plane's keys.
	Rotation uint64 `json:"rotation,omitempty"`
	// Slot is the slot that runs, and Update what the other one is at, empty if nothing is.
	Slot   string `json:"slot,omitempty"`
	Update string `json:"update,omitempty"`
	// Attention says what somebody should look at, the gravest first; empty if all is well.
	Attention []string `json:"attention"`
	// Failed says that the node is not what it should be: it stopped, or would not come back from its next boot.
	Failed bool `json:"failed"`
}

// New makes a report of what a cluster keeps of its machines. unread is the error about those that could not be read.
func New(c *cluster.Cluster, machines []operate.Machine, unread error, now time.Time) (Report, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return Report{}, err
	}
	r := Report{Schema: Schema, Made: now.UTC().Truncate(time.Second), Root: c.ID(), Nodes: []Node{}}
	if unread != nil {
		r.Unread = unread.Error()
	}
	if r.Policy, err = describe(c, policy); err != nil {
		return Report{}, err
	}
	rules := joinservice.NewRules(policy, c.ID())
	for _, m := range machines {
		r.Nodes = append(r.Nodes, r.node(policy, rules, m, now))
	}
	slices.SortStableFunc(r.Nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.EKID.String(), b.EKID.String()))
	})
	return r, nil
}

// describe holds each release that the policy names to the policy.
func describe(c *cluster.Cluster, policy measurements.Policy) (Policy, error) {
	p := Policy{
		Version: policy.Version, MinimumSVN: policy.MinimumSVN, Rotation: policy.Rotation, Members: len(policy.Members), Groups: len(policy.Groups), Releases: []Release{},
		Builders:  &measurements.Builders{Threshold: policy.Builders.Threshold, Of: append([]measurements.Builder{}, policy.Builders.Of...)},
		Operators: append([]hullmark.Operator{}, policy.Operators...), MemberRules: append([]measurements.Member{}, policy.Members...), GroupRules: []GroupRule{},
		Denied: append([]hullmark.EKID{}, policy.Denied...),
	}
	for _, g := range policy.Groups {
		rule, err := ruleOf(g)
		if err != nil {
			return p, err
		}
		p.GroupRules = append(p.GroupRules, rule)
	}
	images := operate.ImageNames(c)
	for _, a := range policy.Documents {
		release := Release{Document: a.Document, Image: images[a.Document], Registers: []Register{}}
		document, err := measurements.Parse(c.Documents[a.Document])
		if err != nil {
			release.Against = "its document cannot be read: " + err.Error()
			p.Releases = append(p.Releases, release)
			continue
		}
		release.Name, release.SVN = document.Name, document.SVN
		values := document.Values(pcrs.SHA256)
		for _, register := range policy.Judged(document) {
			release.Registers = append(release.Registers, Register{register, values[register]})
		}
		if document.SVN < policy.MinimumSVN {
			release.Against = fmt.Sprintf("its security version is %d, the policy wants at least %d", document.SVN, policy.MinimumSVN)
		}
		if policy.Builders.Threshold > 0 {
			agreement, err := policy.Agreement(document)
			if err != nil {
				return p, err
			}
			if release.Builders = &agreement; !agreement.Met() {
				release.Against = agreement.String()
			}
		}
		p.Releases = append(p.Releases, release)
	}
	return p, nil
}

// ruleOf says what a group is.
func ruleOf(g measurements.Group) (GroupRule, error) {
	rule := GroupRule{Name: g.Name, Pool: g.Pool, Max: g.Max}
	g.Name, g.Pool, g.Max = "", "", 0
	encoded, err := hullmark.CanonicalJSON(g)
	if err != nil {
		return GroupRule{}, fmt.Errorf("group %s: %w", rule.Name, err)
	}
	digest := sha256.Sum256(encoded)
	rule.Admits = digest[:]
	return rule, nil
}

// node says what a machine is, and what somebody should look at.
func (r Report) node(policy measurements.Policy, rules joinservice.Rules, m operate.Machine, now time.Time) Node {
	n := Node{
		Name: m.Name, EKID: m.EKID, Role: m.Role, State: m.State, Seen: m.Seen, Document: m.Document, Image: m.Image, Kubernetes: m.Kubernetes,
		Platform: m.Platform, Disk: m.Record.Disk, Least: m.Record.Least(), Issued: m.Record.Issued, CertificateEnds: m.CertificateEnds, Rotation: m.Rotation,
		Attention: []string{},
	}
	if u := m.Update; u != nil {
		if n.Slot = u.Running; u.Phase != hullmark.UpdateIdle {
			n.Update = string(u.Phase)
		}
	}
	if countedOnly(m) {
		n.judgeCounted(policy)
		return n
	}
	n.judgeState(m, now)
	n.judgeAdmission(policy, rules, m)
	n.judgeRelease(r.Policy.Releases)
	for _, least := range policy.Least(m.Role, m.Document) {
		if m.Record.Issued > 0 && !m.Platform.Trust.AtLeast(least) {
			n.fails("its evidence is of class %s, and the policy demands %s: it does not come back from its next boot", m.Platform.Trust, least)
		}
	}
	n.judgeCertificate(now)
	if m.OldRoot {
		n.notes("its configuration names an earlier root")
	}
	if m.Role == hullmark.ControlPlane && m.Record.Issued > 0 && m.Rotation < policy.Rotation {
		n.notes("it holds keys of rotation %d, and the policy says %d: recover it", m.Rotation, policy.Rotation)
	}
	if u := m.Update; u != nil && u.Running != u.Default {
		n.notes("slot %s is on trial", u.Running)
	}
	for _, refused := range m.Refused {
		n.notes("%v", refused)
	}
	return n
}

// fails says what makes a node one that is not what it should be.
func (n *Node) fails(format string, args ...any) {
	n.Failed = true
	n.notes(format, args...)
}

// notes says what somebody should look at.
func (n *Node) notes(format string, args ...any) {
	n.Attention = append(n.Attention, fmt.Sprintf(format, args...))
}

// countedOnly reports whether nothing is recorded of a machine but that a group counts it.
func countedOnly(m operate.Machine) bool {
	return m.State == "" && m.Seen.IsZero() && m.Document == (measurements.DocumentID{}) && m.Record == (joinservice.Record{})
}

func (n *Node) judgeCounted(policy measurements.Policy) {
	if policy.Denies(n.EKID) {
		n.fails("the policy denies it, and a group counts it")
		return
	}
	n.notes("a group counts it, and nothing is recorded of it: it gets its first ticket just now, or that was never recorded")
}

// judgeState says whether a machine stopped, waits, fell silent, or says what cannot be.
func (n *Node) judgeState(m operate.Machine, now time.Time) {
	switch m.State {
	case joinservice.MachineFailed, joinservice.MachineWaiting: // These may be silent.
		if m.Condition == nil {
			n.fails("it is %s, and did not say why", m.State)
			return
		}
		n.fails("%s: %s", m.Condition.Root().Code, m.Condition.Root().Title)
		return
	case joinservice.MachineAdmitted, joinservice.MachineJoining, joinservice.MachineReady:
	default:
		n.fails("its state, %q, is none that this release knows", m.State)
	}
	switch {
	case m.Seen.IsZero():
		n.fails("it is %s by its record, which does not say since when", m.State)
	case now.Sub(m.Seen) > silence:
		n.fails("it is %s by its last word, and has said nothing for %v", m.State, now.Sub(m.Seen).Round(time.Minute))
	case m.Seen.Sub(now) > silence:
		n.fails("its last word is of %v from now: a clock is wrong, or nobody would see it fall silent", m.Seen.Sub(now).Round(time.Minute))
	}
	if m.Document == (measurements.DocumentID{}) {
		n.fails("it is %s by its record, which names no document of what it booted", m.State)
	}
}

// judgeAdmission says whether the policy admits a machine as it was admitted.
func (n *Node) judgeAdmission(policy measurements.Policy, rules joinservice.Rules, m operate.Machine) {
	err := rules.Admits(m.Machine)
	_, named := policy.Member(m.EKID)
	switch {
	case policy.Denies(m.EKID) && named:
		n.notes("the policy denies it to all groups, and a rule of its own admits it")
	case policy.Denies(m.EKID):
		n.fails("the policy denies it: it does not come back from its next boot")
	}
	switch {
	case err == nil:
	case named:
		n.fails("%v", err)
	case !policy.Denies(m.EKID):
		n.fails("no rule and no group of the policy admits it: it does not come back from its next boot")
	}
}

// judgeRelease says whether the policy accepts what a machine booted last.
func (n *Node) judgeRelease(releases []Release) {
	if n.Document == (measurements.DocumentID{}) {
		return
	}
	i := slices.IndexFunc(releases, func(release Release) bool { return release.Document == n.Document })
	if i < 0 {
		n.fails("the policy does not accept what it booted any more: it does not come back from its next boot")
		return
	}
	if n.Release = releases[i].Name; releases[i].Against != "" {
		n.fails("the policy does not accept what it booted any more: %s", releases[i].Against)
	}
}

// judgeCertificate says whether its kubelet renews its certificate.
func (n *Node) judgeCertificate(now time.Time) {
	switch ends := n.CertificateEnds; {
	case ends.IsZero():
	case now.After(ends):
		n.fails("its kubelet's certificate ended %v ago", now.Sub(ends).Round(time.Minute))
	case ends.Sub(now) < endsSoon:
		n.notes("its kubelet's certificate ends in %v, and was not renewed", ends.Sub(now).Round(time.Minute))
	}
}

// Failed is how many nodes are not what they should be, and Attention how many others somebody should look at.
func (r Report) Failed() (failed, attention int) {
	for _, n := range r.Nodes {
		switch {
		case n.Failed:
			failed++
		case len(n.Attention) > 0:
			attention++
		}
	}
	return failed, attention
}

// Parse strictly reads a report that was written as JSON, of at most Max bytes.
func Parse(text []byte) (Report, error) {
	var r Report
	if err := hullmark.DecodeStrict(text, Max, &r); err != nil {
		return Report{}, fmt.Errorf("read report: %w", err)
	}
	if r.Schema != Schema {
		return Report{}, fmt.Errorf("read report: schema %.80q, want %q", r.Schema, Schema)
	}
	return r, nil
}
