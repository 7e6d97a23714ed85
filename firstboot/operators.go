package firstboot

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

// caller is who made a call: whoever holds the root key, by a leaf for one scope, or an operator whom the policy names.
type caller struct {
	scope channel.Scope
	// named is nil of whoever holds the root key.
	named *channel.Named
	// from is the address that the call came from; for people.
	from string
}

func callerOf(ctx context.Context) (c caller, err error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, errors.New("the channel has no peer")
	}
	if from.Addr != nil {
		c.from = from.Addr.String()
	}
	named, ok, err := channel.NamedOf(from)
	switch {
	case err != nil:
		return caller{}, err
	case ok:
		c.named = &named
		return c, nil
	}
	c.scope, err = channel.ScopeOf(from)
	return c, err
}

// note writes to the journal who asked for what, and why he did not get it.
func (c caller) note(s *Status, verb channel.Verb, refused error) {
	who, outcome := "whoever holds the root key", "permitted"
	if c.named != nil {
		who = fmt.Sprintf("operator %s (key %.16s)", c.named.Name, c.named.Key)
	}
	if refused != nil {
		outcome = "refused: " + refused.Error()
	}
	fmt.Fprintln(s.Log, oneLine(fmt.Sprintf("call: %s by %s from %s: %s", verb, who, c.from, outcome)))
}

// operators judges those whom the policy names.
type operators struct{ *Agent }

// judge refuses what an operator was not granted. Before the state disk is open the node goes by his certificate alone, as it has
// nothing yet that is the cluster's. Then it goes by the newest signed policy on its disk, and where there is none, on a worker, by
// what a join service says of the policy in force.
func (a operators) judge(ctx context.Context, n channel.Named, verb channel.Verb) error {
	if err := n.Check(verb, time.Now()); err != nil {
		return err
	}
	if !a.turn.isKept() {
		return nil
	}
	if _, err := a.kept.opened(); err != nil {
		return nil // Its ticket opens the disk just now.
	}
	if _, newest := a.heldPolicies(); newest.Version > 0 {
		return newest.permit(n, verb)
	}
	return a.ask(ctx, n, verb)
}

// checkHeld refuses what the newest signed policy on the disk does not grant: a control plane has one.
func (a operators) checkHeld(n channel.Named, verb channel.Verb) error {
	_, newest := a.heldPolicies()
	return newest.permit(n, verb)
}

// permit refuses what a policy does not grant an operator.
func (p signedPolicy) permit(n channel.Named, verb channel.Verb) error {
	if err := hullmark.CheckOperatorsFrom(p.OperatorsFrom, n.Policy); err != nil {
		return err
	}
	return n.PermitBy(p.Operators, verb)
}

// ask asks the join services, one after the other, until one answers.
func (a operators) ask(ctx context.Context, n channel.Named, verb channel.Verb) error {
	var denied *hullmark.Condition
	err := services(a).ask(ctx, func(ctx context.Context, client wire.JoinServiceClient, _ credentials.AuthInfo, _ diskKeys) error {
		answer, err := client.Operator(ctx, &wire.OperatorAsk{Key: n.Key[:], Name: n.Name, Verb: string(verb), Policy: n.Policy})
		if err != nil {
			return err
		}
		if err := wire.CheckOperatorAnswer(answer); err != nil {
			return err
		}
		denied = answer.GetDenied().HullmarkCondition()
		return nil
	})
	switch {
	case err != nil:
		return &hullmark.Condition{
			Code: "operator-unknown", Step: StepReady, Title: fmt.Sprintf("the node holds no policy, and no join service says whether operator %s may still do this: %v", n.Name, err),
			Next: "see that the node reaches a join service; until then only the cluster file itself opens it",
		}
	case denied != nil:
		return denied
	}
	return nil
}

// checkNamed refuses a named operator's ticket that would have the node write to the disk: by an epoch of his choosing no join service
// would let it back, and the policy on the disk, which says whether he may recover, is read only once it is open.
func (p *proving) checkNamed(ticket hullmark.Ticket) error {
	if p.named == nil || ticket.Disk.Epoch.Unchecked {
		return nil
	}
	return &hullmark.Condition{
		Code: "ticket-mismatch", Step: StepAttest, Title: fmt.Sprintf("operator %s may open the disk, and not choose its epoch", p.named.Name),
		Expected: "unchecked", Got: "an epoch's window", Next: "use a hullmark of this image's release",
	}
}

// checkNamed refuses whatever a named operator brings: he opens the disk, and the node goes by what is on it (goByDisk).
func (o *opened) checkNamed(p *wire.Proceed) error {
	if o.named == nil {
		return nil
	}
	if len(p.GetFiles())+len(p.GetKubeadmDocuments())+len(p.GetManifests())+len(p.GetHooks())+len(p.GetNames())+len(p.GetRefused()) > 0 || p.GetEndpoint() != "" || p.GetSnapshot() != nil {
		return fmt.Errorf("operator %s may bring back what the disk holds, and brings files, documents, hooks, warnings or an endpoint", o.named.Name)
	}
	return nil
}

// goByDisk has a node that a named operator recovers be what the signed policy and the settings on its own disk say. Of his word the
// name has to be that of the policy; beside it the time counts, and which addresses the kubelet names.
func (f *finishing) goByDisk() error {
	if err := f.checkOperator(); err != nil {
		return err
	}
	_, policy := f.agent.heldPolicies()
	i := slices.IndexFunc(policy.Members, func(m policyMember) bool { return m.EKID == f.node })
	if i < 0 || policy.Members[i].Role != hullmark.ControlPlane || policy.Members[i].Name != f.proceed.GetNodeName() {
		return &hullmark.Condition{
			Code: "proceed-refused", Step: StepKubeadm, Title: "the policy on the state disk names no control plane of this machine and name",
			Got: f.proceed.GetNodeName(), Next: "recover it with the newest cluster file",
		}
	}
	rule := policy.Members[i]
	if i = slices.IndexFunc(policy.Pools, func(p policyPool) bool { return p.Name == rule.Pool }); i >= 0 {
		pods, err := policy.Pools[i].staticPods()
		if err != nil {
			return err
		}
		f.proceed.Hooks, f.proceed.Files = policy.Pools[i].Hooks, pods // A boot drops static pods (dropStaticPods).
	}
	var settings struct {
		Endpoint string   `json:"controlPlaneEndpoint"`
		Names    []string `json:"names"`
	}
	text, err := f.agent.readState(hullmark.SettingsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &settings)
	}
	if err != nil {
		return fmt.Errorf("the settings on the state disk: %w", err)
	}
	f.proceed.Endpoint, f.proceed.Names = settings.Endpoint, settings.Names
	return errors.Join((&opened{disk: f.disk}).checkEndpoint(f.proceed), checkHooks(f.proceed.GetHooks()))
}

// recovered names the boot whose disk `hullmark recover` opened, and the operator who did if the policy names him.
func (f *finishing) recovered() string {
	if f.named == nil {
		return rand.Text()
	}
	return rand.Text() + " " + f.named.Name
}
