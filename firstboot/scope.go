package firstboot

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

// scopeOf returns what the operator's leaf is good for who made a call.
func scopeOf(ctx context.Context) (channel.Scope, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return channel.Scope{}, errors.New("the channel has no peer")
	}
	return channel.ScopeOf(from)
}

// permit refuses a call for which the operator's leaf was not made, or that was revoked as far as this boot knows.
func (a *Agent) permit(ctx context.Context, verb channel.Verb) error {
	scope, err := scopeOf(ctx)
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	if scope.Verb != verb {
		return status.Errorf(codes.PermissionDenied, "the operator's certificate is for %s, not for %s", scope.Verb, verb)
	}
	if !a.turn.isKept() {
		return nil // The state disk, with the policy on it, is not open.
	}
	if err := a.checkRevoked(scope); err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}

// checkScope holds an exchange to the leaf of the operator who opened it: to its verb, and to its machine if it names one.
func (p *proving) checkScope() error {
	if p.service != "" {
		return nil
	}
	scope, err := scopeOf(p.stream.Context())
	if err != nil {
		return err
	}
	p.scope = scope
	node, kind := p.prover.Node(), p.kind
	wrongNode := scope.EKID != (hullmark.EKID{}) && scope.EKID != node
	begins := scope.Verb == channel.VerbBegin && kind == hullmark.Init
	if begins && !wrongNode && p.claim.State == hullmark.DiskReady {
		// Whether the node on it was ever Ready is known once it is open, and then its epoch has been advanced.
		return &hullmark.Condition{
			Code: "already-begun", Step: StepAttest, Title: "the state disk is in use, and the operator's certificate only begins a cluster on an empty one",
			Next: "use the cluster file itself, not one that was lent; or attach an empty disk",
		}
	}
	if (string(scope.Verb) == string(kind) || begins) && !wrongNode {
		return nil
	}
	return &hullmark.Condition{
		Code: "call-refused", Step: StepAttest, Title: "the operator's certificate was made for something else, or for another machine",
		Expected: fmt.Sprintf("%s of %s", kind, node), Got: fmt.Sprintf("%s of %s", scope.Verb, scope.EKID), Next: "use a hullmark of this image's release, and name the right machine (--ekid)",
	}
}

// checkRevoked refuses a scope that the newest signed policy on the state disk revoked.
func (a *Agent) checkRevoked(scope channel.Scope) error {
	_, newest := a.heldPolicies()
	return newest.checkOperator(scope)
}

func (p signedPolicy) checkOperator(scope channel.Scope) error {
	if scope.Policy >= p.OperatorsFrom {
		return nil
	}
	return &hullmark.Condition{
		Code: "operator-revoked", Step: StepEpoch, Title: "the policy that the node holds refuses operators' certificates of that time",
		Expected: fmt.Sprintf("made by policy version %d or later", p.OperatorsFrom), Got: fmt.Sprintf("version %d", scope.Policy), Next: "use the newest cluster file",
	}
}

// checkOperator holds an operator's exchange to the policy that the node is brought. The disk is read only once it is mounted:
// see finishing.checkOperator.
func (o *opened) checkOperator(files []*wire.File) error {
	envelope := wire.ContentOf(files)(hullmark.PolicyFile)
	if o.service != "" || len(envelope) == 0 {
		return nil
	}
	brought, err := openPolicy(envelope, o.agent.config.ClusterRoot)
	if err != nil {
		return err
	}
	return brought.checkOperator(o.scope)
}

// checkOperator holds an operator's exchange to the policies that the node has.
func (f *finishing) checkOperator() error {
	if f.service != "" {
		return nil
	}
	return f.agent.checkRevoked(f.scope)
}
