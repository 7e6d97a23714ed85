// Package etcd keeps the membership of a cluster's etcd free of members that
// are gone, so that a control plane can join in the place of one.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hullmark/hullmark"
)

// Limits of a look at the members.
const (
	// callTimeout bounds each call of the local member; without a quorum it answers none of these.
	callTimeout = 15 * time.Second
	// probeTimeout is how long a member has to say that it is there.
	probeTimeout = 5 * time.Second
	// ownTimeout bounds a question that the local member answers by itself; a node waits for its ticket meanwhile.
	ownTimeout = 2 * time.Second
	// maxMembers bounds the members that are looked at; etcd advises against more than seven.
	maxMembers = 32
	// maxAnswer bounds an answer: some hundred bytes for each of these. etcd's own client takes 2 GiB, and who asks need not trust
	// the member.
	maxAnswer = 64 << 10
)

// Members is the membership of one etcd.
type Members struct {
	// Endpoint is the URL of the local member, as which it serves clients.
	Endpoint string
	// TLS holds all members to the etcd CA, and brings a client certificate of it.
	TLS *tls.Config
}

// RemoveStale removes the members in whose place a node is to join: those that
// have its name or its address, and learners, none of which answers. It is
// called by whoever holds the cluster's one place for such a join, and before
// the node starts. It never risks the quorum. The error is a
// *hullmark.Condition: etcd-no-quorum or etcd-member-down, which pass, or
// etcd-member-alive, which does not by itself.
func (m *Members) RemoveStale(ctx context.Context, name string, address netip.Addr) error {
	client, err := m.connect(ctx, m.Endpoint)
	if err != nil {
		return unavailable(err)
	}
	defer client.Close()
	members, err := m.look(ctx, client)
	if err != nil {
		return err
	}
	stale, err := plan(members, name, address.Unmap())
	if err != nil {
		return err
	}
	for _, s := range stale {
		if err := remove(ctx, client, s); err != nil {
			return err
		}
	}
	return down(members, stale)
}

// AwaitsOnly reports whether the local member has no leader, and lacks only the member of the node of a name: these two are all that
// there are, and both vote. It is the local member's own word, by what it has applied, so it needs no quorum. Nothing is decided by
// one of such two that the other one has not stored.
func (m *Members) AwaitsOnly(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ownTimeout)
	defer cancel()
	client, err := m.connect(ctx, m.Endpoint)
	if err != nil {
		return false, err
	}
	defer client.Close()
	status, err := client.Status(ctx, m.Endpoint)
	if err != nil || status.Leader != 0 {
		return false, err
	}
	list, err := client.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return false, err
	}
	own, others := 0, 0
	for _, each := range list.Members {
		switch {
		case each.GetIsLearner():
		case each.GetID() == list.Header.GetMemberId():
			own++
		case each.GetName() == name:
			others++
		}
	}
	return len(list.Members) == 2 && own == 1 && others == 1, nil
}

// connect makes a client of one endpoint; nothing is dialled yet.
func (m *Members) connect(ctx context.Context, endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{endpoint}, TLS: m.TLS, DialTimeout: probeTimeout, Logger: zap.NewNop(), MaxCallRecvMsgSize: maxAnswer,
	})
}

// look lists the members, as a quorum of them knows them, and asks each whether it is there.
func (m *Members) look(ctx context.Context, client *clientv3.Client) ([]member, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	if len(list.Members) > maxMembers {
		return nil, fmt.Errorf("etcd has %d members, at most %d are looked at", len(list.Members), maxMembers)
	}
	members := make([]member, len(list.Members))
	var probes sync.WaitGroup
	for i, each := range list.Members {
		members[i] = memberOf(each)
		probes.Go(func() { members[i].answers = m.answers(ctx, each, list.Header.GetClusterId()) })
	}
	probes.Wait()
	return members, nil
}

// answers reports whether a member serves at one of its own URLs: that very member, not another in its place.
func (m *Members) answers(ctx context.Context, each *etcdserverpb.Member, cluster uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for _, endpoint := range each.GetClientURLs() {
		client, err := m.connect(ctx, endpoint)
		if err != nil {
			continue
		}
		status, err := client.Status(ctx, endpoint)
		_ = client.Close()
		if err == nil && status.Header.GetMemberId() == each.GetID() && status.Header.GetClusterId() == cluster {
			return true
		}
	}
	return false
}

// remove removes one member. That it is gone already is no error.
func remove(ctx context.Context, client *clientv3.Client, stale member) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := client.MemberRemove(ctx, stale.id)
	switch {
	case err == nil, errors.Is(err, rpctypes.ErrMemberNotFound):
		return nil
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return noQuorum("etcd itself refuses to remove the member "+stale.String(), err.Error())
	}
	return unavailable(err)
}

// unavailable is the condition of an etcd that does not answer; without a quorum it cannot.
func unavailable(err error) error {
	return noQuorum("etcd does not answer", err.Error())
}

func noQuorum(title, got string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "etcd-no-quorum", Title: title, Expected: "a majority of the voting members that answers", Got: got, Retry: true,
		Next: "start the control planes that are down; the node tries again by itself",
	}
}

// memberOf keeps of etcd's word on a member what a decision needs.
func memberOf(m *etcdserverpb.Member) member {
	out := member{id: m.GetID(), name: m.GetName(), learner: m.GetIsLearner()}
	for _, text := range m.GetPeerURLs() {
		if u, err := url.Parse(text); err == nil {
			// A name instead of an address is none that Hullmark made, and matches no node's.
			if address, err := netip.ParseAddr(u.Hostname()); err == nil {
				out.addresses = append(out.addresses, address.Unmap())
			}
		}
	}
	return out
}
