//go:build explore

package explore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/explore/seam"
	"github.com/hullmark/hullmark/joinservice"
)

// Dial begins an exchange with one of the replicas.
func (r *run) Dial() (wire.JoinService_ExchangeClient, error) {
	return nodeStream{nodeEnd: r.open(r.replica(), release)}, nil
}

// DialEpoch begins a call for the next number with one of them.
func (r *run) DialEpoch() (wire.JoinService_EpochClient, error) {
	return epochNode{nodeEnd: r.open(r.replica(), epoch)}, nil
}

// Channel is the real channel's node end.
func (r *run) Channel() credentials.AuthInfo { return r.site.tls[0] }

// replica is the one that the machine reaches.
func (r *run) replica() int {
	machine := r.cur.machine
	return int(r.step("dial", "", func() []string { return r.site.dials[machine] })[0] - '0')
}

// release and epoch are what a replica is asked for.
func release(s *joinservice.Service, e *serviceEnd) { _ = s.Exchange(serviceStream{serviceEnd: e}) }
func epoch(s *joinservice.Service, e *serviceEnd)   { _ = s.Epoch(epochService{serviceEnd: e}) }

// open makes a channel and the replica's end of it, and returns the node's.
func (r *run) open(replica int, call func(*joinservice.Service, *serviceEnd)) *nodeEnd {
	p := r.cur
	c := &transit{machine: p.machine, past: r.w.machines[p.machine].past, workload: p.kind == "workload"}
	if p.transit != nil {
		p.transit.nodeGone = true
	}
	p.transit, p.level = c, r.w.levels[replica]
	s := &proc{kind: "service", machine: p.machine, replica: replica, transit: c}
	r.spawn(s, func(context.Context) { call(r.services[replica], &serviceEnd{run: r, c: c, p: s}) })
	return &nodeEnd{run: r, c: c, p: p}
}

// nodeEnd is the node's end of a channel.
type nodeEnd struct {
	run    *run
	c      *transit
	p      *proc
	closed bool
}

func (e *nodeEnd) Context() context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(7+e.p.machine)), Port: 1000}, AuthInfo: e.run.site.tls[0],
	})
}

func (e *nodeEnd) put(m proto.Message) {
	if !e.p.dead && !e.closed && !e.c.nodeGone {
		e.c.toService = append(e.c.toService, proto.Clone(m))
	}
}

func (e *nodeEnd) CloseSend() error {
	e.closed = true
	if !e.p.dead {
		e.c.nodeGone = true
	}
	return nil
}

// take waits for a message; the end comes when the service has gone, or by a fault.
func (e *nodeEnd) take() (proto.Message, error) {
	r, c := e.run, e.c
	if e.closed || e.p.dead || c.nodeGone {
		return nil, io.EOF // Whatever comes is not looked at.
	}
	came := r.step("receive", "", func() (options []string) {
		if len(c.toNode) > 0 {
			options = append(options, "take", "!again")
			if m, ok := c.toNode[0].(*wire.FromVerifier); ok && m.GetProceed() != nil && len(r.site.rotations) > 0 {
				options = append(options, forgeries...)
			}
		} else if c.serviceGone {
			options = append(options, "end")
		}
		return append(options, "!cut")
	})
	switch {
	case slices.Contains(forgeries, came):
		m := proto.Clone(c.toNode[0]).(*wire.FromVerifier)
		c.toNode = c.toNode[1:]
		r.forgeKeys(m.GetProceed(), came)
		e.p.forged = true
		return m, nil
	case came == "take", came == "!again":
		m := c.toNode[0]
		if came == "take" {
			c.toNode = c.toNode[1:]
		}
		r.told("%s", messageText(m))
		return proto.Clone(m), nil
	}
	if came != dead {
		c.nodeGone = true
	}
	return nil, io.EOF
}

// nodeStream is the node's end of an exchange.
type nodeStream struct {
	grpc.ClientStream
	*nodeEnd
}

