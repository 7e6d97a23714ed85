package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// RecoverOptions say which control plane comes back, and with which disk.
type RecoverOptions struct {
	// Target is its machine; the endorsement key need not be named where the policy knows one control plane only.
	Target
	// Documents are verified by in place of the cluster file's, if there are any; the policy has to accept each.
	Documents []measurements.Document
	// AcceptRollback goes on although the disk is older than the cluster file knows, or another one.
	AcceptRollback bool
	// Confirm is asked once Progress was told of the disk that the node shows; an error ends the exchange. Nil agrees.
	Confirm func() error
}

// recoverRun is one run of Recover.
type recoverRun struct {
	exchange
	options RecoverOptions
	policy  measurements.Policy
}

// Recover brings back a control plane when no other is up to do it. It is verified as by Init, by the policy and the documents of the
// cluster file; its disk has to hold a control plane that was Ready before, and is never formatted. The errors are those of Init.
func Recover(ctx context.Context, file *cluster.File, o RecoverOptions) error {
	run := &recoverRun{options: o, exchange: exchange{Target: o.Target, kind: hullmark.Recover, file: file}}
	for _, step := range []func() error{run.chooseMachine, run.makeAuthorizer} {
		if err := step(); err != nil {
			return err
		}
	}
	return run.do(ctx)
}

// RecoverByOperator is Recover with an operator's file: by its policy and documents, and by the keys of disks in it. The node is brought
// nothing: it goes by what is on its disk.
func RecoverByOperator(ctx context.Context, file *cluster.OperatorFile, o RecoverOptions) error {
	if err := file.Grant.Who.Check(channel.VerbRecover, time.Now()); err != nil {
		return err
	}
	run := &recoverRun{options: o, exchange: exchange{Target: o.Target, kind: hullmark.Recover, operator: file}}
	for _, step := range []func() error{run.chooseMachine, run.makeAuthorizer} {
		if err := step(); err != nil {
			return err
		}
	}
	return run.do(ctx)
}

// update edits what the file knows of the cluster, and writes it.
func (r *recoverRun) update(change func(*cluster.Cluster) error) error {
	if r.operator != nil {
		return r.operator.Update(func(g *cluster.Grant) error { return change(g.Known) })
	}
	return r.file.Update(change)
}

// keys open control planes' disks.
func (r *recoverRun) keys() joinservice.DiskKeys {
	if r.operator != nil {
		return r.operator.Grant.DiskKeys()
	}
	return r.file.Cluster.Keys
}

// chooseMachine decides which machine has to answer: the one that is named, or the only control plane.
func (r *recoverRun) chooseMachine() (err error) {
	if r.policy, err = r.known().OpenPolicy(); err != nil || r.Anchor.EKID != nil {
		return err
	}
	var known []string
	for _, m := range r.policy.Members {
		if m.Role == hullmark.ControlPlane {
			known = append(known, m.Name+" "+m.EKID.String())
			r.Anchor.EKID = &m.EKID
		}
	}
	switch len(known) {
	case 0:
		return errors.New("the cluster file's policy names no control plane; a new cluster begins with hullmark init")
	case 1:
		return nil
	}
	return as(ErrUsage, fmt.Errorf("the cluster has several control planes; name the one to bring back (--ekid): %s", strings.Join(known, ", ")))
}

// makeAuthorizer makes the authorizer with the last policy and its documents.
func (r *recoverRun) makeAuthorizer() (err error) {
	trial := *r.known()
	if err := r.complete(&trial); err != nil {
		return err
	}
	if err := r.checkGiven(&trial); err != nil {
		return err
	}
	documents := r.options.Documents
	if len(documents) == 0 {
		if documents, err = trial.AcceptedDocuments(); err != nil {
			return err
		}
	}
	if len(documents) == 0 {
		return errors.New("the policy accepts no document; next: add one (hullmark policy add document)")
	}
	r.authorizer = joinservice.Authorizer{Root: trial.ID(), Policy: r.policy, Documents: documents, Keys: r.keys()}
	return nil
}

// checkGiven refuses documents that the policy does not accept.
func (r *recoverRun) checkGiven(c *cluster.Cluster) error {
	for _, document := range r.options.Documents {
		id, err := document.Digest()
		if err != nil {
			return err
		}
		if c.Documents[id] == nil {
			return fmt.Errorf("--measurements: the policy does not accept this document (%s, %s)", imageName(document), id)
		}
	}
	return nil
}

// complete adds to a cluster what --measurements brings and its policy accepts already. An operator has all that it accepts.
func (r *recoverRun) complete(c *cluster.Cluster) error {
	if r.operator != nil {
		return nil
	}
	return c.SetPolicy(r.policy, r.options.Documents...)
}

