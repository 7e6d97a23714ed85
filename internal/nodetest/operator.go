package nodetest

import (
	"context"

	"google.golang.org/grpc/credentials"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// AskOperator asks a join service about an operator, as a node does that holds no policy.
func AskOperator(ctx context.Context, address string, root hullmark.ClusterRoot, ask *wire.OperatorAsk) (answer *wire.OperatorAnswer, err error) {
	err = withService(ctx, nil, address, root, func(client wire.JoinServiceClient, _ credentials.AuthInfo) (err error) {
		answer, err = client.Operator(ctx, ask)
		return err
	})
	return answer, err
}
