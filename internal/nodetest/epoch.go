package nodetest

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

// EpochCall is one call for the next number, as a node that is Ready makes it. Its fields may be changed before it is sent.
type EpochCall struct {
	// Dialer, if set, is what Do connects with.
	Dialer *net.Dialer
	// Key is the disk's epoch key.
	Key hullmark.Secret
	// Claim is what EpochAsk says, and Edit, if it is set, changes EpochAsk once it is authenticated.
	Claim *wire.EpochClaim
	Edit  func(*wire.EpochAsk)
	// Stored is asked before EpochStored is sent: false ends the call there.
	Stored func(issued uint64) bool
	// Committed is set once EpochCommitted came, Issued once EpochIssued did, and Denied if the service said no.
	Committed bool
	Issued    uint64
	Denied    *hullmark.Condition
}

// EpochCall returns the honest call of the node whose ticket was used, and whose disk holds n.Epoch.
func (n *Node) EpochCall() *EpochCall {
	grant := n.Ticket().Disk
	key, err := attest.EpochKey(grant.Key)
	if err != nil {
		panic(err)
	}
	return &EpochCall{Dialer: n.Dialer, Key: key, Claim: &wire.EpochClaim{
		Ekid: n.ID[:], Uuid: grant.UUID[:], Generation: grant.Generation, Owner: grant.Owner[:], Epoch: n.Epoch, Etcd: n.etcd(),
	}, Stored: func(issued uint64) bool { n.Epoch = issued; return true }}
}

// Do makes the call. A denial is no error.
func (c *EpochCall) Do(ctx context.Context, address string, root hullmark.ClusterRoot) error {
	return withService(ctx, c.Dialer, address, root, func(client wire.JoinServiceClient, info credentials.AuthInfo) error {
		stream, err := client.Epoch(ctx)
		if err != nil {
			return err
		}
		ask, err := c.ask(info)
		if err != nil {
			return err
		}
		return c.converse(stream, ask)
	})
}

// withService calls with a client of a join service, and what is known of its channel.
func withService(ctx context.Context, dialer *net.Dialer, address string, root hullmark.ClusterRoot, do func(wire.JoinServiceClient, credentials.AuthInfo) error) error {
	config := channel.JoinTLS(root)
	if dialer == nil {
		dialer = &net.Dialer{}
	}
	raw, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, config.ServerName, raw)
	if err != nil {
		return err
	}
	defer conn.Close()
	client, err := grpc.NewClient("passthrough:///service", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
	if err != nil {
		return err
	}
	defer client.Close()
	return do(wire.NewJoinServiceClient(client), info)
}

func (c *EpochCall) ask(info credentials.AuthInfo) (*wire.EpochAsk, error) {
	claim, err := proto.Marshal(c.Claim)
	if err != nil {
		return nil, err
	}
	channel, err := channel.Key(&peer.Peer{AuthInfo: info})
	if err != nil {
		return nil, err
	}
	mac, err := attest.EpochMAC(c.Key, channel, claim)
	ask := &wire.EpochAsk{Claim: claim, Mac: mac}
	if c.Edit != nil {
		c.Edit(ask)
	}
	return ask, err
}

func (c *EpochCall) converse(stream wire.JoinService_EpochClient, ask *wire.EpochAsk) error {
	if err := stream.Send(&wire.EpochFromNode{Message: &wire.EpochFromNode_Ask{Ask: ask}}); err != nil {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	c.Denied = answer.GetDenied().HullmarkCondition()
	c.Issued = answer.GetIssued().GetIssued()
	if c.Denied != nil || !c.Stored(c.Issued) {
		return nil
	}
	if err := stream.Send(&wire.EpochFromNode{Message: &wire.EpochFromNode_Stored{Stored: &wire.EpochStored{Issued: c.Issued}}}); err != nil {
		return err
	}
	if answer, err = stream.Recv(); err != nil {
		return err
	}
	c.Denied, c.Committed = answer.GetDenied().HullmarkCondition(), answer.GetCommitted() != nil
	return nil
}