// do runs the exchange, from the first dial to Ready.
func (r *recoverRun) do(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	conversation, claims, connection, err := r.attest(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	admission, err := r.authorizer.Recover(hullmark.Recover, claims)
	if err != nil {
		return r.refuse(conversation, claims, err)
	}
	r.Progress.say("accepted as %s; the node opens its state disk", admission.Member.Name)
	opened, err := conversation.Grant(admission.Ticket)
	if err != nil {
		return unreachable(err)
	}
	proceed, err := r.decide(claims, admission.Member, opened)
	if err != nil {
		return r.refuse(conversation, claims, err)
	}
	if err := conversation.Proceed(proceed); err != nil {
		return err
	}
	state, err := r.follow(conversation)
	if err != nil {
		return err
	}
	err = r.update(func(c *cluster.Cluster) error {
		c.KeepEtcdMember(claims.EKID, state)
		return nil
	})
	if err != nil {
		return err
	}
	r.Progress.say("%s is Ready", admission.Member.Name)
	return nil
}

// decide holds the open disk to what is known of it, asks the operator, records
// the answer, and makes what Proceed carries.
func (r *recoverRun) decide(claims attest.Claims, member measurements.Member, opened joinservice.Opened) (*wire.Proceed, error) {
	if !opened.Joined {
		return nil, &hullmark.Condition{
			Code: "not-initialised", Step: "EPOCH", Title: "the disk holds no control plane that was ever Ready",
			Next: "run hullmark init again; it goes on where it was interrupted",
		}
	}
	found := cluster.DiskEpoch{Disk: claims.Disk.UUID, Epoch: opened.EpochRead, Etcd: opened.Etcd}
	r.show(claims.EKID, found, opened.LastBoot)
	if err := cmp.Or(r.known().CheckEpoch(claims.EKID, found), r.known().CheckEtcdMember(claims.EKID, found.Etcd)); err != nil {
		if !r.options.AcceptRollback {
			return nil, err
		}
		r.Progress.say("going on with it all the same, as you said (--accept-rollback)")
	}
	if r.options.Confirm != nil {
		if err := r.options.Confirm(); err != nil {
			return nil, err
		}
	}
	err := r.update(func(c *cluster.Cluster) error {
		c.KeepEpoch(claims.EKID, found)
		c.Hear(claims.EKID, time.Now())
		c.KeepRoot(claims.EKID, joinservice.NamedRoot(r.policy, claims))
		return r.complete(c)
	})
	if err != nil {
		return nil, hullmark.AsCondition(err, "EPOCH", "not-recorded")
	}
	return r.proceed(member, opened)
}

// proceed makes what Proceed carries. Of an operator the node takes no more than who it is.
func (r *recoverRun) proceed(member measurements.Member, opened joinservice.Opened) (*wire.Proceed, error) {
	proceed := &wire.Proceed{NodeName: member.Name, Role: string(member.Role), Time: time.Now().Unix()}
	var settings joinservice.Settings
	if r.known().Settings != nil { // Else the cluster was initialised by another file.
		var err error
		if settings, err = r.known().CurrentSettings(); err != nil {
			return nil, err
		}
		named, _ := settings.NodeAddresses(opened.Addresses)
		settings.Tell(proceed, named)
	}
	if r.operator != nil {
		return proceed, nil
	}
	proceed.Endpoint, proceed.Names = settings.ControlPlaneEndpoint, settings.Names
	c := r.file.Cluster
	var err error
	if proceed.Files, err = c.Files(); err != nil {
		return nil, err
	}
	return proceed, joinservice.AddPool(proceed, r.policy, member, c.Keys, r.policy.First(c.ID()))
}

// show says what the disk holds beside what the cluster file knows.
func (r *recoverRun) show(node hullmark.EKID, found cluster.DiskEpoch, lastBoot string) {
	if lastBoot == "" {
		lastBoot = "unknown"
	}
	r.Progress.say("state disk    %s at epoch %d, last boot %s (by the node's own clock)", found.Disk, found.Epoch, lastBoot)
	known, ok := r.known().Epochs[node]
	if !ok {
		r.Progress.say("cluster file  knows nothing of this machine's disk, so it cannot tell an older copy")
		return
	}
	r.Progress.say("cluster file  %s at epoch %d or later; %s", known.Disk, known.Epoch, known.UndetectedSince(time.Now()))
	if known.Etcd != (hullmark.EtcdState{}) {
		r.Progress.say("etcd          %s; cluster file: %s, or more", found.Etcd, known.Etcd)
	}
}
