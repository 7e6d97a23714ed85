package report

import (
	"bytes"
	"cmp"
	_ "embed" // the page's template
	"fmt"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/webpage"
	"github.com/hullmark/hullmark/measurements"
)

//go:embed page.html
var pageTemplate string

var pageLayout = webpage.MustParse(pageTemplate)

// page is all that page.html shows; its texts are clean and bounded.
type page struct {
	State, Mark, Headline, Lead string
	Facts, Operators, Denied    []fact
	Nodes                       []pageNode
	Releases                    []pageRelease
	Changes                     []string
	ChangesSince                string
}

// fact is a name and a value; Full is a digest of which Value is the beginning, and Link the name of the section that says more of it.
type fact struct{ Name, Value, Full, Link string }

// pageNode is one tile and one section. State is equal, differs, or not-covered for one that somebody should look at.
type pageNode struct {
	ID                  int
	State, Mark, Result string
	Name, Role          string
	Attention           []string
	Open                bool
	Facts               []fact
}

type pageRelease struct {
	ID                  string
	State, Mark, Result string
	Name, Image         string
	Facts               []fact
	Registers           []fact
}

// Page renders a report as one page that needs nothing else. earlier may be nil.
func Page(r Report, earlier *Report) ([]byte, error) {
	p := page{Facts: r.facts(), Operators: r.operators(), Denied: r.denied()}
	p.judge(r)
	for i, n := range r.Nodes {
		p.Nodes = append(p.Nodes, r.pageNode(i, n))
	}
	for i, release := range r.Policy.Releases {
		p.Releases = append(p.Releases, pageOf(i, release))
	}
	if earlier != nil {
		p.ChangesSince = stamp(earlier.Made)
		for _, line := range r.Since(*earlier) {
			p.Changes = append(p.Changes, webpage.Clean(line))
		}
	}
	var out bytes.Buffer
	if err := pageLayout.Execute(&out, p); err != nil {
		return nil, fmt.Errorf("write page: %w", err)
	}
	return out.Bytes(), nil
}

// judge says the whole in a sentence.
func (p *page) judge(r Report) {
	failed, attention := r.Failed()
	p.Lead = fmt.Sprintf("%d machines, as the cluster's records say it at %s, held to policy version %d.", len(r.Nodes), stamp(r.Made), r.Policy.Version)
	switch {
	case r.Unread != "":
		p.State, p.Mark, p.Headline = "differs", "≠", "Not every record can be read"
		p.Lead += " " + webpage.Clean(r.Unread)
	case failed > 0:
		p.State, p.Mark, p.Headline = "differs", "≠", fmt.Sprintf("%d of %d nodes are not what they should be", failed, len(r.Nodes))
	case attention > 0:
		p.State, p.Mark, p.Headline = "unproven", "?", fmt.Sprintf("%d of %d nodes want to be looked at", attention, len(r.Nodes))
	case len(r.Nodes) == 0:
		p.State, p.Mark, p.Headline = "unproven", "?", "The cluster keeps no record of any machine"
	default:
		p.State, p.Mark, p.Headline = "equal", "=", "Every node is what the policy accepts"
	}
}

func (r Report) facts() []fact {
	return []fact{
		{Name: "Policy", Value: fmt.Sprintf("version %d", r.Policy.Version)},
		{Name: "Releases from security version", Value: fmt.Sprint(r.Policy.MinimumSVN)},
		{Name: "Machines with a rule", Value: fmt.Sprint(r.Policy.Members)},
		{Name: "Groups", Value: fmt.Sprint(r.Policy.Groups)},
		{Name: "Builders who have to sign a release", Value: webpage.Clean(cmp.Or(r.Policy.Demand(), "none"))},
		{Name: "Rotation of control planes' keys", Value: fmt.Sprint(r.Policy.Rotation)},
		digest("Cluster root", r.Root.String()),
	}
}

// operators says what each may.
func (r Report) operators() (facts []fact) {
	for _, o := range r.Policy.Operators {
		facts = append(facts, fact{Name: webpage.Clean(o.Name), Value: webpage.Clean("may " + hullmark.FormatPermissions(o.May))})
	}
	return facts
}

