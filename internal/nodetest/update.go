package nodetest

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

// UpdateCall is one call of a node that is Ready to say what its slots hold. Its fields may be changed before it is sent.
type UpdateCall struct {
	// Dialer, if set, is what Do connects with.
	Dialer *net.Dialer
	// Key is the disk's epoch key.
	Key hullmark.Secret
	// Claim is what UpdateAsk says, and Edit, if it is set, changes UpdateAsk once it is authenticated.
	Claim *wire.UpdateClaim
	Edit  func(*wire.UpdateAsk)
	// Answer is what came.
	Answer *wire.UpdateAnswer
}

// UpdateCall returns the honest call of the node whose ticket was used.
func (n *Node) UpdateCall(says hullmark.UpdateStatus) *UpdateCall {
	grant := n.Ticket().Disk
	key, err := attest.EpochKey(grant.Key)
	if err != nil {
		panic(err)
	}
	text, err := wire.EncodeUpdateStatus(says)
	if err != nil {
		panic(err)
	}
	return &UpdateCall{Dialer: n.Dialer, Key: key, Claim: &wire.UpdateClaim{Ekid: n.ID[:], Uuid: grant.UUID[:], Generation: grant.Generation, Owner: grant.Owner[:], Status: text}}
}

// Do makes the call. A denial is no error.
func (c *UpdateCall) Do(ctx context.Context, address string, root hullmark.ClusterRoot) error {
	return withService(ctx, c.Dialer, address, root, func(client wire.JoinServiceClient, info credentials.AuthInfo) error {
		claim, err := proto.Marshal(c.Claim)
		if err != nil {
			return err
		}
		shared, err := channel.Key(&peer.Peer{AuthInfo: info})
		if err != nil {
			return err
		}
		mac, err := attest.UpdateMAC(c.Key, shared, claim)
		if err != nil {
			return err
		}
		ask := &wire.UpdateAsk{Claim: claim, Mac: mac}
		if c.Edit != nil {
			c.Edit(ask)
		}
		c.Answer, err = client.Update(ctx, ask)
		return err
	})
}
