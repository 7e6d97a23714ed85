package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/joinservice/etcd"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// strayWait is how long a member of etcd has to be seen silent, and nobody's, before it is removed: longer than a machine takes to restart,
// or from being added to its first start.
const strayWait = 10 * time.Minute

// stray is a member of etcd that is no Machine's: what a Machine left that somebody deleted by force, or that died on its way into etcd; or
// a machine that joined outside Cluster API.
type stray struct {
	etcd.Member
	// kept says why it is not removed, and what to do; empty if it is, at a time.
	kept string
	at   time.Time
}

func memberName(m etcd.Member) string {
	return fmt.Sprintf("%x (%s)", m.ID, orElse(m.Name, "never started"))
}

// problem says what a person has to know of it.
func (y stray) problem() error {
	if y.kept != "" {
		return fmt.Errorf("etcd has a member %s that is no Machine's: %s", memberName(y.Member), y.kept)
	}
	return fmt.Errorf("etcd has a member %s that is no Machine's, and silent: it is removed at %s if that stays so, and the Machines' own members answer and are a majority",
		memberName(y.Member), y.at.UTC().Format(time.RFC3339))
}

// memberOf returns a Machine's member of etcd: the one of its name, or at its address one that has never started, which has no name.
func memberOf(m *machine, members []etcd.Member) (member etcd.Member, ok bool) {
	i := slices.IndexFunc(members, func(each etcd.Member) bool { return each.Name == m.Name })
	if i < 0 {
		at := addressesOfMachine(m)
		i = slices.IndexFunc(members, func(each etcd.Member) bool {
			return each.Name == "" && slices.ContainsFunc(each.Addresses, func(a netip.Addr) bool { return slices.Contains(at, a) })
		})
	}
	if i < 0 {
		return etcd.Member{}, false
	}
	return members[i], true
}

