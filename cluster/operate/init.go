package operate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// InitOptions say which machine becomes a cluster's first node, and what the cluster is to be like.
type InitOptions struct {
	// Target is the machine. Its endorsement key has to be named.
	Target
	// Document is what it has to have booted.
	Document measurements.Document
	// Enforce are the registers of the document that have to match beside those that always have; nil takes what Accept takes, or what
	// the policy says of the document already.
	Enforce []pcrs.Register
	// Name is the node's. It is needed, as Endpoint, Kubernetes and what Target wants are.
	Name string
	// Endpoint is the HOST:PORT at which the operator reaches its API server, whose certificate names that host, too.
	Endpoint string
	// Kubernetes say what kubeadm reads.
	Kubernetes Kubernetes
	// Kubeconfig, unless it is nil, is given an administrator's for Endpoint, before the node is Ready.
	Kubeconfig func(text []byte) error
	// DryRun ends after the report; the node gets nothing.
	DryRun bool
	// NewDisk lets the node format another disk than the recorded one, whose data is given up.
	NewDisk bool
	// ReplaceFirst lets another machine be the first node; the recorded one's data is given up.
	ReplaceFirst bool
	// Backup is one of BackUp, with which a lost cluster begins anew; nil begins an empty one.
	Backup *os.File
}

// Check refuses what cannot be right in any cluster, so that nobody is asked for a passphrase in vain. The error is ErrUsage.
func (o *InitOptions) Check() error {
	if o.Anchor.EKID == nil {
		return as(ErrUsage, errors.New("--ekid: want the EKID"))
	}
	if !hullmark.ValidNodeName(o.Name) {
		return as(ErrUsage, fmt.Errorf("--name %q: want a DNS label: at most 63 lower-case letters, digits and hyphens", o.Name))
	}
	if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return as(ErrUsage, fmt.Errorf("address of the node: %q: want HOST:PORT", o.Address))
	}
	if _, ok := hullmark.EndpointHost(o.Endpoint); !ok {
		return as(ErrUsage, fmt.Errorf("--endpoint %q: want HOST:PORT", o.Endpoint))
	}
	if d := o.Kubernetes; !d.Flannel && len(d.Manifests) == 0 && o.Backup == nil {
		return as(ErrUsage, errors.New("--network none or kube-proxy: a node without a pod network never becomes Ready; name its manifests (--manifest)"))
	}
	return o.Kubernetes.check()
}

// initRun is one run of Init.
type initRun struct {
	exchange
	options InitOptions
	// restoration is what etcd begins with; nil means empty.
	restoration *restoration
}

// Init verifies a cluster's first node, gives it its disk key, the cluster's keys and its kubeadm documents, and sees it Ready. After an
// interruption, or when the node was powered off, the same call goes on. All that can be checked before the node is dialled is. The error
// is ErrUsage, ErrUnreachable, ErrMismatch if the node booted something else, ErrDenied, or holds the *hullmark.Condition of a refusal, or
// of what failed on the node (joinservice.NodeError).
func Init(ctx context.Context, file *cluster.File, o InitOptions) error {
	run := &initRun{options: o, exchange: exchange{Target: o.Target, kind: hullmark.Init, file: file}}
	for _, step := range []func() error{run.options.Check, run.keepSettings, run.makeAuthorizer, run.readBackup} {
		if err := step(); err != nil {
			return err
		}
	}
	return run.do(ctx)
}

