package firstboot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// codeStandsStill is the code of a Ready node's warning that passes once its epoch goes on.
const codeStandsStill = "epoch-stands-still"

// epochStill is how long the epoch of a Ready node may stand still before the status says so: several tries.
const epochStill = time.Hour

// codeEtcdRolledBack is the code by which a join service says that the node's member of etcd runs with less than it had acknowledged.
const codeEtcdRolledBack = "etcd-rolled-back"

// advancer moves the epoch of a Ready node's disk on.
type advancer struct{ *Agent }

// run moves the disk's epoch on for as long as the node is Ready (docs/protocol.md, Records and epochs). What fails is tried again; the
// node goes on in any case.
func (a advancer) run(ctx context.Context) {
	last := time.Now()
	for {
		// Half of the pause is chance: nodes that became Ready together do not ask in step.
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.Timing.Epoch/2 + rand.N(a.Timing.Epoch+1)):
		}
		if !a.wasReady() {
			last = time.Now()
			continue
		}
		err := services(a).ask(ctx, a.ask)
		var denied *hullmark.Condition
		switch {
		case err == nil:
			last = time.Now()
			a.Status.Unwarn(codeStandsStill)
			showEpoch(a.Agent)
		case errors.As(err, &denied) && denied.Root().Code == codeEtcdRolledBack:
			a.Status.Warn(denied.Root())
		case time.Since(last) > epochStill:
			a.Status.WarnUnlessWarned(standsStill(err, last))
		}
	}
}

// showEpoch lets the status say the disk's number.
func showEpoch(a *Agent) {
	if err := a.kept.look(func(m statedisk.Manifest) error { a.Status.epoch(m.Epoch); return nil }); err != nil {
		fmt.Fprintln(a.Status.Log, "epoch:", err)
	}
}

// standsStill is the condition of a Ready node whose epoch nobody moves on.
func standsStill(err error, since time.Time) *hullmark.Condition {
	return &hullmark.Condition{
		Code: codeStandsStill, Step: StepEpoch, Retry: true,
		Title: fmt.Sprintf("no join service moved the state disk's epoch on since %s: %v", since.UTC().Format(time.RFC3339), err),
		Next:  "see that the node reaches a join service and that the API answers; until then a copy of the disk of that time passes for the disk",
	}
}

// ask is one call of one service: EpochAsk to EpochCommitted.
func (a advancer) ask(ctx context.Context, client wire.JoinServiceClient, info credentials.AuthInfo, keys diskKeys) error {
	stream, err := client.Epoch(ctx)
	if err != nil {
		return err
	}
	ask, err := a.claim(info, keys)
	if err != nil {
		return err
	}
	return a.take(stream, ask)
}

// claim makes EpochAsk.
func (a advancer) claim(info credentials.AuthInfo, keys diskKeys) (*wire.EpochAsk, error) {
	var epoch uint64
	if err := a.kept.look(func(m statedisk.Manifest) error { epoch = m.Epoch; return nil }); err != nil {
		return nil, err
	}
	claim, err := proto.Marshal(&wire.EpochClaim{Ekid: keys.node[:], Uuid: keys.disk[:], Generation: keys.generation, Owner: keys.owner[:], Epoch: epoch, Etcd: wire.FromEtcdState(a.etcdState())})
	if err != nil {
		return nil, err
	}
	channel, err := channel.Key(&peer.Peer{AuthInfo: info})
	if err != nil {
		return nil, err
	}
	mac, err := attest.EpochMAC(keys.epoch, channel, claim)
	return &wire.EpochAsk{Claim: claim, Mac: mac}, err
}

// take asks, stores the number, and confirms it. That nobody hears the confirmation changes nothing on the disk: the record's
// window has room for it.
func (a advancer) take(stream wire.JoinService_EpochClient, ask *wire.EpochAsk) error {
	if err := stream.Send(&wire.EpochFromNode{Message: &wire.EpochFromNode_Ask{Ask: ask}}); err != nil {
		return err
	}
	answer, err := heard(stream)
	if err != nil {
		return err
	}
	issued := answer.GetIssued().GetIssued()
	if err := a.store(issued); err != nil {
		return err
	}
	if err := stream.Send(&wire.EpochFromNode{Message: &wire.EpochFromNode_Stored{Stored: &wire.EpochStored{Issued: issued}}}); err != nil {
		return err
	}
	if answer, err = heard(stream); err == nil && answer.GetCommitted() == nil {
		err = errors.New("the join service sent something else than that the number is committed")
	}
	return err
}

// heard receives one message, and turns a denial into its condition.
func heard(stream wire.JoinService_EpochClient) (*wire.EpochFromService, error) {
	m, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := wire.CheckEpochFromService(m); err != nil {
		return nil, err
	}
	if denied := m.GetDenied(); denied != nil {
		return nil, denied.HullmarkCondition()
	}
	return m, nil
}

// store puts a higher number into the manifest. A rogue service could only raise it, which the records then refuse: so by how
// much is bounded.
func (a advancer) store(issued uint64) error {
	return a.kept.change(func(m *statedisk.Manifest) error {
		if issued <= m.Epoch || issued-m.Epoch > mostSkipped {
			return fmt.Errorf("the join service issued epoch %d after %d", issued, m.Epoch)
		}
		m.Epoch = issued
		return nil
	})
}

// mostSkipped is by how much a number may lie above the disk's: calls that were cut short have used those in between.
const mostSkipped = 1 << 20