func (s nodeStream) Context() context.Context { return s.nodeEnd.Context() }
func (s nodeStream) CloseSend() error         { return s.nodeEnd.CloseSend() }

func (s nodeStream) Send(m *wire.FromNode) error {
	if p := m.GetProgress(); p != nil && !p.GetReady() && p.GetFailed() == nil {
		if s.p.phase {
			return nil // The service records the first, and each 10 s another: what comes before makes no difference to it.
		}
		s.p.phase = true
	}
	s.put(m)
	return nil
}

func (s nodeStream) Recv() (*wire.FromVerifier, error) {
	m, err := s.take()
	if err != nil {
		return nil, err
	}
	from := m.(*wire.FromVerifier)
	if p := from.GetProceed(); p != nil && !p.GetJoinAnew() {
		s.run.noteMember()
	}
	return from, nil
}

// serviceEnd is the service's end of a channel.
type serviceEnd struct {
	run *run
	c   *transit
	p   *proc
}

func (e *serviceEnd) Context() context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1}, AuthInfo: e.run.site.tls[1]})
}

// gone says that nobody hears what is sent.
func (e *serviceEnd) gone() bool { return e.p.dead || e.c.serviceGone }

func (e *serviceEnd) put(m proto.Message) {
	if !e.gone() {
		e.c.toNode = append(e.c.toNode, proto.Clone(m))
	}
}

func (e *serviceEnd) take() (proto.Message, error) {
	r, c := e.run, e.c
	if e.gone() {
		return nil, io.EOF
	}
	came := r.step("receive", "", func() (options []string) {
		select {
		case <-e.p.over:
			options = append(options, "over")
		default:
		}
		switch {
		case len(c.toService) > 0:
			options = append(options, "take", "!again")
		case c.nodeGone:
			options = append(options, "end")
		}
		return append(options, "!cut")
	})
	switch came {
	case "take", "!again":
		m := c.toService[0]
		if came == "take" {
			c.toService = c.toService[1:]
		}
		r.told("%s", messageText(m))
		return proto.Clone(m), nil
	case "over":
		e.p.over = nil
		return nil, seam.ErrOver
	case "!cut":
		c.serviceGone = true
	}
	return nil, io.EOF
}

func (e *serviceEnd) SetHeader(metadata.MD) error  { return nil }
func (e *serviceEnd) SendHeader(metadata.MD) error { return nil }
func (e *serviceEnd) SetTrailer(metadata.MD)       {}
func (e *serviceEnd) SendMsg(any) error            { return errors.ErrUnsupported }
func (e *serviceEnd) RecvMsg(any) error            { return errors.ErrUnsupported }

// issue notes a number that is issued to the machine of a channel, for a disk.
func (e *serviceEnd) issue(disk hullmark.UUID, number uint64) {
	r := e.run
	what := fmt.Sprint(e.c.machine, " ", name(disk), " ", number)
	if r.w.issued[what] {
		r.violate("two tickets are one")
	}
	r.w.issued[what] = true
}

// serviceStream is the service's end of an exchange.
type serviceStream struct{ *serviceEnd }

func (s serviceStream) Send(m *wire.FromVerifier) error {
	if s.gone() {
		return nil
	}
	r := s.run
	if t := m.GetTicket(); t != nil {
		if s.c.past {
			r.violate("a second ticket is given in a boot that used one")
		}
		s.issue(hullmark.UUID(t.GetUuid()), t.GetIssued())
	}
	if m.GetProceed().GetJoinAnew() {
		r.givesUp(s.c.machine)
	}
	if id := tokenOf(m.GetProceed().GetKubeadmDocuments()); id != "" {
		if r.w.given[id] {
			r.violate("a token is given twice")
		}
		r.w.given[id] = true
	}
	s.put(m)
	return nil
}

func (s serviceStream) Recv() (*wire.FromNode, error) {
	m, err := s.take()
	if err != nil {
		return nil, err
	}
	return m.(*wire.FromNode), nil
}

func (r *run) Watch(_ context.Context, over <-chan struct{}) { r.cur.over = over }
