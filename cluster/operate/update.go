package operate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/measurements"
)

// Update has a node do something with its slots (docs/update.md), and returns what it says of them when that is done, or when it restarts.
// document names a release where the action needs one; sources are where it was published, for hullmark.UpdateStage alone. The error is
// ErrUsage, ErrUnreachable, ErrDenied with the node's condition, or a failure.
func (n Node) Update(ctx context.Context, c *cluster.Cluster, action hullmark.UpdateAction, document *measurements.Document, sources []string) (hullmark.UpdateStatus, error) {
	order, err := updateOrder(c, action, document, sources)
	if err != nil {
		return hullmark.UpdateStatus{}, err
	}
	var receive func() (*wire.UpdateReply, error)
	var reply *wire.UpdateReply
	connection, err := n.reach(ctx, c, channel.Scope{Verb: channel.VerbUpdate}, func(client wire.NodeClient) error {
		stream, err := client.Update(ctx, order)
		if err != nil {
			return err
		}
		receive = stream.Recv
		reply, err = receive()
		return err
	})
	if err != nil {
		return hullmark.UpdateStatus{}, explainUpdate(err)
	}
	defer connection.Close()
	return n.followUpdate(action, reply, receive)
}

// updateOrder says what to do, and hands over what the node judges it by.
func updateOrder(c *cluster.Cluster, action hullmark.UpdateAction, document *measurements.Document, sources []string) (*wire.UpdateOrder, error) {
	d := hullmark.UpdateDirection{Serial: 1, Action: action, Sources: sources}
	if document == nil {
		order, err := wire.NewUpdateOrder(d, nil, nil)
		if err != nil {
			return nil, as(ErrUsage, err)
		}
		return order, nil
	}
	encoded, err := document.Encode()
	if err != nil {
		return nil, err
	}
	d.Document = sha256.Sum256(encoded)
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(policy.Documents, func(a measurements.Accepted) bool { return a.Document == d.Document }) {
		return nil, as(ErrDenied, fmt.Errorf("the cluster file's policy does not accept document %s, and no node takes what its policy would refuse; next: hullmark policy add document, hullmark policy push", d.Document))
	}
	agreement, err := policy.Agreement(*document)
	if err != nil {
		return nil, err
	}
	if !agreement.Met() {
		return nil, as(ErrDenied, fmt.Errorf("document %s: %v, and no machine that boots it gets a ticket; next: have a builder who is missing rebuild it (hullmark reproduce --attest), hullmark policy add document --attestation, hullmark policy push", d.Document, agreement))
	}
	order, err := wire.NewUpdateOrder(d, encoded, c.Policy)
	if err != nil {
		return nil, as(ErrUsage, err)
	}
	return order, nil
}

// followUpdate hears how far the node is. That it hangs up at last is how it restarts; in the middle of anything else it is no end.
func (n Node) followUpdate(action hullmark.UpdateAction, reply *wire.UpdateReply, receive func() (*wire.UpdateReply, error)) (s hullmark.UpdateStatus, err error) {
	for {
		if err := wire.CheckUpdateReply(reply); err != nil {
			return s, err
		}
		if s, err = wire.DecodeUpdateStatus(reply.GetStatus()); err != nil {
			return s, err
		}
		if failed := reply.GetFailed(); failed != nil {
			return s, as(ErrDenied, failed.HullmarkCondition())
		}
		if s.Phase == hullmark.UpdateStaging {
			n.Progress.say("%s: %d MB fetched, %d MB were in the slot that runs, %d MB in their place", s.Phase, s.Fetched>>20, s.Copied>>20, s.Kept>>20)
		}
		reply, err = receive()
		restarts := action != hullmark.UpdateStage && action != hullmark.UpdateCommit
		switch {
		case errors.Is(err, io.EOF) || restarts && status.Code(err) == codes.Unavailable:
			return s, nil
		case status.Code(err) == codes.Unavailable:
			return s, as(ErrUnreachable, fmt.Errorf("the node hung up before it was done: %w; next: hullmark update status, then the same again", err))
		case err != nil:
			return s, explainUpdate(err)
		}
	}
}

// explainUpdate says what a node's refusal of a call means.
func explainUpdate(err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.PermissionDenied, codes.InvalidArgument:
		return as(ErrDenied, errors.New(status.Convert(err).Message()))
	case codes.Unimplemented:
		return as(ErrDenied, errors.New("the node's release knows no updates; next: install it anew from a release that does"))
	}
	return err
}
