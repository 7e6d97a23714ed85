package firstboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/limit"
)

// maxStreams bounds what one connection asks at once, maxUnauthenticated the connections
// whose peers have not shown who they are.
const (
	maxStreams         = 8
	maxUnauthenticated = 64
)

const (
	// handshakeTimeout bounds how long an unauthenticated peer holds a connection, stopTimeout how long an answer may delay a restart.
	handshakeTimeout = 10 * time.Second
	stopTimeout      = 10 * time.Second
)

// serve waits for the operator and asks the join services. It returns when ctx ends or the machine is to restart.
func (a *Agent) serve(ctx context.Context) error {
	tls, err := channel.NodeTLS(a.config.ClusterRoot)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", a.Listen)
	if err != nil {
		return fmt.Errorf("wait for the operator: %w", err)
	}
	files, err := servicefiles.Listen(a.RunDir)
	if err != nil {
		return errors.Join(fmt.Errorf("wait for the join service: %w", err), listener.Close())
	}
	defer files.Close()
	go func() { _ = servicefiles.Serve(files, serviceFiles{a}) }()
	return a.serveOn(ctx, listener, credentials.NewTLS(tls))
}

func (a *Agent) serveOn(ctx context.Context, listener net.Listener, creds credentials.TransportCredentials) error {
	server := grpc.NewServer(grpc.Creds(limit.AuthenticatedByHandshake(creds)), grpc.MaxRecvMsgSize(wire.MaxFromVerifier),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(handshakeTimeout))
	wire.RegisterNodeServer(server, &nodeServer{agent: a})
	if a.over = make(chan error, 1); a.turn.isKept() {
		a.Status.Finish()
	} else {
		a.Status.Say("%s", a.waiting())
	}
	a.setUp = time.Since(a.online)
	served := make(chan error, 1)
	go func() { served <- server.Serve(limit.NewListener(listener, maxUnauthenticated)) }()
	go (advancer{a}).run(ctx)
	go (director{updater{a}}).run(ctx)
	stopDialling := (dialler{a}).start(ctx)
	defer stopDialling()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go (certificateWatch{a}).run(watching)
	go (forwardWatch{a}).run(watching)
	go (&upgrader{Agent: a}).run(watching)
	select {
	case err := <-served:
		return err
	case err := <-a.over:
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
}

// Exchange runs one exchange.
func (n *nodeServer) Exchange(stream wire.Node_ExchangeServer) error {
	if err := n.permitExchange(stream.Context()); err != nil {
		return err
	}
	if !n.agent.turn.take(stream.Context(), n.agent.Timing.Turn) {
		return status.Error(codes.Unavailable, "the node is busy with another exchange or already has its ticket; ask for its status")
	}
	c := &conversation{agent: n.agent, stream: stream}
	_ = c.exchange() // The status and the operator have the reason.
	return nil
}

// exchange runs one exchange, whose turn it is, and gives the turn back if the node may have another.
func (c *conversation) exchange() error {
	f, err := c.run(c.stream.Context())
	if f == nil { // The fuse is whole.
		c.agent.turn.giveBack()
	}
	if err != nil && !errors.Is(err, errEnded) {
		c.send(&wire.Progress{Failed: wire.FromCondition(hullmark.AsCondition(err, StepAttest, "exchange-failed"))})
	}
	c.hangUp()
	switch {
	case errors.Is(err, errReboot):
		c.agent.over <- err
	case err == nil && f.grant.Epoch.Unchecked:
		f.compareEpoch(context.WithoutCancel(c.stream.Context()))
	}
	return err
}

// waiting says what a node without a ticket does.
func (a *Agent) waiting() string {
	if n := len(a.config.Endpoints); n > 0 {
		return fmt.Sprintf("waiting for the operator on %s, and asking %d join services", a.Listen, n)
	}
	return "waiting for the operator on " + a.Listen
}

// Status returns the status document.
func (n *nodeServer) Status(ctx context.Context, _ *wire.StatusRequest) (*wire.StatusReply, error) {
	if err := n.agent.permit(ctx, channel.VerbStatus); err != nil {
		return nil, err
	}
	if links, _, err := n.agent.Machine.Links(); err == nil { // They are told of as well as they are known.
		n.agent.Status.Connected(links)
	}
	return &wire.StatusReply{Json: n.agent.Status.Document()}, nil
}

// Journal streams the log of this boot.
func (n *nodeServer) Journal(_ *wire.JournalRequest, stream grpc.ServerStreamingServer[wire.JournalChunk]) error {
	if err := n.agent.permit(stream.Context(), channel.VerbLogs); err != nil {
		return err
	}
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
