package operate

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
	"github.com/hullmark/hullmark/pcrs"
)

// Target is a node that waits for its operator, and how it is known to be the right one.
type Target struct {
	Node
	// Anchor is what its endorsement key has to be: a certain one, one that certain CAs have signed, or both.
	Anchor verifier.Anchor
	// Report is given what the node proved, before anything is decided; an error ends the exchange. It may be nil.
	Report func(Report) error
	// Log is given the event log that the node showed, once it leads to the registers that the node quoted; an error ends the exchange. It
	// may be nil.
	Log func(raw []byte) error
}

// exchange is the operator's side of one exchange with a node that waits for it.
type exchange struct {
	Target
	kind hullmark.TicketKind
	// file is the cluster file; nil of an operator, whose own is in its place.
	file       *cluster.File
	operator   *cluster.OperatorFile
	authorizer joinservice.Authorizer
}

// known is what the file knows of the cluster; of an operator's, without any key.
func (x *exchange) known() *cluster.Cluster {
	if x.operator != nil {
		return x.operator.Grant.Known
	}
	return x.file.Cluster
}

// bearer shows the node who asks.
func (x *exchange) bearer() Bearer {
	if x.operator != nil {
		return x.operator
	}
	return x.file.Cluster
}

// attest dials the node, verifies its evidence and reports it. The
// connection is the caller's to close, once there is one.
func (x *exchange) attest(ctx context.Context) (*joinservice.Conversation, attest.Claims, io.Closer, error) {
	stream, connection, err := x.call(ctx)
	if err != nil {
		return nil, attest.Claims{}, nil, err
	}
	conversation := joinservice.Converse(stream, joinservice.OperatorTimeouts())
	roots, err := x.known().Roots()
	if err != nil {
		return nil, attest.Claims{}, nil, errors.Join(err, connection.Close())
	}
	claims, err := conversation.Attest(verifier.Demands{Roots: roots, Anchor: x.Anchor, Platform: joinservice.Platforms(x.authorizer.Policy)})
	if err == nil && x.Report != nil {
		err = x.Report(x.report(claims))
	}
	if err == nil && x.Log != nil {
		err = x.takeLog(claims)
	}
	if err != nil {
		return nil, attest.Claims{}, nil, errors.Join(unreachable(err), connection.Close())
	}
	return conversation, claims, connection, nil
}

// takeLog hands the node's event log on if it explains what the node quoted.
func (x *exchange) takeLog(claims attest.Claims) error {
	log, err := pcrs.ParseLog(claims.EventLog)
	if err != nil {
		return fmt.Errorf("the node's event log: %w", err)
	}
	if err := log.Follows(pcrs.SHA256, joinservice.Values(claims)); err != nil {
		return fmt.Errorf("the node's event log: %w", err)
	}
	x.Progress.say("the node's event log leads to PCR 0 to 7, as the TPM of %s has quoted them", claims.EKID)
	return x.Log(claims.EventLog)
}

// call opens the stream with which a node waits for its operator.
func (x *exchange) call(ctx context.Context) (joinservice.Stream, *grpc.ClientConn, error) {
	x.Progress.say("dialling %s", x.Address)
	var stream joinservice.Stream
	connection, err := x.reach(ctx, x.bearer(), x.scope(), func(client wire.NodeClient) error {
		opened, err := client.Exchange(ctx)
		if err != nil {
			return err
		}
		stream = opened
		return opened.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Call{Call: &wire.Call{Kind: string(x.kind)}}})
	})
	return stream, connection, err
}

// scope is all that the node's end is shown a certificate for: one verb, and one machine if the operator names its endorsement key.
func (x *exchange) scope() channel.Scope {
	scope := channel.Scope{Verb: channel.Verb(x.kind)}
	if x.Anchor.EKID != nil {
		scope.EKID = *x.Anchor.EKID
	}
	return scope
}

// unreachable gives the end of a connection its kind.
func unreachable(err error) error {
	if status.Code(err) == codes.Unavailable {
		return as(ErrUnreachable, fmt.Errorf("%w; next: read the node's console, then run the command again", err))
	}
	return denied(err)
}

// refuse tells the node that it gets nothing, and returns why.
func (x *exchange) refuse(conversation *joinservice.Conversation, claims attest.Claims, err error) error {
	condition := hullmark.AsCondition(err, "ATTEST", "denied")
	said := conversation.Deny(condition)
	if condition.Code == joinservice.CodeMismatch {
		err = as(ErrMismatch, x.explain(claims))
	}
	return errors.Join(err, said)
}

// follow says what the node does until it is Ready, and returns what its member of etcd has stored by then.
func (x *exchange) follow(conversation *joinservice.Conversation) (hullmark.EtcdState, error) {
	began := time.Now()
	state, err := conversation.Follow(func(phase, message string) {
		x.Progress.say("%7s  %s  %s", time.Since(began).Round(time.Second), phase, message)
	})
	return state, unreachable(err)
}
