package firstboot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/update"
)

// order is what somebody wants a node to do with its slots.
type order struct {
	hullmark.UpdateDirection
	document, policy []byte
}

// readOrder decodes one.
func readOrder(o *wire.UpdateOrder) (order, error) {
	d, err := wire.DecodeUpdateOrder(o)
	return order{UpdateDirection: d, document: o.GetDocument(), policy: o.GetPolicy()}, err
}

// obey does what an order says. What is refused, and what fails, is in the status, too. Of a machine that is to restart no other order is
// obeyed: it could take from a slot what is about to start.
func (a updater) obey(ctx context.Context, o order) error {
	if !a.updates.working.TryLock() {
		return refusedRelease("update-busy", "the node does something with its slots", "", "", "wait until it is done (hullmark update status)")
	}
	return a.obeyAlone(ctx, o)
}

// obeyAlone does it for who holds working.
func (a updater) obeyAlone(ctx context.Context, o order) error {
	err := a.act(ctx, o)
	if !errors.Is(err, errReboot) {
		defer a.updates.working.Unlock()
	}
	if err != nil && !errors.Is(err, errReboot) {
		c := hullmark.AsCondition(err, StepUpdate, "update-failed")
		fmt.Fprintf(a.Status.Log, "update: %s: %s\n", o.Action, oneLine(c.Error()))
		return errors.Join(c, a.keepNote(func(n *updateNote) { n.Failed = c.Root() }))
	}
	return err
}

func (a updater) act(ctx context.Context, o order) error {
	if err := a.lookAtSlots(ctx); err != nil {
		return err
	}
	if _, known := a.updateStatus(); !known {
		return refusedRelease("no-slots", "the disk that the node boots from has no slots", "", "", "install the node from an image of this version (hullmark install)")
	}
	switch o.Action {
	case hullmark.UpdateStage:
		return a.stage(ctx, o)
	case hullmark.UpdateTry:
		return a.try(ctx, o)
	case hullmark.UpdateCommit:
		if !a.onTrial() {
			return refusedRelease("no-trial", "the release that runs starts by itself already", "", "", "nothing is to be done")
		}
		return a.commit(ctx)
	case hullmark.UpdateRollback:
		return a.rollBack(ctx, o)
	case hullmark.UpdateRestart:
		return a.restart(errors.New("it was asked to"))
	}
	return fmt.Errorf("action %.20q is unknown", o.Action)
}

// stage writes a release into the slot that does not run.
func (a updater) stage(ctx context.Context, o order) error {
	r, err := a.judgeRelease(o.Document, o.document, o.policy)
	if err == nil {
		err = stepJudge(a).forward(ctx, r)
	}
	if err != nil {
		return err
	}
	s, _ := a.updateStatus()
	if r.Image.RootHash == s.Release() {
		return refusedRelease("release-runs", "the node runs this release", "another release", o.Document.String(), "nothing is to be done")
	}
	if a.onTrial() {
		return refusedRelease("update-busy", "the release that runs is on trial", "", "", "wait until it is committed, or has failed (hullmark update status)")
	}
	if err := a.keepNote(func(n *updateNote) {
		n.Phase, n.Document, n.RootHash, n.Failed, n.Policy = hullmark.UpdateStaging, o.Document, r.Image.RootHash, nil, r.policy
	}); err != nil {
		return err
	}
	err = a.Slots.Stage(ctx, r.written(), o.Sources, func(f update.Fetched) {
		a.changeUpdate(func(s *hullmark.UpdateStatus) { s.Fetched, s.Copied, s.Kept = f.Fetched, f.Copied, f.Kept })
	})
	if err != nil {
		err = &hullmark.Condition{
			Code: "stage-failed", Step: StepUpdate, Title: "the release could not be written: " + err.Error(), Retry: true,
			Next: "see that the sources have the release and can be reached, then stage it again: what is there is kept",
		}
	}
	return errors.Join(err, a.lookAtSlots(ctx), a.keepNote(func(n *updateNote) {
		if n.Phase = hullmark.UpdateStaged; err != nil {
			n.Phase = hullmark.UpdateFailed
		}
	}))
}

