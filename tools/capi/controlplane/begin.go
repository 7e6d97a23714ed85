package controlplane

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/custody"
)

// dialWait is how long one attempt waits for a machine that still boots.
const dialWait = 10 * time.Minute

// The networks of a Cluster that names none, as "hullmark init" has them.
const (
	defaultPods     = "10.244.0.0/16"
	defaultServices = "10.96.0.0/12"
)

// beginCluster makes the first Machine and begins the cluster on it. One that dies before the cluster runs is followed by another, for
// which the cluster file has to be lent again.
func (r *Reconciler) beginCluster(ctx context.Context, s *scope) error {
	if begun, err := r.hasBegun(ctx, s); err != nil {
		return err
	} else if begun {
		s.plane.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
		return nil
	}
	present := s.present()
	if len(present) == 0 {
		r.jobs.cancel(s.plane.UID)
		s.plane.Status.First = v1alpha1.FirstMachine{}
		if len(s.machines) > 0 {
			s.say(v1alpha1.BegunCondition, false, v1alpha1.WaitingForMachineReason, "Machine %s is being deleted; another one takes its place then", s.machines[0].Name)
			s.soon(s.retry)
			return r.dropHooks(ctx, s)
		}
		s.say(v1alpha1.BegunCondition, false, v1alpha1.WaitingForMachineReason, "the first Machine is being made")
		s.soon(s.retry)
		return r.makeMachine(ctx, s, planned{FailureDomain: r.placeNew(ctx, s)})
	}
	if err := r.dropHooks(ctx, s); err != nil {
		return err
	}
	first := present[0]
	id := identify(first.infra)
	s.plane.Status.First = v1alpha1.FirstMachine{Machine: first.Name, Progress: s.plane.Status.First.Progress}
	if !id.known() {
		s.say(v1alpha1.BegunCondition, false, v1alpha1.WaitingForMachineReason, "Machine %s: %s %s: %s", first.Name, first.Spec.InfrastructureRef.Kind, first.Spec.InfrastructureRef.Name, id.missing)
		s.soon(s.retry)
		return nil
	}
	s.plane.Status.First.EKID = id.node.String()
	options, ok, err := r.prepare(ctx, s, first, id)
	if err != nil || !ok {
		return err
	}
	r.follow(s, first, id, options)
	return nil
}

// hasBegun reports whether the lent file says that the cluster runs: a control plane that was moved, or restored of a backup, has no
// status, and its first machine may be gone long since. A file that cannot be opened says nothing.
func (r *Reconciler) hasBegun(ctx context.Context, s *scope) (bool, error) {
	file, err := r.Custody.OpenCluster(ctx, r.lentKey(s))
	var status apierrors.APIStatus
	if errors.As(err, &status) && !apierrors.IsNotFound(err) {
		return false, err
	}
	if err != nil || file.Cluster.Initialised == nil {
		return false, nil
	}
	return file.Cluster.ID().String() == s.plane.Spec.Config.ClusterRoot || r.runsOn(ctx, s, file), nil
}

// runsOn reports whether one of the Machines runs the cluster of a file. Where the root was exchanged, the spec names another one than the
// file that was lent, which is not lent again.
func (r *Reconciler) runsOn(ctx context.Context, s *scope, file *cluster.File) bool {
	return slices.ContainsFunc(s.machines, func(m *machine) bool {
		node := nodeIDOf(m)
		return node != (hullmark.EKID{}) && r.runsAlready(ctx, file, s.server, node, m.Name) == nil
	})
}

// prepare looks whether all is there that the first machine needs, and right. If not, it has said so.
func (r *Reconciler) prepare(ctx context.Context, s *scope, first *machine, id identity) (o operate.InitOptions, ok bool, err error) {
	file, refused, err := r.lentFile(ctx, s, first, id)
	if err == nil && refused == nil {
		s.file = file
		o, refused, err = r.options(ctx, s, first, id)
	}
	if err != nil {
		return o, false, err
	}
	if refused != nil {
		r.jobs.cancel(s.plane.UID)
		s.verdicts[v1alpha1.BegunCondition] = *refused
		s.soon(s.retry)
		return o, false, nil
	}
	return o, true, nil
}

