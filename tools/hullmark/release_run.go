package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
)

// release is the operator's side of one exchange with a node that waits for it.
type release struct {
	operator *operatorOptions
	kind     hullmark.TicketKind
	output   string    // format of the table
	out      io.Writer // the table
	notes    io.Writer // progress
	file     *cluster.File
	anchor   verifier.Anchor
	desk     joinservice.Desk
}

// attest dials the node, verifies its evidence and prints the table. The
// connection is the caller's to close, once there is one.
func (r *release) attest(ctx context.Context) (*joinservice.Conversation, attest.Claims, io.Closer, error) {
	stream, connection, err := r.call(ctx)
	if err != nil {
		return nil, attest.Claims{}, nil, err
	}
	conversation := joinservice.Converse(stream, joinservice.OperatorPatience())
	roots, err := r.file.Cluster.Roots()
	if err != nil {
		return nil, attest.Claims{}, nil, errors.Join(err, connection.Close())
	}
	claims, err := conversation.Attest(roots, r.anchor)
	if err == nil {
		err = r.writeReport(claims)
	}
	if err != nil {
		return nil, attest.Claims{}, nil, errors.Join(unreachable(err), connection.Close())
	}
	return conversation, claims, connection, nil
}

// call opens the stream with which a node waits for its operator.
func (r *release) call(ctx context.Context) (joinservice.Stream, *grpc.ClientConn, error) {
	fmt.Fprintf(r.notes, "dialling %s\n", r.operator.address())
	var stream joinservice.Stream
	connection, err := r.operator.reach(ctx, r.file.Cluster, r.errand(), r.notes, func(client wire.NodeClient) error {
		opened, err := client.Exchange(ctx)
		if err != nil {
			return err
		}
		stream = opened
		return opened.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Call{Call: &wire.Call{Kind: string(r.kind)}}})
	})
	return stream, connection, err
}

// errand is all that the node's end is shown a certificate for: one verb, and one machine if the operator names its endorsement key.
func (r *release) errand() channel.Errand {
	errand := channel.Errand{Verb: channel.Verb(r.kind)}
	if r.anchor.Node != nil {
		errand.Node = *r.anchor.Node
	}
	return errand
}

// unreachable gives the end of a connection its exit code.
func unreachable(err error) error {
	if status.Code(err) == codes.Unavailable {
		return withCode(exitUnreachable, fmt.Errorf("%w; next: read the node's console, then run the command again", err))
	}
	return err
}

// refuse tells the node that it gets nothing, and returns why.
func (r *release) refuse(conversation *joinservice.Conversation, claims attest.Claims, err error) error {
	condition := hullmark.AsCondition(err, "ATTEST", "denied")
	said := conversation.Deny(condition)
	if condition.Code == joinservice.CodeMismatch {
		err = withCode(exitMismatch, r.explain(claims))
	}
	return errors.Join(err, said)
}

// follow prints what the node does until it is Ready, and returns what its member of etcd has stored by then.
func (r *release) follow(conversation *joinservice.Conversation) (hullmark.EtcdState, error) {
	began := time.Now()
	state, err := conversation.Follow(func(phase, message string) {
		fmt.Fprintf(r.notes, "%7s  %s  %s\n", time.Since(began).Round(time.Second), printable(phase), printable(message))
	})
	return state, unreachable(err)
}