// addressesOfMachine are those that its infrastructure reports, or reported.
func addressesOfMachine(m *machine) (all []netip.Addr) {
	var texts []string
	if m.infra != nil {
		texts = addressesOf(m.infra)
	}
	for _, each := range m.Status.Addresses {
		texts = append(texts, each.Address)
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// own reports which of the members are Machines'.
func (s *scope) own(members []etcd.Member) map[uint64]bool {
	own := map[uint64]bool{}
	for _, m := range s.machines {
		if member, ok := memberOf(m, members); ok {
			own[member.ID] = true
		}
	}
	return own
}

// lookAtStrays finds the members of etcd that are no Machine's, and says of each what becomes of it.
func (r *Reconciler) lookAtStrays(ctx context.Context, s *scope) error {
	own := s.own(s.etcd)
	var silent []uint64
	for _, member := range s.etcd {
		if own[member.ID] {
			continue
		}
		kept, err := r.whyKept(ctx, s, member)
		if err != nil {
			return err
		}
		if kept == "" {
			silent = append(silent, member.ID)
		}
		s.strays = append(s.strays, stray{Member: member, kept: kept})
		s.soon(s.retry)
	}
	since := r.silent.note(s.plane.UID, silent, r.now())
	for i := range s.strays {
		s.strays[i].at = since[s.strays[i].ID].Add(cmp.Or(r.strayWait, strayWait))
	}
	return nil
}

// whyKept says why a stray is not removed, whatever time passes, and what a person can do; empty if nothing of it is left.
func (r *Reconciler) whyKept(ctx context.Context, s *scope, member etcd.Member) (string, error) {
	node, hasNode := s.seen.Nodes[member.Name]
	switch {
	case slices.Contains(s.foreign, member.Name):
		return "a Machine of its name is not this control plane's: look at its labels and its owner", nil
	case member.Answers:
		return "it answers, so somebody's machine runs. " + endOutside(s, member.Name), nil
	case member.Name == "":
		return s.mayBeJoining(), nil
	case hasNode && node.Ready:
		return "its Node is Ready, so somebody's machine runs. " + endOutside(s, member.Name), nil
	case !namedBy(s.plane.Name, member.Name) && (hasNode || s.hasRecord(member.Name)):
		// It may only be switched off, and was never a Machine of this control plane, by its name.
		return "it does not answer: start its machine. If that is gone for good: " + endOutside(s, member.Name), nil
	}
	return r.objectNamed(ctx, s, member.Name)
}

// endOutside is what a person runs who ends a machine that joined outside Cluster API.
func endOutside(s *scope, name string) string {
	if name == "" {
		return "If it joined outside Cluster API: switch it off; its member is removed then"
	}
	return fmt.Sprintf("If it joined outside Cluster API: hullmark policy remove member %[1]s --cluster FILE && hullmark policy push --cluster FILE --server %[2]s, switch it off, "+
		"and hullmark node remove %[1]s --force --cluster FILE --server %[2]s; its member is removed then", name, s.server)
}

// mayBeJoining says whose a member may be that has never started. Each Machine is there before its machine boots, so that it is nobody's if
// all have joined.
func (s *scope) mayBeJoining() string {
	joining := slices.Clone(s.foreign)
	for _, m := range s.machines {
		named := slices.ContainsFunc(s.etcd, func(each etcd.Member) bool { return each.Name == m.Name })
		if _, ok := s.seen.Nodes[m.Name]; !ok || !named {
			joining = append(joining, m.Name)
		}
	}
	if len(joining) == 0 {
		return ""
	}
	return "it may be of Machine " + strings.Join(joining, " or ") + ", which has not joined: let it join, or delete it"
}

// hasRecord reports whether the join service keeps a machine of a name.
func (s *scope) hasRecord(name string) bool {
	for _, record := range s.seen.Records {
		if record.Name == name {
			return true
		}
	}
	return false
}

// objectNamed names what of a Machine is there although it is not seen as this control plane's: its labels or owner may have been changed,
// or only the Machine was deleted, and not what runs. It is looked for past all selectors.
func (r *Reconciler) objectNamed(ctx context.Context, s *scope, name string) (string, error) {
	for _, o := range []client.Object{&clusterv1.Machine{}, &bootstrapv1.HullmarkConfig{}} {
		err := r.Live.Get(ctx, client.ObjectKey{Namespace: s.plane.Namespace, Name: name}, o)
		if err == nil {
			return "a Machine or a HullmarkConfig of its name is there, and not seen as this control plane's: look at its labels and its owner, or delete it", nil
		}
		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("%T %s: %w", o, name, err)
		}
	}
	return "", nil
}

// removeStray removes a member of etcd that was nobody's, and silent, long enough. Etcd is looked at once more for it.
func (r *Reconciler) removeStray(ctx context.Context, s *scope) (acted bool, err error) {
	for _, y := range s.strays {
		if y.kept != "" || y.at.After(r.now()) || !s.ownMajority() {
			continue
		}
		if err := s.workload.RemoveStray(ctx, s.nodes(""), y.ID); err != nil {
			s.say(v1alpha1.EtcdClusterHealthyCondition, false, "NotHealthy", "etcd has a member %s that is no Machine's, and cannot be removed: %v", memberName(y.Member), err)
			continue
		}
		what := memberName(y.Member)
		if s.hasRecord(y.Name) { // Who deleted the Machine by force kept the cluster from forgetting it.
			what += fmt.Sprintf("; the cluster has its record still: hullmark node remove %s --force --cluster FILE --server %s", y.Name, s.server)
		}
		r.Events.Eventf(s.plane, nil, corev1.EventTypeWarning, "StrayMemberRemoved", "RemoveMember", "Etcd had a silent member that was no Machine's: %s", what)
		return true, nil
	}
	return false, nil
}

// ownMajority reports whether the Machines' own members that vote all answer, and are a majority of all that vote, the strays among them:
// so they are one without a stray, too.
func (s *scope) ownMajority() bool {
	own, voters, answering := s.own(s.etcd), 0, 0
	for _, m := range s.etcd {
		if m.Learner {
			continue
		}
		voters++
		if own[m.ID] && !m.Answers {
			return false
		}
		if own[m.ID] {
			answering++
		}
	}
	return answering > voters/2
}

// silences remembers since when members of etcd are seen silent and nobody's. It is kept in memory: another controller begins to count
// anew, which only makes a removal later.
type silences struct {
	mutex sync.Mutex
	seen  map[silence]span
}

// silence is one member's, of one control plane.
type silence struct {
	plane  types.UID
	member uint64
}

// span is from the first to the last look at it.
type span struct{ since, last time.Time }

// note notes which members are silent now, and returns since when each is. What was not looked at for long, as while the Cluster was
// paused or its API was down, counts anew.
func (s *silences) note(plane types.UID, now []uint64, at time.Time) map[uint64]time.Time {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	next := map[silence]span{}
	for key, each := range s.seen {
		if key.plane != plane && at.Sub(each.last) <= steady {
			next[key] = each
		}
	}
	since := map[uint64]time.Time{}
	for _, id := range now {
		key := silence{plane, id}
		each, ok := s.seen[key]
		if !ok || at.Sub(each.last) > steady {
			each.since = at
		}
		each.last = at
		next[key], since[id] = each, each.since
	}
	s.seen = next
	return since
}
