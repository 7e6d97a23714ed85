package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// initRun is one run of `hullmark init`.
type initRun struct {
	release
	options  initOptions
	document measurements.Document
	endpoint string
	// restoration is what etcd begins with; nil means empty.
	restoration *restoration
}

// makeDesk makes the desk with the last policy, to which this init's document and machine are added.
func (r *initRun) makeDesk() error {
	c := r.file.Cluster
	last, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	previous := last
	if r.options.replaceFirst && c.First != nil {
		// The machine that is given up must not stay a member.
		if given := c.First.Node; given != *r.anchor.Node {
			previous = previous.Without(given)
		}
	}
	member := measurements.Member{EKID: *r.anchor.Node, Role: hullmark.ControlPlane, Name: r.options.name}
	policy, err := joinservice.FirstPolicy(previous, r.document, member)
	if err != nil {
		return err
	}
	if policy = r.moveEndpoint(policy); policy.Version == last.Version && !reflect.DeepEqual(policy, last) {
		policy.Version++ // What FirstPolicy compared with had changed, or its result has.
	}
	// What the file cannot keep is refused before the node is dialled.
	trial := *c
	if err := trial.SetPolicy(policy, r.document); err != nil {
		return err
	}
	r.desk = joinservice.Desk{
		Root: c.ID(), Policy: policy, Documents: []measurements.Document{r.document}, Keys: c.Keys,
		Waiver: joinservice.Waiver{NewDisk: r.options.newDisk},
	}
	return nil
}

