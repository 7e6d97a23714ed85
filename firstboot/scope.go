package firstboot

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

// permit refuses a call for which the operator's leaf was not made, or that was revoked as far as this boot knows, and notes who made it.
func (a *Agent) permit(ctx context.Context, verb channel.Verb) error {
	who, err := callerOf(ctx)
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	err = who.judge(ctx, a, verb)
	who.note(a.Status, verb, err)
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}

// permitExchange refuses an exchange to an operator who may not recover, before it takes the turn, or shows on the console.
func (n *nodeServer) permitExchange(ctx context.Context) error {
	who, err := callerOf(ctx)
	if err != nil || who.named == nil {
		return nil // Whoever holds the root key is held to his leaf once it is known which kind he wants.
	}
	if err := who.named.Check(channel.VerbRecover, time.Now()); err != nil {
		who.note(n.agent.Status, channel.VerbRecover, err)
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}

// judge refuses a call of a verb.
func (c caller) judge(ctx context.Context, a *Agent, verb channel.Verb) error {
	if c.named != nil {
		return operators{a}.judge(ctx, *c.named, verb)
	}
	if c.scope.Verb != verb {
		return fmt.Errorf("the operator's certificate is for %s, not for %s", c.scope.Verb, verb)
	}
	if !a.turn.isKept() {
		return nil // The state disk, with the policy on it, is not open.
	}
	return a.checkRevoked(c.scope)
}

// checkScope holds an exchange to the leaf of the operator who opened it: to its verb, and to its machine if it names one. It notes who
// that is.
func (p *proving) checkScope() error {
	if p.service != "" {
		return nil
	}
	who, err := callerOf(p.stream.Context())
	if err != nil {
		return err
	}
	p.scope, p.named = who.scope, who.named
	err = p.checkCaller()
	who.note(p.agent.Status, channel.Verb(p.kind), err)
	return err
}

func (p *proving) checkCaller() error {
	scope, node, kind := p.scope, p.prover.Node(), p.kind
	if p.named != nil {
		return p.named.Check(channel.Verb(kind), time.Now())
	}
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
	if err := hullmark.CheckOperatorsFrom(p.OperatorsFrom, scope.Policy); err != nil {
		return hullmark.AsCondition(err, StepEpoch, "operator-revoked")
	}
	return nil
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
	switch {
	case f.service != "":
		return nil
	case f.named != nil:
		return operators{f.agent}.checkHeld(*f.named, channel.VerbRecover)
	}
	return f.agent.checkRevoked(f.scope)
}
