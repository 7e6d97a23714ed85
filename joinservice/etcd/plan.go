package etcd

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hullmark/hullmark"
)

// member is one member of etcd at the time of a look.
type member struct {
	id uint64
	// name is empty until the member has started for the first time.
	name string
	// addresses are those of its peer URLs.
	addresses []netip.Addr
	// learner reports that it has no vote.
	learner bool
	// answers reports that it serves.
	answers bool
}

// String names the member as etcdctl does.
func (m member) String() string {
	if m.name == "" {
		return fmt.Sprintf("%x (never started)", m.id)
	}
	return fmt.Sprintf("%x (%s)", m.id, m.name)
}

// inPlaceOf reports whether the member stands where a node is to join. Any
// learner that does not answer does, whosever it is: etcd takes no second one.
func (m member) inPlaceOf(name string, address netip.Addr) bool {
	return m.name == name || slices.Contains(m.addresses, address) || m.learner && !m.answers
}

// plan returns the members to remove before the node name at address joins.
// None is removed unless those that stay and answer are a majority both of the
// members that vote now and of those that stay: then every step between has one.
func plan(members []member, name string, address netip.Addr) (stale []member, err error) {
	var voters, stay, alive int
	for _, m := range members {
		replaced := m.inPlaceOf(name, address)
		if replaced && m.answers {
			return nil, stillThere(m, name, address)
		}
		if replaced {
			stale = append(stale, m)
		}
		if m.learner {
			continue
		}
		voters++
		if !replaced {
			stay++
		}
		if m.answers {
			alive++
		}
	}
	if len(stale) > 0 && (alive <= voters/2 || alive <= stay/2) {
		return nil, noQuorum(fmt.Sprintf("to remove the member %s of etcd would risk its quorum", stale[0]), fmt.Sprintf("%d of %d", alive, voters))
	}
	return stale, nil
}

// stillThere is the condition of a member that serves although its node is only about to join.
func stillThere(m member, name string, address netip.Addr) error {
	return &hullmark.Condition{
		Code: "etcd-member-alive", Title: "a running member of etcd has the name or the address of the node that is to join",
		Expected: fmt.Sprintf("no member %s or at %s", name, address), Got: fmt.Sprintf("%s at %v", m, m.addresses),
		Next: "give the machine another name or address, or stop the control plane that has them",
	}
}

// down refuses a join while a member that stays does not answer: etcd would not
// take another one, and the node would find that out after its fuse.
func down(members, stale []member) error {
	for _, m := range members {
		removed := slices.ContainsFunc(stale, func(s member) bool { return s.id == m.id })
		if !removed && !m.answers {
			return &hullmark.Condition{
				Code: "etcd-member-down", Title: fmt.Sprintf("the member %s of etcd does not answer, and etcd takes no other one meanwhile", m), Retry: true,
				Got: fmt.Sprint(m.addresses), Next: "start that control plane, let its machine join anew, or remove the member from etcd",
			}
		}
	}
	return nil
}
