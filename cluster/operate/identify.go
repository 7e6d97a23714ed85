package operate

import (
	"context"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/cluster"
)

// Identify has a node that waits for its operator prove which endorsement key its TPM holds, whatever that is and whatever the node
// booted; the node gets nothing, and waits on. The error is as Init's.
func Identify(ctx context.Context, file *cluster.File, node Node) (attest.Claims, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	anyone := verifier.Anchor{Admits: func(hullmark.EKID, *ekcert.Certificate) bool { return true }}
	x := exchange{Target: Target{Node: node, Anchor: anyone}, kind: hullmark.Init, file: file}
	conversation, claims, connection, err := x.attest(ctx)
	if err != nil {
		return attest.Claims{}, err
	}
	defer connection.Close()
	return claims, conversation.Deny(dryRun())
}

// dryRun tells a node that it gets nothing.
func dryRun() *hullmark.Condition {
	return &hullmark.Condition{
		Code: "dry-run", Step: "ATTEST", Title: "the operator only wanted to see the evidence", Next: "wait for the operator", Retry: true,
	}
}