// do runs the exchange, from the first dial to Ready.
func (r *initRun) do(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	conversation, claims, connection, err := r.attest(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	if r.options.dryRun {
		return r.endDry(conversation, claims)
	}
	return r.admitted(conversation, claims)
}

// endDry tells the node that it gets nothing, and judges all the same.
func (r *initRun) endDry(conversation *joinservice.Conversation, claims attest.Claims) error {
	err := conversation.Deny(&hullmark.Condition{
		Code: "dry-run", Step: "ATTEST", Title: "the operator only wanted to see the evidence", Next: "wait for the operator", Retry: true,
	})
	if verdict := r.desk.Judge(claims.Registers); !verdict.Accepted() {
		return withCode(exitMismatch, r.explain(claims))
	}
	return err
}

// admitted admits the machine and sees it through to Ready.
func (r *initRun) admitted(conversation *joinservice.Conversation, claims attest.Claims) error {
	admission, err := r.admit(claims)
	if err != nil {
		return r.refuse(conversation, claims, err)
	}
	fmt.Fprintf(r.notes, "accepted as %s; the node opens its state disk (%s)\n", admission.Member.Name, claims.Disk.State)
	opened, err := conversation.Grant(admission.Ticket)
	if err != nil {
		return unreachable(err)
	}
	proceed, err := r.commit(claims, admission, opened)
	if err != nil {
		return errors.Join(err, conversation.Deny(hullmark.AsCondition(err, "EPOCH", "not-recorded")))
	}
	if err := conversation.Proceed(proceed); err != nil {
		return err
	}
	sent := r.sendBackup(conversation)
	if r.options.kubeconfig != "" {
		if err := writeKubeconfig(r.file.Cluster, r.endpoint, r.options.kubeconfig); err != nil {
			return err
		}
	}
	if err := r.finish(conversation, claims.Node); err != nil {
		select {
		case cause := <-sent:
			return errors.Join(cause, err)
		default: // Whatever still sends ends with the stream.
			return err
		}
	}
	return <-sent
}

// admit decides, and stores the decision before anything of it leaves this process.
func (r *initRun) admit(claims attest.Claims) (joinservice.Admission, error) {
	var admission joinservice.Admission
	err := r.file.Update(func(c *cluster.Cluster) error {
		if r.options.replaceFirst && c.First != nil && c.First.Node != claims.Node {
			c.GiveUpFirst()
		}
		record, err := c.Record(claims.Node)
		if err != nil {
			return err
		}
		if admission, err = r.desk.Admit(hullmark.Init, claims, record); err != nil {
			return err
		}
		c.SetRecord(claims.Node, admission.Record)
		c.KeepRoot(claims.Node, joinservice.NamedRoot(r.desk.Policy, claims))
		return c.SetPolicy(r.desk.Policy, r.document)
	})
	return admission, err
}

// commit records that the disk holds the ticket's epoch, and only then makes what M6 carries.
func (r *initRun) commit(claims attest.Claims, admission joinservice.Admission, opened joinservice.Opened) (*wire.Proceed, error) {
	parameters, err := r.parameters(claims.Config, admission.Member.Name, opened.Addresses)
	if err != nil {
		return nil, err
	}
	documents, manifests, err := r.options.documents.make(parameters)
	if err != nil {
		return nil, err
	}
	var known cluster.DiskEpoch
	err = r.file.Update(func(c *cluster.Cluster) error {
		if c.Settings == nil || !opened.Joined { // A cluster that runs already keeps its own.
			if c.Settings, err = r.options.documents.settings(parameters, documents); err != nil {
				return err
			}
		}
		var member hullmark.EtcdState
		if opened.Joined {
			if err := c.CheckMember(claims.Node, opened.Etcd); err != nil {
				return err
			}
			member = opened.Etcd
		}
		known = c.Epochs[claims.Node]
		if err := c.Commit(claims.Node, claims.Disk.UUID, admission.Ticket.Disk.Epoch.Issued, member); err != nil {
			return err
		}
		c.Hear(claims.Node, time.Now())
		return nil
	})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(r.notes, "the state disk is open (epoch %d after %d)\n", admission.Ticket.Disk.Epoch.Issued, opened.EpochRead)
	if opened.LastBoot != "" {
		fmt.Fprintf(r.notes, "its last boot was at %s\n", printable(opened.LastBoot))
	}
	if opened.Joined {
		fmt.Fprintln(r.notes, windowOf(known, time.Now()))
	}
	files, err := r.file.Cluster.Files()
	if err != nil {
		return nil, err
	}
	proceed := &wire.Proceed{
		NodeName: admission.Member.Name, Role: string(admission.Member.Role),
		KubeadmDocuments: documents, Files: files, Manifests: manifests,
	}
	policy, err := r.file.Cluster.OpenPolicy()
	if err != nil {
		return nil, err
	}
	if err := r.announce(proceed, opened); err != nil {
		return nil, err
	}
	return proceed, joinservice.AddPool(proceed, policy, admission.Member)
}

// finish sees the node through to Ready, and then records that it was.
func (r *initRun) finish(conversation *joinservice.Conversation, node hullmark.NodeID) error {
	state, err := r.follow(conversation)
	if err != nil {
		return err
	}
	if err := r.file.Update(func(c *cluster.Cluster) error {
		c.Initialised = &node
		c.KeepMember(node, state)
		return nil
	}); err != nil {
		return err
	}
	fmt.Fprintf(r.notes, "%s is Ready\n", r.options.name)
	return nil
}

// nodeAddress chooses the address that the first API server tells others: the
// operator's word, a static address of the measured config, or the node's own word.
func (r *initRun) nodeAddress(config hullmark.NodeConfig, own []netip.Addr) (netip.Addr, error) {
	if r.options.documents.advertise != "" {
		return netip.ParseAddr(r.options.documents.advertise)
	}
	if len(config.Addresses) > 0 {
		prefix, err := netip.ParsePrefix(config.Addresses[0])
		return prefix.Addr(), err
	}
	for _, address := range own {
		if address.IsGlobalUnicast() && address.Is4() {
			return address, nil
		}
	}
	return netip.Addr{}, errors.New("the node named no IPv4 address of its own; next: name it (--advertise-address)")
}