// try restarts into a release that was staged. What has changed since counts: the policy may not accept it any more.
func (a updater) try(ctx context.Context, o order) error {
	r, err := a.judgeRelease(o.Document, o.document, o.policy)
	if err == nil && o.Action == hullmark.UpdateRollback {
		err = stepJudge(a).back(r)
	}
	if err == nil {
		err = stepJudge(a).forward(ctx, r)
	}
	if err != nil {
		return err
	}
	return a.begin(ctx, o.Document, r)
}

// rollBack restarts into the release that the node ran before, for good once that is healthy, or out of a trial.
func (a updater) rollBack(ctx context.Context, o order) error {
	if a.onTrial() {
		why := refusedRelease("rolled-back", "the operator ended the trial", "", "", "nothing is to be done")
		a.noteTrial(ctx, why)
		return a.restart(why)
	}
	return a.try(ctx, o)
}

// begin restarts into the slot that does not run, for one boot.
func (a updater) begin(ctx context.Context, document hullmark.DocumentID, r release) error {
	s, _ := a.updateStatus()
	root := r.Image.RootHash
	other := s.B
	if s.Running == "b" {
		other = s.A
	}
	switch {
	case a.onTrial():
		return refusedRelease("update-busy", "the release that runs is on trial", "", "", "wait until it is committed, or has failed (hullmark update status)")
	case other != root:
		return refusedRelease("not-staged", "the other slot does not hold this release", root.String(), other.String(), "stage it first (hullmark update stage)")
	}
	// What says that it was asked for is stored first: a boot that nobody asked for goes back.
	err := a.keepNote(func(n *updateNote) {
		n.Phase, n.Document, n.RootHash, n.Failed, n.Trial, n.Policy = hullmark.UpdateTrial, document, root, nil, "", r.policy
	})
	if err != nil {
		return err
	}
	if err := errors.Join(a.Slots.Explain(ctx, ""), a.Slots.Try(ctx)); err != nil {
		return errors.Join(&hullmark.Condition{
			Code: "try-failed", Step: StepUpdate, Title: "the firmware was not told to start the other slot: " + err.Error(),
			Next: "look at the firmware's variables: they may be full, or not be kept",
		}, a.keepNote(func(n *updateNote) { n.Phase = hullmark.UpdateStaged }))
	}
	return a.restart(fmt.Errorf("release %.16s is tried", root))
}

// restart lets the machine restart, unless it does already.
func (a updater) restart(why error) error {
	a.updates.leaving.Store(true)
	why = fmt.Errorf("%w: %w", errReboot, why)
	select {
	case a.over <- why:
	default:
	}
	return why
}

// Update has the node do something with its slots, and says how that goes until it is done, or the machine restarts.
func (n *nodeServer) Update(call *wire.UpdateOrder, stream grpc.ServerStreamingServer[wire.UpdateReply]) error {
	ctx := stream.Context()
	if err := n.agent.permit(ctx, channel.VerbUpdate); err != nil {
		return err
	}
	o, err := readOrder(call)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if _, err := n.agent.kept.opened(); err != nil {
		return status.Error(codes.FailedPrecondition, "the node's state disk is not open in this boot: it takes no order before")
	}
	done := make(chan error, 1)
	go func() { done <- (updater{n.agent}).obey(ctx, o) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err = <-done:
			return (updater{n.agent}).reply(stream, err)
		case <-tick.C:
			if err := (updater{n.agent}).reply(stream, nil); err != nil {
				return err
			}
		}
	}
}