// lentFile opens the file that was lent for a machine, or says why there is none for it.
func (r *Reconciler) lentFile(ctx context.Context, s *scope, first *machine, id identity) (*cluster.File, *verdict, error) {
	key := r.lentKey(s)
	refuse := func(reason, format string, args ...any) (*cluster.File, *verdict, error) {
		return nil, &verdict{reason: reason, message: fmt.Sprintf(format, args...)}, nil
	}
	file, err := r.Custody.OpenCluster(ctx, key)
	var status apierrors.APIStatus
	switch {
	case apierrors.IsNotFound(err):
		return refuse(v1alpha1.WaitingForClusterFileReason, "lend the cluster file for Machine %s: %s", first.Name, r.lendCommands(s, first, id, false))
	case errors.As(err, &status):
		return nil, nil, err
	case err != nil:
		return refuse(v1alpha1.ClusterFileInvalidReason, "%v. Lend it again for Machine %s: %s", err, first.Name, r.lendCommands(s, first, id, false))
	}
	if want := s.plane.Spec.Config.ClusterRoot; file.Cluster.ID().String() != want {
		return refuse(v1alpha1.ClusterFileInvalidReason, "secret %s is of cluster root %s, and spec.config.clusterRoot is %s: lend the right file, or make the control plane anew. If its cluster runs on these Machines, and its root was exchanged, "+
			"change nothing: it is found when its API answers at %s", key, file.Cluster.ID(), want, s.server)
	}
	if problem, err := r.checkProvided(ctx, s, file.Cluster); err != nil || problem != "" {
		return nil, &verdict{reason: v1alpha1.ClusterFileInvalidReason, message: problem}, err
	}
	node, err := file.Cluster.Lease.Node()
	if err != nil {
		return refuse(v1alpha1.ClusterFileInvalidReason, "secret %s: %v", key, err)
	}
	if node != id.node {
		return refuse(v1alpha1.WaitingForClusterFileReason, "secret %s was lent for machine %s, and the first one is now Machine %s. The other one is given up with its data: %s",
			key, node, first.Name, r.lendCommands(s, first, id, true))
	}
	policy, err := file.Cluster.OpenPolicy()
	if err != nil {
		return refuse(v1alpha1.ClusterFileInvalidReason, "secret %s: %v", key, err)
	}
	if member, ok := policy.Member(id.node); !ok || member.Name != first.Name || member.ProviderID != id.providerID {
		return refuse(v1alpha1.WaitingForClusterFileReason, "secret %s was lent with the name %q and the provider ID %q, and Machine %s has %q: %s",
			key, member.Name, member.ProviderID, first.Name, id.providerID, r.lendCommands(s, first, id, false))
	}
	return file, nil, nil
}

func (r *Reconciler) lentKey(s *scope) client.ObjectKey {
	return client.ObjectKey{Namespace: s.plane.Namespace, Name: custody.LentName(s.cluster.Name)}
}

// lendCommands is what a person with the cluster file runs.
func (r *Reconciler) lendCommands(s *scope, m *machine, id identity, replace bool) string {
	key, flag := r.lentKey(s), ""
	if replace {
		flag = " --replace-first"
	}
	return fmt.Sprintf("hullmark cluster lend %[1]s.sealed --cluster FILE --recipient %[2]s --for %[7]s/%[10]s --ekid %[3]s --name %[4]s --provider-id %[5]s --measurements DOCUMENT%[6]s && "+
		"kubectl create secret generic %[1]s -n %[7]s --from-file=%[8]s=%[1]s.sealed --dry-run=client -o yaml | "+
		"kubectl label --local -f - %[9]s=%[10]s %[11]s= -o yaml | kubectl apply -f -",
		key.Name, r.Custody.Recipient(), id.node, m.Name, id.providerID, flag, key.Namespace, custody.ClusterKey, clusterv1.ClusterNameLabel, s.cluster.Name, clusterctlv1.ClusterctlMoveLabel)
}

