package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hullmark/hullmark"
)

// Member is one member of etcd, as a look found it.
type Member struct {
	// ID is the one that a removal names, and Name its node's; a member that has never started has none.
	ID   uint64
	Name string
	// Addresses are those of its peer URLs.
	Addresses []netip.Addr
	// Learner reports that it has no vote, Answers that it serves.
	Learner, Answers bool
}

// List returns the members as a quorum of them knows them, with what each says of itself. The error is the *hullmark.Condition
// etcd-no-quorum if the member that is asked does not answer, or has no quorum.
func (m *Members) List(ctx context.Context) ([]Member, error) {
	client, err := m.connect(ctx, m.Endpoint)
	if err != nil {
		return nil, unavailable(err)
	}
	defer client.Close()
	members, err := m.look(ctx, client)
	if err != nil {
		return nil, err
	}
	all := make([]Member, len(members))
	for i, each := range members {
		all[i] = Member{each.id, each.name, each.addresses, each.learner, each.answers}
	}
	return all, nil
}

// Leave removes one member, that still runs or not, at the request of whoever takes its machine away. It asks another member than that one
// if it can. A member that leads hands that over before. A member that is gone already is no error. The error is a *hullmark.Condition:
// etcd-no-quorum or etcd-member-down, and nothing was changed, but perhaps the leader.
func (m *Members) Leave(ctx context.Context, id uint64) error {
	return m.change(ctx, id, func(client *clientv3.Client, members []member, leaving member) error {
		if err := mayLeave(members, leaving); err != nil {
			return err
		}
		if !leaving.answers || leaving.learner {
			return nil
		}
		return m.handOver(ctx, client, members, id)
	})
}

// RemoveSilent removes one member that is nobody's, unless it answers now. That others are down does not keep it: to remove one that is
// down takes nothing from the quorum of those that are there, which etcd itself still insists on. A member that is gone already is no
// error.
func (m *Members) RemoveSilent(ctx context.Context, id uint64) error {
	return m.change(ctx, id, func(_ *clientv3.Client, members []member, leaving member) error {
		return mayDrop(members, leaving)
	})
}

// change looks at the members, and removes one of them once prepare has agreed.
func (m *Members) change(ctx context.Context, id uint64, prepare func(*clientv3.Client, []member, member) error) error {
	client, err := m.connect(ctx, m.Endpoint)
	if err != nil {
		return unavailable(err)
	}
	defer client.Close()
	members, err := m.look(ctx, client)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(members, func(each member) bool { return each.id == id })
	if i < 0 {
		return nil
	}
	if err := prepare(client, members, members[i]); err != nil {
		return err
	}
	return remove(ctx, client, members[i])
}

// mayDrop refuses to remove a member that answers, and any as long as no majority of those that vote does.
func mayDrop(members []member, leaving member) error {
	if leaving.answers {
		// It is not asked again by way of another member, to which it may be silent.
		return &hullmark.Condition{
			Code: "etcd-member-alive", Title: fmt.Sprintf("the member %s of etcd answers, and is not removed", leaving),
			Got: fmt.Sprint(leaving.addresses), Next: "stop that control plane, if it is to go",
		}
	}
	voters, alive := 0, 0
	for _, m := range members {
		if m.learner {
			continue
		}
		voters++
		if m.answers {
			alive++
		}
	}
	if alive <= voters/2 {
		return noQuorum(fmt.Sprintf("to remove the member %s of etcd would risk its quorum", leaving), fmt.Sprintf("%d of %d", alive, voters))
	}
	return nil
}

// mayLeave refuses to remove a member unless all others answer, of those that vote, and are a majority both before and after: as many as
// there have to be when this one is gone before it is removed.
func mayLeave(members []member, leaving member) error {
	if leaving.learner {
		return nil
	}
	rest := 0
	for _, m := range members {
		if m.id == leaving.id || m.learner {
			continue
		}
		if !m.answers {
			return &hullmark.Condition{
				Code: "etcd-member-down", Title: fmt.Sprintf("the member %s of etcd does not answer, and another one is to be removed", m), Retry: true,
				Got: fmt.Sprint(m.addresses), Next: "start that control plane again, or remove that one first",
			}
		}
		rest++
	}
	if rest == 0 {
		return &hullmark.Condition{
			Code: "etcd-last-member", Title: fmt.Sprintf("%s is the last member of etcd that votes", leaving), Next: "keep it: all that the cluster is lies there",
		}
	}
	return nil
}

// handOver has another member lead if this one does.
func (m *Members) handOver(ctx context.Context, client *clientv3.Client, members []member, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := client.Status(ctx, m.Endpoint)
	if err != nil {
		return unavailable(err)
	}
	if status.Leader != id {
		return nil
	}
	to := slices.IndexFunc(members, func(each member) bool { return each.id != id && !each.learner && each.answers })
	leader := client
	if status.Header.GetMemberId() != id { // Only the leader hands over.
		if leader, err = m.connectTo(ctx, client, id); err != nil {
			return unavailable(err)
		}
		defer leader.Close()
	}
	if _, err := leader.MoveLeader(ctx, members[to].id); err != nil && !errors.Is(err, rpctypes.ErrNotLeader) {
		return unavailable(err)
	}
	return nil
}

// connectTo makes a client of one member, at its own URLs.
func (m *Members) connectTo(ctx context.Context, client *clientv3.Client, id uint64) (*clientv3.Client, error) {
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	for _, each := range list.Members {
		if each.GetID() == id && len(each.GetClientURLs()) > 0 {
			c, err := m.connect(ctx, each.GetClientURLs()[0])
			if err == nil {
				c.SetEndpoints(each.GetClientURLs()...)
			}
			return c, err
		}
	}
	return nil, fmt.Errorf("member %x has no URL", id)
}