// makeAuthorizer makes the authorizer with the last policy, to which this init's document and machine are added.
func (r *initRun) makeAuthorizer() error {
	c := r.file.Cluster
	last, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	previous := last
	if r.options.ReplaceFirst {
		// The machines that are given up must not stay members.
		for _, given := range c.Firsts() {
			if given != *r.Anchor.EKID {
				previous = previous.Without(given)
			}
		}
	}
	member := measurements.Member{EKID: *r.Anchor.EKID, Role: hullmark.ControlPlane, Name: r.options.Name}
	accepted, err := Accept(r.options.Document, r.options.Enforce)
	if err != nil {
		return err
	}
	policy, err := joinservice.FirstPolicy(previous, r.options.Document, member)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(policy.Documents, func(a measurements.Accepted) bool { return a.Document == accepted.Document })
	if policy.Documents = slices.Clone(policy.Documents); r.options.Enforce != nil {
		policy.Documents[i].Enforce = accepted.Enforce
	}
	r.Progress.say("%s", Terms(r.options.Document, policy.Documents[i]))
	if policy = r.moveEndpoint(policy); policy.Version == last.Version && !reflect.DeepEqual(policy, last) {
		policy.Version++ // What FirstPolicy compared with had changed, or its result has.
	}
	// What the file cannot keep is refused before the node is dialled.
	trial := *c
	if err := trial.SetPolicy(policy, r.options.Document); err != nil {
		return err
	}
	r.authorizer = joinservice.Authorizer{
		Root: c.ID(), Policy: policy, Documents: []measurements.Document{r.options.Document}, Keys: c.Keys,
		Waiver: joinservice.Waiver{NewDisk: r.options.NewDisk},
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
	if r.options.DryRun {
		return r.endDry(conversation, claims)
	}
	return r.admitted(conversation, claims)
}

// endDry tells the node that it gets nothing, and judges all the same.
func (r *initRun) endDry(conversation *joinservice.Conversation, claims attest.Claims) error {
	err := conversation.Deny(dryRun())
	if verdict := r.authorizer.Judge(claims); !verdict.Accepted() {
		return as(ErrMismatch, r.explain(claims))
	}
	return err
}

// admitted admits the machine and sees it through to Ready.
func (r *initRun) admitted(conversation *joinservice.Conversation, claims attest.Claims) error {
	admission, err := r.admit(claims)
	if err != nil {
		return r.refuse(conversation, claims, err)
	}
	r.Progress.say("accepted as %s; the node opens its state disk (%s)", admission.Member.Name, claims.Disk.State)
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
	if err := r.makeKubeconfig(); err != nil {
		return err
	}
	if err := r.finish(conversation, claims.EKID); err != nil {
		select {
		case cause := <-sent:
			return errors.Join(cause, err)
		default: // Whatever still sends ends with the stream.
			return err
		}
	}
	return <-sent
}

// makeKubeconfig hands an administrator's over.
func (r *initRun) makeKubeconfig() error {
	if r.options.Kubeconfig == nil {
		return nil
	}
	text, err := r.file.Cluster.Kubeconfig(r.options.Endpoint, time.Now())
	if err != nil {
		return err
	}
	return r.options.Kubeconfig(text)
}

// admit decides, and stores the decision before anything of it leaves this process.
func (r *initRun) admit(claims attest.Claims) (joinservice.Admission, error) {
	var admission joinservice.Admission
	err := r.file.Update(func(c *cluster.Cluster) error {
		if r.options.ReplaceFirst && slices.ContainsFunc(c.Firsts(), func(first hullmark.EKID) bool { return first != claims.EKID }) {
			c.GiveUpFirst()
		}
		record, err := c.Record(claims.EKID)
		if err != nil {
			return err
		}
		if admission, err = r.authorizer.Admit(hullmark.Init, claims, record); err != nil {
			return err
		}
		c.SetRecord(claims.EKID, admission.Record)
		c.KeepRoot(claims.EKID, joinservice.NamedRoot(r.authorizer.Policy, claims))
		return c.SetPolicy(r.authorizer.Policy, r.options.Document)
	})
	return admission, err
}

// commit records that the disk holds the ticket's epoch, and only then makes what Proceed carries.
func (r *initRun) commit(claims attest.Claims, admission joinservice.Admission, opened joinservice.Opened) (*wire.Proceed, error) {
	parameters, err := r.parameters(claims.Config, admission.Member, opened.Addresses)
	if err != nil {
		return nil, err
	}
	documents, manifests, err := r.options.Kubernetes.make(parameters)
	if err != nil {
		return nil, err
	}
	var known cluster.DiskEpoch
	err = r.file.Update(func(c *cluster.Cluster) error {
		if c.Settings == nil || !opened.Joined { // A cluster that runs already keeps its own.
			if c.Settings, err = r.options.Kubernetes.settings(parameters, documents); err != nil {
				return err
			}
		}
		var member hullmark.EtcdState
		if opened.Joined {
			if err := r.checkAlone(c, claims.EKID); err != nil {
				return err
			}
			if err := c.CheckEtcdMember(claims.EKID, opened.Etcd); err != nil {
				return err
			}
			member = opened.Etcd
		}
		known = c.Epochs[claims.EKID]
		if err := c.Commit(claims.EKID, claims.Disk.UUID, admission.Ticket.Disk.Epoch.Issued, member); err != nil {
			return err
		}
		c.Hear(claims.EKID, time.Now())
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Progress.say("the state disk is open (epoch %d after %d)", admission.Ticket.Disk.Epoch.Issued, opened.EpochRead)
	if opened.LastBoot != "" {
		r.Progress.say("its last boot was at %s", opened.LastBoot)
	}
	if opened.Joined {
		r.Progress.say("%s", known.UndetectedSince(time.Now()))
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
	if err := r.tellAddresses(proceed, parameters.AdvertiseAddress, opened.Addresses); err != nil {
		return nil, err
	}
	if err := r.announce(proceed, opened); err != nil {
		return nil, err
	}
	return proceed, joinservice.AddPool(proceed, policy, admission.Member, r.file.Cluster.Keys, policy.First(r.file.Cluster.ID()))
}

// tellAddresses names in Proceed those of the node's addresses that its kubelet is to name, the API server's among them.
func (r *initRun) tellAddresses(proceed *wire.Proceed, advertised netip.Addr, own []netip.Addr) error {
	settings, err := r.file.Cluster.CurrentSettings()
	if err != nil {
		return err
	}
	if slices.Contains(own, advertised) {
		own = append([]netip.Addr{advertised}, own...)
	}
	named, missing := settings.NodeAddresses(own)
	if len(named) > 0 && missing != "" {
		return &hullmark.Condition{
			Code: "address-missing", Step: "EPOCH", Title: fmt.Sprintf("the node named no %s address, and the cluster's networks are of both families", missing),
			Got: fmt.Sprint(own), Next: "give the machine one, by DHCP, router advertisement or in its node config, and run hullmark init again",
		}
	}
	settings.Tell(proceed, named)
	return nil
}

// finish sees the node through to Ready, and then records that it was.
func (r *initRun) finish(conversation *joinservice.Conversation, node hullmark.EKID) error {
	state, err := r.follow(conversation)
	if err != nil {
		return err
	}
	if err := r.file.Update(func(c *cluster.Cluster) error {
		c.Initialised = &node
		c.KeepEtcdMember(node, state)
		return nil
	}); err != nil {
		return err
	}
	r.Progress.say("%s is Ready", r.options.Name)
	return nil
}

// nodeAddress chooses the address that the first API server tells others: the
// operator's word, a static address of the measured config, or the node's own word.
func (r *initRun) nodeAddress(config hullmark.NodeConfig, own []netip.Addr) (netip.Addr, error) {
	if given := r.options.Kubernetes.Advertise; given.IsValid() {
		return given, nil
	}
	family, err := r.options.Kubernetes.primary()
	if err != nil {
		return netip.Addr{}, err
	}
	var static []netip.Addr
	for _, text := range config.OwnAddresses() {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Addr{}, err
		}
		static = append(static, prefix.Addr())
	}
	for _, address := range slices.Concat(static, own) {
		if address.IsGlobalUnicast() && joinservice.FamilyOf(address) == family {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the node named no %s address of its own; next: name it (--advertise-address)", family)
}

// checkAlone refuses to bring a node back that was Ready before, and is not the only control plane: the others know how recent
// its disk has to be, of which the cluster file knows what the last init or recover saw.
func (r *initRun) checkAlone(c *cluster.Cluster, node hullmark.EKID) error {
	other := func(m measurements.Member) bool { return m.Role == hullmark.ControlPlane && m.EKID != node }
	if c.Initialised == nil || !slices.ContainsFunc(r.authorizer.Policy.Members, other) {
		return nil
	}
	return &hullmark.Condition{
		Code: "other-control-planes", Step: "EPOCH",
		Title: "the cluster has other control planes, which know how recent this one's disk has to be, and the cluster file may not",
		Next:  "let it come back by a join service; if all control planes are down, bring the one with the newest disk back (hullmark recover)",
	}
}