// reply says what the slots hold now, and why an order ended, unless it ended well.
func (a updater) reply(stream grpc.ServerStreamingServer[wire.UpdateReply], err error) error {
	s, _ := a.updateStatus()
	text, encodeErr := wire.EncodeUpdateStatus(s)
	if encodeErr != nil {
		return encodeErr
	}
	reply := &wire.UpdateReply{Status: text}
	if err != nil && !errors.Is(err, errReboot) {
		reply.Failed = wire.FromCondition(hullmark.AsCondition(err, StepUpdate, "update-failed"))
	}
	return stream.Send(reply)
}

// director tells join services what a Ready node's slots hold, and does what they say.
type director struct{ updater }

// run asks for as long as the node is Ready.
func (a director) run(ctx context.Context) {
	if a.Slots == nil {
		return
	}
	told := false
	for sleep(ctx, a.pause(told)) == nil {
		if _, known := a.updateStatus(); !known || !a.wasReady() {
			continue
		}
		o, err := a.askAround(ctx)
		if err == nil && o != nil {
			a.follow(ctx, *o)
		}
		told = told || err == nil
	}
}

// pause lies before the next question: what became of a trial is told soon, and how far a release is while it is written.
func (a director) pause(told bool) time.Duration {
	if s, _ := a.updateStatus(); !told || s.Phase == hullmark.UpdateStaging {
		return a.Timing.Report
	}
	return a.Timing.Direction/2 + rand.N(a.Timing.Direction+1)
}

// sleep returns an error if the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// follow does what a direction says, once.
func (a director) follow(ctx context.Context, o order) {
	if a.take(o) {
		go func() { _ = a.obeyAlone(ctx, o) }() // The status has the reason.
	}
}

// take notes a direction before it is begun, and reports whether it is to be obeyed: by who holds working from then on. While the node does
// something else the direction stands, and is heard of again.
func (a director) take(o order) bool {
	if !a.updates.working.TryLock() {
		return false
	}
	n, err := a.readNote()
	if err == nil && o.Follows(n.Serial) {
		if err = a.keepNote(func(n *updateNote) { n.Serial, n.Failed = o.Serial, nil }); err == nil {
			return true
		}
		fmt.Fprintln(a.Status.Log, "update:", err)
	}
	a.updates.working.Unlock()
	return false
}

// askAround asks the join services until one answers. No order means that there is nothing to do.
func (a director) askAround(ctx context.Context) (o *order, err error) {
	err = services{a.Agent}.ask(ctx, func(ctx context.Context, client wire.JoinServiceClient, info credentials.AuthInfo, keys diskKeys) (err error) {
		o, err = a.ask(ctx, client, info, keys)
		return err
	})
	return o, err
}

// ask is one call of one service.
func (a director) ask(ctx context.Context, client wire.JoinServiceClient, info credentials.AuthInfo, keys diskKeys) (*order, error) {
	claim, err := a.claim(info, keys)
	if err != nil {
		return nil, err
	}
	answer, err := client.Update(ctx, claim)
	if err != nil {
		return nil, err
	}
	if err := wire.CheckUpdateAnswer(answer); err != nil {
		return nil, err
	}
	switch {
	case answer.GetDenied() != nil:
		return nil, answer.GetDenied().HullmarkCondition()
	case answer.GetOrder() == nil:
		return nil, nil
	}
	o, err := readOrder(answer.GetOrder())
	return &o, err
}

// claim makes UpdateAsk.
func (a director) claim(info credentials.AuthInfo, keys diskKeys) (*wire.UpdateAsk, error) {
	s, _ := a.updateStatus()
	text, err := wire.EncodeUpdateStatus(s)
	if err != nil {
		return nil, err
	}
	claim, err := proto.Marshal(&wire.UpdateClaim{Ekid: keys.node[:], Uuid: keys.disk[:], Generation: keys.generation, Owner: keys.owner[:], Status: text})
	if err != nil {
		return nil, err
	}
	key, err := channel.Key(&peer.Peer{AuthInfo: info})
	if err != nil {
		return nil, err
	}
	mac, err := attest.UpdateMAC(keys.epoch, key, claim)
	return &wire.UpdateAsk{Claim: claim, Mac: mac}, err
}
