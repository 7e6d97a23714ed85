package firstboot

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
)

// services are the join services that a node asks whose disk is open: by the keys of that disk, without another ticket.
type services struct{ *Agent }

// ask calls one after the other, in any order, until call succeeds; a control plane its own first, which is there without any network.
func (a services) ask(ctx context.Context, call func(context.Context, wire.JoinServiceClient, credentials.AuthInfo, diskKeys) error) error {
	keys, err := a.kept.opened()
	if err != nil {
		return err
	}
	endpoints := slices.Clone(a.config.Endpoints)
	rand.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
	if keys.controlPlane {
		endpoints = slices.Insert(endpoints, 0, net.JoinHostPort("127.0.0.1", attest.JoinPort))
	}
	err = errors.New("the node configuration names no join service")
	for _, endpoint := range endpoints {
		err = a.at(ctx, endpoint, func(ctx context.Context, client wire.JoinServiceClient, info credentials.AuthInfo) error {
			return call(ctx, client, info, keys)
		})
		if err == nil {
			return nil
		}
	}
	return err
}

// at reaches one service, for one call that ends in time.
func (a services) at(ctx context.Context, endpoint string, call func(context.Context, wire.JoinServiceClient, credentials.AuthInfo) error) error {
	ctx, cancel := context.WithTimeout(ctx, 4*a.Timing.Answer)
	defer cancel()
	conn, info, condition := a.reach(ctx, endpoint)
	if condition != nil {
		return condition
	}
	defer conn.Close()
	client, err := over(conn, info)
	if err != nil {
		return err
	}
	defer client.Close()
	return call(ctx, wire.NewJoinServiceClient(client), info)
}

// over is a client over one connection, whose handshake is done.
func over(conn net.Conn, info credentials.AuthInfo) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///join-service", grpc.WithTransportCredentials(established{credentials.NewTLS(nil), info}),
		grpc.WithContextDialer(only(conn)), grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxFromVerifier)))
}
