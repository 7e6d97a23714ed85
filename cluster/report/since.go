package report

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/webpage"
	"github.com/hullmark/hullmark/measurements"
)

// The lengths of a value, which a node's name fits into, and of a release's name in a line, in characters: with two of them a line is one
// that the page shows whole.
const (
	maxShown   = 63
	maxRelease = 40
)

// ticking is how long something has lasted, or will: of what somebody should look at, it is another in each report.
var ticking = regexp.MustCompile(`\b([0-9]+h)?([0-9]+m)?[0-9]+s\b`)

// Since says what is another than in an earlier report of the same cluster, a line each. What the earlier one does not hold, because it was
// written before reports did, is not compared.
func (r Report) Since(earlier Report) []string {
	var s since
	s.changed("cluster root", earlier.Root.String(), r.Root.String())
	s.policy(earlier.Policy, r.Policy)
	compare(&s, earlier.Nodes, r.Nodes, list[Node, hullmark.EKID]{
		key:  func(n Node) hullmark.EKID { return n.EKID },
		what: Node.called, added: "new", gone: "gone", differ: s.node,
	})
	return s.lines
}

// since are the lines that say what changed.
type since struct{ lines []string }

func (s *since) says(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// changed tells a value that is another.
func (s *since) changed(what, before, now string) {
	if before != now {
		s.says("%s: %s, before %s", what, shown(now), shown(before))
	}
}

// shown is a value in a line, whoever wrote it: it leaves room for what else the line says.
func shown(text string) string { return cmp.Or(webpage.Line(text, maxShown), "none") }

// list says how the entries of a list are told from each other, what they are called, and what is said of those that are new or gone;
// differ tells what is another of one that was there.
type list[T any, K comparable] struct {
	key         func(T) K
	what        func(T) string
	added, gone string
	differ      func(before, now T)
}

// compare tells what changed in a list. One that is nil is not known.
func compare[T any, K comparable](s *since, before, now []T, of list[T, K]) {
	if before == nil || now == nil {
		return
	}
	was, is := map[K]T{}, map[K]bool{}
	for _, each := range before {
		was[of.key(each)] = each
	}
	for _, each := range now {
		is[of.key(each)] = true
		if old, known := was[of.key(each)]; known {
			of.differ(old, each)
		} else {
			s.says("%s: %s", of.what(each), of.added)
		}
	}
	for _, each := range before {
		if !is[of.key(each)] {
			s.says("%s: %s", of.what(each), of.gone)
		}
	}
}

// policy tells what changed in the policy.
func (s *since) policy(before, now Policy) {
	s.changed("policy version", fmt.Sprint(before.Version), fmt.Sprint(now.Version))
	s.changed("minimum security version", fmt.Sprint(before.MinimumSVN), fmt.Sprint(now.MinimumSVN))
	s.changed("rotation of keys", fmt.Sprint(before.Rotation), fmt.Sprint(now.Rotation))
	compare(s, before.Releases, now.Releases, list[Release, measurements.DocumentID]{
		key:  func(release Release) measurements.DocumentID { return release.Document },
		what: func(release Release) string { return "release " + titled(release.Name, release.Document) }, added: "accepted since", gone: "accepted no more",
		differ: func(old, release Release) {
			s.changed("release "+titled(release.Name, release.Document)+": refused", old.Against, release.Against)
		},
	})
	if before.Builders != nil && now.Builders != nil {
		s.changed("builders who have to sign a release", before.Demand(), now.Demand())
		compare(s, before.Builders.Of, now.Builders.Of, list[measurements.Builder, string]{
			key:  func(b measurements.Builder) string { return b.Name },
			what: func(b measurements.Builder) string { return "builder " + shown(b.Name) }, added: "new", gone: "gone",
			differ: func(old, b measurements.Builder) {
				if !bytes.Equal(old.Key, b.Key) {
					s.says("builder %s: another key", shown(b.Name))
				}
			},
		})
	}
	compare(s, before.Operators, now.Operators, list[hullmark.Operator, string]{
		key: func(o hullmark.Operator) string { return o.Name },
		what: func(o hullmark.Operator) string {
			return fmt.Sprintf("operator %s, who may %s", shown(o.Name), shown(hullmark.FormatPermissions(o.May)))
		}, added: "new", gone: "withdrawn",
		differ: func(old, o hullmark.Operator) {
			s.changed("operator "+shown(o.Name)+": may", hullmark.FormatPermissions(old.May), hullmark.FormatPermissions(o.May))
			if old.Key != o.Key {
				s.says("operator %s: another key", shown(o.Name))
			}
		},
	})
	s.rules(before, now)
}

// rules tells what changed in who is admitted.
func (s *since) rules(before, now Policy) {
	compare(s, before.MemberRules, now.MemberRules, list[measurements.Member, hullmark.EKID]{
		key: func(m measurements.Member) hullmark.EKID { return m.EKID },
		what: func(m measurements.Member) string {
			return fmt.Sprintf("member %s (%s, endorsement key %.12s…)", shown(m.Name), shown(string(m.Role)), m.EKID)
		}, added: "new", gone: "gone",
		differ: func(old, m measurements.Member) {
			what := "member " + shown(m.Name)
			s.changed(what+": name", old.Name, m.Name)
			s.changed(what+": role", string(old.Role), string(m.Role))
			s.changed(what+": pool", old.Pool, m.Pool)
			s.changed(what+": provider's ID", old.ProviderID, m.ProviderID)
		},
	})
	compare(s, before.GroupRules, now.GroupRules, list[GroupRule, string]{
		key:  func(g GroupRule) string { return g.Name },
		what: func(g GroupRule) string { return "group " + shown(g.Name) }, added: "new", gone: "gone",
		differ: func(old, g GroupRule) {
			what := "group " + shown(g.Name)
			s.changed(what+": pool", old.Pool, g.Pool)
			s.changed(what+": at most", fmt.Sprint(old.Max), fmt.Sprint(g.Max))
			if !old.Admits.Equal(g.Admits) {
				s.says("%s: admits others", what)
			}
		},
	})
	compare(s, before.Denied, now.Denied, list[hullmark.EKID, hullmark.EKID]{
		key:  func(ekid hullmark.EKID) hullmark.EKID { return ekid },
		what: func(ekid hullmark.EKID) string { return fmt.Sprintf("machine of endorsement key %.12s…", ekid) }, added: "denied by all groups", gone: "denied no more",
		differ: func(_, _ hullmark.EKID) {},
	})
}

// node tells what changed of a machine.
func (s *since) node(old, n Node) {
	what := n.called()
	s.changed(what+": name", old.Name, n.Name)
	s.changed(what+": role", string(old.Role), string(n.Role))
	s.changed(what+": state", string(old.State), string(n.State))
	if old.Document != n.Document {
		s.says("%s: release: %s, before %s", what, n.booted(), old.booted())
	}
	s.changed(what+": Kubernetes", old.Kubernetes.String(), n.Kubernetes.String())
	s.changed(what+": class", string(old.Platform.Trust), string(n.Platform.Trust))
	s.changed(what+": platform", old.Platform.Platform, n.Platform.Platform)
	s.changed(what+": firmware of its processor", old.Platform.TCB, n.Platform.TCB)
	s.changed(what+": disk", old.Disk.String(), n.Disk.String())
	s.changed(what+": slot", old.Slot, n.Slot)
	s.changed(what+": the other slot", old.Update, n.Update)
	s.changed(what+": keys of rotation", fmt.Sprint(old.Rotation), fmt.Sprint(n.Rotation))
	s.changed(what+": its kubelet's certificate ends", until(old.CertificateEnds), until(n.CertificateEnds))
	if n.Least < old.Least {
		s.says("%s: its epoch fell from %d to %d", what, old.Least, n.Least)
	}
	for _, text := range n.Attention {
		if !among(old.Attention, text) {
			s.says("%s: to look at: %s", what, text)
		}
	}
	for _, text := range old.Attention {
		if !among(n.Attention, text) {
			s.says("%s: to look at no more: %s", what, text)
		}
	}
}

// among reports whether one of these says the same, but for how long.
func among(all []string, text string) bool {
	text = ticking.ReplaceAllString(text, "")
	return slices.ContainsFunc(all, func(other string) bool { return ticking.ReplaceAllString(other, "") == text })
}

// called is what a line calls the machine.
func (n Node) called() string { return "node " + shown(cmp.Or(n.Name, "without a name")) }

// booted is the release that it booted.
func (n Node) booted() string {
	if n.Document == (measurements.DocumentID{}) {
		return "none"
	}
	return titled(cmp.Or(n.Release, n.Image), n.Document)
}

// titled is a release by its name and its document: two of one name are two.
func titled(name string, document measurements.DocumentID) string {
	return fmt.Sprintf("%s (document %.12s…)", webpage.Line(cmp.Or(name, "without a name"), maxRelease), document)
}

// until is when something ends; it is empty if it never began.
func until(ends time.Time) string {
	if ends.IsZero() {
		return ""
	}
	return stamp(ends)
}
