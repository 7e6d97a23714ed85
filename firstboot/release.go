package firstboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
)

// maxStreams bounds what one connection asks at once, maxConnections how many
// there are, those included that have not shown who they are.
const (
	maxStreams     = 8
	maxConnections = 64
)

// Time limits of an exchange.
const (
	callTimeout    = 15 * time.Second // until the operator says what it wants
	ticketTimeout  = 15 * time.Second // from M1 to M4, without the node's own work
	proceedTimeout = 5 * time.Minute
	// handshakeTimeout bounds how long a stranger holds a connection, stopTimeout how long an answer may delay a restart.
	handshakeTimeout = 10 * time.Second
	stopTimeout      = 10 * time.Second
)

// serve waits for the operator. It returns when ctx ends or the machine is to restart.
func (a *Agent) serve(ctx context.Context) error {
	tls, err := attest.NodeConfig(a.config.ClusterRoot)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", a.Listen)
	if err != nil {
		return fmt.Errorf("wait for the operator: %w", err)
	}
	return a.serveOn(ctx, listener, credentials.NewTLS(tls))
}

func (a *Agent) serveOn(ctx context.Context, listener net.Listener, creds credentials.TransportCredentials) error {
	server := grpc.NewServer(grpc.Creds(creds), grpc.MaxRecvMsgSize(wire.MaxFromVerifier),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(handshakeTimeout))
	node := &nodeServer{agent: a, over: make(chan error, 1)}
	if a.ticketed {
		node.busy.Lock()
	}
	wire.RegisterNodeServer(server, node)
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(listener, maxConnections)) }()
	if a.ticketed {
		a.Status.Finish()
	} else {
		a.Status.Say("waiting for the operator on %s", listener.Addr())
	}
	select {
	case err := <-served:
		return err
	case err := <-node.over:
		// A reader that stands still must not keep the machine from restarting.
		defer time.AfterFunc(stopTimeout, server.Stop).Stop()
		server.GracefulStop()
		return err
	case <-ctx.Done():
		server.Stop()
		return ctx.Err()
	}
}

// nodeServer answers the operator. Everyone who gets here has shown a
// certificate of the cluster's root key in the handshake.
type nodeServer struct {
	wire.UnimplementedNodeServer
	agent *Agent
	// busy is held by the one exchange that runs, and for ever by the one that blew the fuse.
	busy sync.Mutex
	// over gets the error that makes the machine restart.
	over chan error
}

// Release runs one exchange.
func (n *nodeServer) Release(stream wire.Node_ReleaseServer) error {
	if !n.busy.TryLock() {
		return status.Error(codes.Unavailable, "the node is busy with another exchange or already has its ticket; ask for its status")
	}
	x := &exchange{agent: n.agent, stream: stream}
	err := x.run(stream.Context())
	switch {
	case errors.Is(err, errReboot):
		n.over <- err
	case x.fused:
		// Ready: the lock stays, because this boot has used its ticket.
	default:
		n.busy.Unlock()
	}
	if err == nil || errors.Is(err, errEnded) {
		return nil
	}
	return x.report(err)
}

// report tells the operator why the node stopped. The condition travels in a
// message, since a gRPC status is only text.
func (x *exchange) report(err error) error {
	condition := hullmark.AsCondition(err, StepAttest, "exchange-failed")
	message := &wire.FromNode{Message: &wire.FromNode_Progress{Progress: &wire.Progress{Failed: wire.FromCondition(condition)}}}
	if sendErr := x.stream.Send(message); sendErr != nil {
		return status.Error(codes.Aborted, condition.Error())
	}
	return nil
}

// Status returns the status document.
func (n *nodeServer) Status(context.Context, *wire.StatusRequest) (*wire.StatusReply, error) {
	return &wire.StatusReply{Json: n.agent.Status.Document()}, nil
}

// Journal streams the log of this boot.
func (n *nodeServer) Journal(_ *wire.JournalRequest, stream grpc.ServerStreamingServer[wire.JournalChunk]) error {
	if err := n.agent.Machine.Journal(stream.Context(), chunks{stream}); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// chunks sends what is written to it.
type chunks struct {
	stream grpc.ServerStreamingServer[wire.JournalChunk]
}

func (c chunks) Write(b []byte) (int, error) {
	return len(b), c.stream.Send(&wire.JournalChunk{Text: b})
}