// options are those of the machine's init, or why there are none.
func (r *Reconciler) options(ctx context.Context, s *scope, first *machine, id identity) (o operate.InitOptions, refused *verdict, err error) {
	refuse := func(reason, format string, args ...any) (operate.InitOptions, *verdict, error) {
		return o, &verdict{reason: reason, message: fmt.Sprintf(format, args...)}, nil
	}
	lease := s.file.Cluster.Lease
	document, err := measurements.Parse(s.file.Cluster.Documents[lease.Document])
	if err != nil {
		return refuse(v1alpha1.ClusterFileInvalidReason, "secret %s: measurement document %s: %v", r.lentKey(s), lease.Document, err)
	}
	if has := document.Image.Kubernetes.String(); strings.TrimPrefix(has, "v") != strings.TrimPrefix(versionOf(s.plane), "v") {
		return refuse(v1alpha1.VersionMismatchReason, "spec.version is %s, and the image of the document that the file was lent with brings Kubernetes %s: change spec.version, or boot the image of that version and lend with its document",
			s.plane.Spec.Version, has)
	}
	node := id.node
	o = operate.InitOptions{
		Target:   operate.Target{Node: operate.Node{Address: id.agent, Wait: dialWait}, Anchor: verifier.Anchor{EKID: &node}},
		Document: document, Name: first.Name, Endpoint: s.server,
	}
	var problem error
	if o.Kubernetes, problem, err = r.kubernetes(ctx, s); err != nil {
		return o, nil, err
	}
	if problem == nil {
		problem = o.Check()
	}
	if problem != nil {
		return refuse(v1alpha1.SpecRefusedReason, "%v", problem)
	}
	return o, nil, nil
}

// kubernetes are the options that Cluster and spec say; problem is what cannot be honoured of these.
func (r *Reconciler) kubernetes(ctx context.Context, s *scope) (k operate.Kubernetes, problem, err error) {
	spec, network := s.plane.Spec.Kubernetes, s.cluster.Spec.ClusterNetwork
	k = operate.Kubernetes{
		ControlPlane: endpointOf(s.cluster), Profile: kubeadm.Profile(spec.Profile), Several: true, Workloads: ptr.Deref(spec.Workloads, false),
		KubeProxy: spec.Network != v1alpha1.NoNetwork, Flannel: spec.Network != v1alpha1.NoNetwork && spec.Network != v1alpha1.KubeProxyNetwork, WireGuard: spec.Network == v1alpha1.WireGuardNetwork, NetworkPolicies: true,
	}
	if d := network.ServiceDomain; d != "" && d != "cluster.local" {
		return k, fmt.Errorf("spec.clusterNetwork.serviceDomain %q: Hullmark's clusters have cluster.local", d), nil
	}
	if k.PodSubnet, problem = subnet("pods", network.Pods.CIDRBlocks, defaultPods); problem != nil {
		return k, problem, nil
	}
	if k.ServiceSubnet, problem = subnet("services", network.Services.CIDRBlocks, defaultServices); problem != nil {
		return k, problem, nil
	}
	for _, ref := range spec.Manifests {
		held := &corev1.ConfigMap{}
		switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: s.plane.Namespace, Name: ref.Name}, held); {
		case apierrors.IsNotFound(err):
			return k, fmt.Errorf("spec.kubernetes.manifests: ConfigMap %s is not there: make it", ref.Name), nil
		case err != nil:
			return k, nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(held.Data)) {
			k.Manifests = append(k.Manifests, []byte(held.Data[key]))
		}
	}
	return k, nil, nil
}

// subnet are the networks that a Cluster names.
func subnet(what string, blocks []string, otherwise string) (kubeadm.Subnets, error) {
	if len(blocks) == 0 {
		return kubeadm.ParseSubnets(otherwise)
	}
	subnets, err := kubeadm.ParseSubnets(strings.Join(blocks, ","))
	if err != nil {
		err = fmt.Errorf("spec.clusterNetwork.%s.cidrBlocks: %w", what, err)
	}
	return subnets, err
}