// denied are the machines that no group admits, by their names if they have a record.
func (r Report) denied() (facts []fact) {
	names := map[hullmark.EKID]string{}
	for _, n := range r.Nodes {
		names[n.EKID] = n.Name
	}
	for _, ekid := range r.Policy.Denied {
		facts = append(facts, digest(webpage.Clean(cmp.Or(names[ekid], "without a record")), ekid.String()))
	}
	return facts
}

// releaseID names the section of one of the policy's releases; it is empty for a document that is none of them.
func (r Report) releaseID(document measurements.DocumentID) string {
	i := slices.IndexFunc(r.Policy.Releases, func(release Release) bool { return release.Document == document })
	if i < 0 {
		return ""
	}
	return sectionOf(i)
}

func sectionOf(release int) string { return fmt.Sprintf("release-%d", release) }

func (r Report) pageNode(i int, n Node) pageNode {
	p := pageNode{ID: i, State: "equal", Mark: "=", Result: webpage.Clean(string(n.State)), Name: webpage.Clean(cmp.Or(n.Name, "without a name")), Role: webpage.Clean(string(n.Role))}
	switch {
	case n.Failed:
		p.State, p.Mark, p.Open = "differs", "≠", true
	case len(n.Attention) > 0:
		p.State, p.Mark, p.Open = "not-covered", "?", true
	}
	for _, text := range n.Attention {
		p.Attention = append(p.Attention, webpage.Clean(text))
	}
	p.Facts = []fact{
		{Name: "Release", Value: webpage.Clean(cmp.Or(n.Release, "unknown")), Link: r.releaseID(n.Document)},
		{Name: "Image", Value: webpage.Clean(cmp.Or(n.Image, "unknown"))},
		{Name: "Kubernetes", Value: n.Kubernetes.String()},
		{Name: "Class of its evidence", Value: webpage.Clean(string(n.Platform.Trust))},
		{Name: "Which", Value: webpage.Clean(n.Platform.Trust.Promise())},
		{Name: "Platform", Value: webpage.Clean(cmp.Or(n.Platform.Platform, "unknown") + " " + n.Platform.Product + " " + n.Platform.TCB)},
		{Name: "Last word", Value: stamp(n.Seen)},
		{Name: "Epoch of its disk", Value: fmt.Sprintf("%d to %d", n.Least, n.Issued)},
		{Name: "Kubelet's certificate ends", Value: stamp(n.CertificateEnds)},
		{Name: "Slot", Value: webpage.Clean(cmp.Or(n.Slot, "unknown"))},
	}
	if n.Update != "" {
		p.Facts = append(p.Facts, fact{Name: "The other slot", Value: webpage.Clean(n.Update)})
	}
	if n.Disk != (hullmark.UUID{}) {
		p.Facts = append(p.Facts, fact{Name: "State disk", Value: n.Disk.String()})
	}
	if n.Role == hullmark.ControlPlane {
		p.Facts = append(p.Facts, fact{Name: "Keys of rotation", Value: fmt.Sprint(n.Rotation)})
	}
	p.Facts = append(p.Facts, digest("Endorsement key", n.EKID.String()), digest("Document", n.Document.String()))
	return p
}

func pageOf(i int, release Release) pageRelease {
	p := pageRelease{ID: sectionOf(i), State: "equal", Mark: "=", Result: "accepted", Name: webpage.Clean(cmp.Or(release.Name, "without a name")), Image: webpage.Clean(release.Image)}
	if release.Against != "" {
		p.State, p.Mark, p.Result = "differs", "≠", webpage.Clean(release.Against)
	}
	p.Facts = []fact{{Name: "Security version", Value: fmt.Sprint(release.SVN)}, digest("Document", release.Document.String())}
	if release.Builders != nil {
		p.Facts = append(p.Facts, fact{Name: "Builders", Value: webpage.Clean(release.Builders.String())})
	}
	for _, r := range release.Registers {
		p.Registers = append(p.Registers, digest(r.Register.String(), r.Value.String()))
	}
	return p
}

// digest is a fact with a digest, of which the beginning is shown.
func digest(name, full string) fact {
	return fact{Name: name, Value: fmt.Sprintf("%.16s…", full), Full: full}
}

// stamp shows a moment, or that there was none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}
