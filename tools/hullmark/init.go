package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// initOptions are the flags of `hullmark init`.
type initOptions struct {
	releaseOptions
	measurements          string
	name                  string
	kubeconfig, endpoint  string
	documents             documentOptions
	dryRun                bool
	newDisk, replaceFirst bool
	etcdBackup            string
}

func newInitCommand() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Verify a cluster's first node, give it its disk key, and see it Ready",
		Long: `Verify a cluster's first node, give it its disk key, and see it Ready.

The node's TPM has to quote the registers that the measurement document predicts, over this very connection, with a key that lives
beside the endorsement key that you name. The table shows both sides. Only then does the node get its disk key, the cluster's keys
and its kubeadm documents. Run the same command again after an interruption, or after the node was powered off.

Exit codes: 0 Ready (or verified, with --dry-run), 1 failed, 2 usage, 3 the node booted something else, 4 denied, 5 not reached.`,
		Example: "  hullmark init --cluster prod.cluster --node 192.0.2.7 --measurements node.json --ek $(cat ek.id) --kubeconfig admin.conf",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runRelease(cmd, o.output, o.prepare) },
	}
	o.addFlags(cmd)
	return cmd
}

func (o *initOptions) addFlags(cmd *cobra.Command) {
	o.releaseOptions.addFlags(cmd)
	o.documents.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.measurements, "measurements", "", "measurement document `FILE` that the node has to match")
	f.StringVar(&o.name, "name", "control-plane-1", "the node's `NAME`")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "write an administrator's kubeconfig to `FILE` (mode 0600)")
	f.StringVar(&o.endpoint, "endpoint", "", "`HOST:PORT` at which you reach the API server (default: the node's host, port 6443)")
	f.BoolVar(&o.dryRun, "dry-run", false, "stop after the table; the node gets nothing")
	f.BoolVar(&o.newDisk, "new-disk", false, "let the node format another disk than the recorded one, whose data is given up")
	f.StringVar(&o.etcdBackup, "etcd-backup", "", "begin a lost cluster anew with this `FILE` of hullmark etcd backup")
	f.BoolVar(&o.replaceFirst, "replace-first", false, "let another machine be the first node; the recorded one's data is given up")
	require(cmd, "measurements", "ek")
}

// initRun is one run of `hullmark init`.
type initRun struct {
	release
	options  initOptions
	document measurements.Document
	endpoint string
	// restoration is what etcd begins with; nil means empty.
	restoration *restoration
}

// prepare reads every file, and makes the policy that this init admits by.
func (o *initOptions) prepare(out, notes io.Writer) (*initRun, error) {
	run := &initRun{options: *o, release: newRelease(hullmark.Init, &o.releaseOptions, out, notes)}
	for _, step := range []func() error{run.checkFlags, run.readAnchor, run.readDocument, run.chooseEndpoint, run.checkKubeconfig, run.options.documents.check, run.openCluster, run.keepSettings, run.makeAuthorizer, run.readBackup} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return run, nil
}

func (r *initRun) checkFlags() error {
	if !hullmark.ValidNodeName(r.options.name) {
		return withCode(exitUsage, fmt.Errorf("--name %q: want a DNS label: at most 63 lower-case letters, digits and hyphens", r.options.name))
	}
	if d := r.options.documents; d.network == "none" && len(d.manifests) == 0 && r.options.etcdBackup == "" {
		return withCode(exitUsage, errors.New("--network none: a node without a pod network never becomes Ready; name its manifests (--manifest)"))
	}
	return r.options.operatorOptions.check()
}

func (r *initRun) readAnchor() error {
	if err := r.setEK(r.options.ek); err != nil {
		return err
	}
	return r.readAuthorities(r.options.ekCA)
}

func (r *initRun) readDocument() (err error) {
	r.document, err = readDocument(r.options.measurements)
	return err
}

// checkKubeconfig makes sure that the file can and may be written, before the node that it is for has a disk.
func (r *initRun) checkKubeconfig() error {
	if r.options.kubeconfig == "" {
		return nil
	}
	if err := checkKubeconfig(r.options.kubeconfig); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(r.options.kubeconfig), ".hullmark-")
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// chooseEndpoint decides where the kubeconfig points.
func (r *initRun) chooseEndpoint() error {
	r.endpoint = r.options.endpoint
	if r.endpoint == "" {
		host, _, err := net.SplitHostPort(r.options.address())
		if err != nil {
			return withCode(exitUsage, fmt.Errorf("--node: %w", err))
		}
		r.endpoint = net.JoinHostPort(host, "6443")
	}
	if err := checkHostPort(r.endpoint); err != nil {
		return withCode(exitUsage, fmt.Errorf("--endpoint: %w", err))
	}
	return nil
}

// makeAuthorizer makes the authorizer with the last policy, to which this init's document and machine are added.
func (r *initRun) makeAuthorizer() error {
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
	r.authorizer = joinservice.Authorizer{
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
	if verdict := r.authorizer.Judge(claims.Registers); !verdict.Accepted() {
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
		if admission, err = r.authorizer.Admit(hullmark.Init, claims, record); err != nil {
			return err
		}
		c.SetRecord(claims.Node, admission.Record)
		c.KeepRoot(claims.Node, joinservice.NamedRoot(r.authorizer.Policy, claims))
		return c.SetPolicy(r.authorizer.Policy, r.document)
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
			if err := r.checkAlone(c, claims.Node); err != nil {
				return err
			}
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

// checkAlone refuses to bring a node back that was Ready before, and is not the only control plane: the others know how recent
// its disk has to be, of which the cluster file knows what the last init or recover saw.
func (r *initRun) checkAlone(c *cluster.Cluster, node hullmark.NodeID) error {
	other := func(m measurements.Member) bool { return m.Role == hullmark.ControlPlane && m.EKID != node }
	if c.Initialised == nil || !slices.ContainsFunc(r.authorizer.Policy.Members, other) {
		return nil
	}
	return &hullmark.Condition{
		Code: "other-control-planes", Step: "EPOCH", Title: "the cluster has other control planes, which know how recent this one's disk has to be, and the cluster file may not",
		Next: "let it come back by a join service; if all control planes are down, bring the one with the newest disk back (hullmark recover)",
	}
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
