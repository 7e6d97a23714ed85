package operate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

const (
	// dialPause is how long is waited before a node that does not answer is dialled again.
	dialPause = 2 * time.Second
	// firstWord is how long one attempt to reach a node may take, handshake included.
	firstWord = 30 * time.Second
)

// Progress is told what takes its time, one line for people at a time; nil keeps silent. A line can hold what a node or an API says: it is
// not safe for a terminal as it is.
type Progress func(line string)

func (p Progress) say(format string, args ...any) {
	if p != nil {
		p(fmt.Sprintf(format, args...))
	}
}

// Bearer makes what nodes are shown of who asks: a *cluster.Cluster, or a *cluster.OperatorFile.
type Bearer interface {
	// Operator returns a client certificate for one verb, at one node if that is known, else at any.
	Operator(verb channel.Verb, node hullmark.EKID) (tls.Certificate, error)
}

// Node is one node as its operator reaches it, whose word is that of whoever answers at the address: only Init and Recover verify a node.
type Node struct {
	// Address is the node's HOST:PORT.
	Address string
	// Wait is how long a node that does not answer, because it is still booting, is dialled again.
	Wait time.Duration
	// Progress hears of it.
	Progress Progress
}

// Status returns the node's status document, which is JSON. The error is ErrUnreachable, ErrDenied or a failure.
func (n Node) Status(ctx context.Context, c Bearer) ([]byte, error) {
	var reply *wire.StatusReply
	connection, err := n.reach(ctx, c, channel.Scope{Verb: channel.VerbStatus}, func(client wire.NodeClient) (err error) {
		attempt, cancel := context.WithTimeout(ctx, firstWord)
		defer cancel()
		reply, err = client.Status(attempt, &wire.StatusRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return reply.GetJson(), connection.Close()
}

// Journal writes the node's journal of this boot to w, piece by piece as it comes. The error is ErrUnreachable, ErrDenied or a failure.
func (n Node) Journal(ctx context.Context, c Bearer, w io.Writer) error {
	var chunk *wire.JournalChunk
	var receive func() (*wire.JournalChunk, error)
	connection, err := n.reach(ctx, c, channel.Scope{Verb: channel.VerbLogs}, func(client wire.NodeClient) error {
		stream, err := client.Journal(ctx, &wire.JournalRequest{})
		if err != nil {
			return err
		}
		receive = stream.Recv
		if chunk, err = receive(); errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	defer connection.Close()
	for chunk != nil {
		if _, err := w.Write([]byte(chunk.GetText())); err != nil {
			return err
		}
		if chunk, err = receive(); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// dial prepares one connection to the node: no proxy, no retry, no resolver
// but the system's, and the operator's certificate.
func dial(address string, operator tls.Certificate) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(channel.OperatorCredentials(operator)),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxFromNode)),
	)
}

// reach dials the node until open succeeds on a connection to it, which is
// returned and is the caller's to close. A node that does not answer is dialled
// again until the deadline; one that refuses is not. Each connection has a certificate for the scope (Bearer).
func (n Node) reach(ctx context.Context, c Bearer, scope channel.Scope, open func(wire.NodeClient) error) (*grpc.ClientConn, error) {
	began := time.Now()
	for {
		connection, err := n.attempt(c, scope, open)
		if err == nil {
			return connection, nil
		}
		if status.Code(err) != codes.Unavailable || refusedByNode(err) {
			return nil, explainRefusal(err)
		}
		waited := time.Since(began).Round(time.Second)
		if waited >= n.Wait {
			return nil, as(ErrUnreachable, fmt.Errorf("node %s: not reached within %v: %s; next: is it booted, and is the address right? Its console says more",
				n.Address, n.Wait, status.Convert(err).Message()))
		}
		n.Progress.say("waiting for %s (%v of %v)", n.Address, waited, n.Wait)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(dialPause):
		}
	}
}

// attempt makes one connection and tries to use it.
func (n Node) attempt(c Bearer, scope channel.Scope, open func(wire.NodeClient) error) (*grpc.ClientConn, error) {
	operator, err := c.Operator(scope.Verb, scope.EKID)
	if err != nil {
		return nil, err
	}
	connection, err := dial(n.Address, operator)
	if err != nil {
		return nil, err
	}
	if err := open(wire.NewNodeClient(connection)); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return connection, nil
}

// refusedByNode reports that the node ended the handshake because of the operator's certificate.
func refusedByNode(err error) bool {
	return strings.Contains(status.Convert(err).Message(), "remote error: tls:")
}

func explainRefusal(err error) error {
	if refusedByNode(err) {
		return as(ErrDenied, errors.New("the node refuses this operator: it was configured for another cluster, or for a root of this one that was given up; next: check the cluster file, and the clusterRoot in its node config; or, of an operator's file, its release knows no operators, or the root was exchanged since the file was made"))
	}
	return denied(err)
}

// denied gives what a node refuses an operator its kind, in the node's words.
func denied(err error) error {
	var said interface{ GRPCStatus() *status.Status }
	if errors.As(err, &said) && said.GRPCStatus().Code() == codes.PermissionDenied {
		return as(ErrDenied, errors.New("the node refuses it: "+said.GRPCStatus().Message()))
	}
	return err
}