// follow looks after the job that begins the cluster, and tells how it stands.
func (r *Reconciler) follow(s *scope, first *machine, id identity, o operate.InitOptions) {
	s.soon(s.retry)
	key, lent, server := r.lentKey(s), r.jobKey(s, first, id), s.server
	j := r.jobs.ensure(s.plane, lent, func(ctx context.Context, progress func(string)) outcome {
		return r.attempt(ctx, key, server, o, progress)
	})
	progress, out, over := j.state()
	s.plane.Status.First.Progress = progress
	switch {
	case out.done:
		s.plane.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
		s.plane.Status.First.Progress = ""
		r.jobs.cancel(s.plane.UID)
		r.Events.Eventf(s.plane, nil, corev1.EventTypeNormal, v1alpha1.BegunReason, "BeginCluster", "The cluster runs on Machine %s", first.Name)
	case out.reason == "":
		s.say(v1alpha1.BegunCondition, false, v1alpha1.BeginningReason, "Machine %s, at %s: %s", first.Name, id.agent, orElse(progress, "begun"))
	case over || progress == "":
		s.verdicts[v1alpha1.BegunCondition] = verdict{reason: out.reason, message: out.message}
	default:
		s.verdicts[v1alpha1.BegunCondition] = verdict{reason: out.reason, message: out.message + "; now: " + progress}
	}
}

// jobKey says what a job does: another machine, another lent file or another spec is another job.
func (r *Reconciler) jobKey(s *scope, first *machine, id identity) string {
	lease := sha256.Sum256(s.file.Cluster.Lease.Certificate.Raw)
	return fmt.Sprintf("%s %s %s %x %d %d", first.UID, id.node, id.agent, lease[:8], s.plane.Generation, s.cluster.Generation)
}

// attempt is one attempt to begin the cluster, or to find out that it was begun.
func (r *Reconciler) attempt(ctx context.Context, key client.ObjectKey, server string, o operate.InitOptions, progress func(string)) outcome {
	file, err := r.Custody.OpenCluster(ctx, key)
	if err != nil {
		return outcome{reason: v1alpha1.BeginRetryingReason, message: err.Error(), again: true}
	}
	c, node := file.Cluster, *o.Anchor.EKID
	if c.Initialised != nil && *c.Initialised == node {
		return outcome{done: true}
	}
	given := c.First != nil && c.First.EKID == node && c.First.Committed > 0
	var looked error
	if given { // It goes on by itself from then on: whoever gave it what it needs may have been cut off.
		if looked = r.runsAlready(ctx, file, server, node, o.Name); looked == nil {
			err := file.Update(func(c *cluster.Cluster) error { c.Initialised = &node; return nil })
			return outcome{done: err == nil, reason: v1alpha1.BeginRetryingReason, message: fmt.Sprint(err), again: true}
		}
	}
	o.Progress = progress
	if err = r.begin(ctx, file, o); err == nil {
		return outcome{done: true}
	}
	if given {
		err = errors.Join(err, looked)
	}
	return judge(err, o.Name, given)
}

// judge says what an attempt's error means.
func judge(err error, name string, given bool) outcome {
	var condition *hullmark.Condition
	found := errors.As(err, &condition)
	var status apierrors.APIStatus
	const next = "If it does not get Ready, delete Machine %s: another takes its place, for which the file has to be lent with --replace-first; or go on with the cluster file itself (hullmark init)"
	switch {
	case given || found && condition.Root().Code == "already-begun":
		return outcome{v1alpha1.BeginInterruptedReason, fmt.Sprintf("Machine %s has been given what it needs, and goes on by itself: %v. "+next, name, err, name), true, false}
	case found && condition.Root().Retry, errors.Is(err, operate.ErrUnreachable), errors.As(err, &status), errors.Is(err, context.DeadlineExceeded):
		return outcome{v1alpha1.BeginRetryingReason, fmt.Sprintf("%v; it is tried again", err), true, false}
	}
	return outcome{v1alpha1.BeginFailedReason, fmt.Sprintf("%v. It is tried again when the file is lent again, or the spec changes. To try another machine, delete Machine %s", err, name), false, false}
}

// runsAlready returns nothing if the first machine's Node is Ready in the cluster that the file has the authorities of.
func (r *Reconciler) runsAlready(ctx context.Context, file *cluster.File, server string, node hullmark.EKID, name string) error {
	w, err := r.connect(file, server)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	seen, err := w.Look(ctx)
	if err != nil {
		return err
	}
	if n, ok := seen.Nodes[name]; !ok || !n.Ready {
		return fmt.Errorf("node %s is not Ready", name)
	}
	if record, ok := seen.Records[node]; !ok || record.Name != name {
		return fmt.Errorf("the cluster keeps no record of machine %s", node)
	}
	return nil
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
