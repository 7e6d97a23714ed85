//go:build explore

package explore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/explore/seam"
)

// Dial begins an exchange with one of the replicas.
func (r *run) Dial() (wire.JoinService_ReleaseClient, error) {
	machine := r.cur.machine
	came := r.step("dial", "", func() []string { return r.site.dials[machine] })
	return r.open(int(came[0] - '0')), nil
}

// open makes a channel and the replica's end of it, and returns the node's.
func (r *run) open(replica int) *nodeStream {
	p := r.cur
	c := &channel{machine: p.machine, past: r.w.machines[p.machine].past, workload: p.kind == "workload"}
	p.channel = c
	s := &proc{kind: "service", machine: p.machine, replica: replica, channel: c}
	r.spawn(s, func(context.Context) {
		_ = r.services[replica].Release(&serviceStream{run: r, c: c, p: s})
	})
	return &nodeStream{run: r, c: c, p: p}
}

// The node's end of an exchange.
type nodeStream struct {
	grpc.ClientStream
	run    *run
	c      *channel
	p      *proc
	closed bool
}

func (s *nodeStream) Context() context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(7+s.p.machine)), Port: 1000}, AuthInfo: s.run.site.tls[0],
	})
}

func (s *nodeStream) Send(m *wire.FromNode) error {
	if p := m.GetProgress(); p != nil && !p.GetReady() && p.GetFailed() == nil {
		if s.p.phase {
			return nil // The service records the first, and each 10 s another: what comes before makes no difference to it.
		}
		s.p.phase = true
	}
	if !s.p.dead && !s.closed && !s.c.nodeGone {
		s.c.toService = append(s.c.toService, proto.Clone(m).(*wire.FromNode))
	}
	return nil
}

func (s *nodeStream) CloseSend() error {
	s.closed = true
	if !s.p.dead {
		s.c.nodeGone = true
	}
	return nil
}

// Recv waits for a message; the end comes when the service has gone, or by a fault.
func (s *nodeStream) Recv() (*wire.FromVerifier, error) {
	r, c := s.run, s.c
	if s.closed || s.p.dead || c.nodeGone {
		return nil, io.EOF // Whatever comes is not looked at.
	}
	came := r.step("receive", "", func() (options []string) {
		if len(c.toNode) > 0 {
			options = append(options, "take", "!again")
		} else if c.serviceGone {
			options = append(options, "end")
		}
		return append(options, "!cut")
	})
	switch came {
	case "take", "!again":
		m := c.toNode[0]
		if came == "take" {
			c.toNode = c.toNode[1:]
		}
		r.told("%s", verifierText(m))
		return proto.Clone(m).(*wire.FromVerifier), nil
	}
	if came != dead {
		c.nodeGone = true
	}
	return nil, io.EOF
}

func verifierText(m *wire.FromVerifier) string {
	switch {
	case m.GetChallenge() != nil:
		return "M2"
	case m.GetTicket() != nil:
		t, err := m.GetTicket().HullmarkTicket()
		must(err)
		return fmt.Sprintf("M4 %s %s %x %v e%d e%d", t.Kind, name(t.Disk.UUID), t.Disk.Owner[:2], t.Disk.FormatAllowed, t.Disk.Epoch.Committed, t.Disk.Epoch.Issued)
	case m.GetProceed() != nil:
		return fmt.Sprintf("M6 %s t%s", m.GetProceed().GetNodeName(), tokenOf(m.GetProceed().GetKubeadmDocuments()))
	}
	return "denied " + m.GetDenied().GetCode()
}

func nodeText(m *wire.FromNode) string {
	switch {
	case m.GetHello() != nil:
		h, err := wire.DecodeHello(m.GetHello())
		must(err)
		d, err := h.GetDisk().DiskClaim()
		must(err)
		return fmt.Sprintf("M1 %s %s %x", d.State, name(d.UUID), d.Owner[:2])
	case m.GetProof() != nil:
		return fmt.Sprintf("M3 %x", m.GetProof().GetSignature()[:4])
	case m.GetOpened() != nil:
		o := m.GetOpened()
		return fmt.Sprintf("M5 e%d e%d %v", o.GetIssued(), o.GetEpochRead(), o.GetJoined())
	}
	p := m.GetProgress()
	return fmt.Sprintf("M7 %s %v %s", p.GetPhase(), p.GetReady(), p.GetFailed().GetCode())
}

var tokenPattern = regexp.MustCompile(`([0-9]{6})\.[0-9a-f]{16}`)

// tokenOf returns the public half of the token in kubeadm documents.
func tokenOf(documents []byte) string {
	if m := tokenPattern.FindSubmatch(documents); m != nil {
		return string(m[1])
	}
	return ""
}

// The service's end of an exchange.
type serviceStream struct {
	run *run
	c   *channel
	p   *proc
}

func (s *serviceStream) Context() context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1}, AuthInfo: s.run.site.tls[1]})
}

func (s *serviceStream) Send(m *wire.FromVerifier) error {
	if s.p.dead || s.c.serviceGone {
		return nil
	}
	r, c := s.run, s.c
	if t := m.GetTicket(); t != nil {
		ticket, err := t.HullmarkTicket()
		must(err)
		what := fmt.Sprint(c.machine, " ", name(ticket.Disk.UUID), " ", ticket.Disk.Epoch.Issued)
		if c.past {
			r.violate("a second ticket is given in a boot that used one")
		}
		if r.w.issued[what] {
			r.violate("two tickets are one")
		}
		r.w.issued[what] = true
	}
	if id := tokenOf(m.GetProceed().GetKubeadmDocuments()); id != "" {
		if r.w.given[id] {
			r.violate("a token is given twice")
		}
		r.w.given[id] = true
	}
	c.toNode = append(c.toNode, proto.Clone(m).(*wire.FromVerifier))
	return nil
}

func (s *serviceStream) Recv() (*wire.FromNode, error) {
	r, c := s.run, s.c
	if s.p.dead || c.serviceGone {
		return nil, io.EOF
	}
	came := r.step("receive", "", func() (options []string) {
		select {
		case <-s.p.over:
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
		r.told("%s", nodeText(m))
		return proto.Clone(m).(*wire.FromNode), nil
	case "over":
		s.p.over = nil
		return nil, seam.ErrOver
	case "!cut":
		c.serviceGone = true
	}
	return nil, io.EOF
}

func (s *serviceStream) SetHeader(metadata.MD) error  { return nil }
func (s *serviceStream) SendHeader(metadata.MD) error { return nil }
func (s *serviceStream) SetTrailer(metadata.MD)       {}
func (s *serviceStream) SendMsg(any) error            { return errors.ErrUnsupported }
func (s *serviceStream) RecvMsg(any) error            { return errors.ErrUnsupported }

func (r *run) Watch(_ context.Context, over <-chan struct{}) { r.cur.over = over }
