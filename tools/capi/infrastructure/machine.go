package infrastructure

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/finalizers"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/pcrs/machine"
	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

// machineReconciler runs a virtual machine for each HullmarkMachine.
type machineReconciler struct{ *host }

// job is one HullmarkMachine with what it belongs to; cluster and machine are nil where they are not there (yet, or any more).
type job struct {
	*infrav1.HullmarkMachine
	cluster *clusterv1.Cluster
	machine *clusterv1.Machine
	folder  clusterFolder
	slot    slot
}

// name is what the machine is called in its slot.
func (j *job) name() string { return j.Namespace + "/" + j.Name }

// ProviderID is the name that the Node of a HullmarkMachine has to have.
func ProviderID(namespace, name string) string { return "hullmark-qemu://" + namespace + "/" + name }

func (j *job) providerID() string { return ProviderID(j.Namespace, j.Name) }

// Reconcile implements reconcile.Reconciler.
func (r *machineReconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	j := &job{HullmarkMachine: &infrav1.HullmarkMachine{}}
	if err := r.client.Get(ctx, req.NamespacedName, j.HullmarkMachine); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.ignores(j) {
		return ctrl.Result{}, nil
	}
	if err := r.owners(ctx, j); err != nil {
		return ctrl.Result{}, err
	}
	if isPaused, changed, err := paused.EnsurePausedCondition(ctx, r.client, j.cluster, j.HullmarkMachine); err != nil || isPaused || changed {
		return ctrl.Result{}, err
	}
	if err := r.folders.own(); err != nil {
		return ctrl.Result{}, err
	}
	if j.machine != nil && j.cluster != nil {
		if _, err := finalizers.EnsureFinalizer(ctx, r.client, j.HullmarkMachine, infrav1.MachineFinalizer); err != nil {
			return ctrl.Result{}, err
		}
	}
	helper, err := patch.NewHelper(j.HullmarkMachine, r.client)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer func() { err = errors.Join(err, save(ctx, helper, j.HullmarkMachine)) }()
	switch {
	case !j.DeletionTimestamp.IsZero():
		return r.end(j)
	case j.machine == nil || j.cluster == nil:
		notReady(j, infrav1.WaitingForClusterReason, "no Machine of a Cluster owns this object yet")
		return ctrl.Result{}, nil
	}
	return r.run(ctx, j)
}

// owners finds what the HullmarkMachine belongs to.
func (r *machineReconciler) owners(ctx context.Context, j *job) (err error) {
	if j.machine, err = util.GetOwnerMachine(ctx, r.client, j.ObjectMeta); client.IgnoreNotFound(err) != nil {
		return err
	}
	name := j.Labels[clusterv1.ClusterNameLabel]
	if name == "" {
		return nil
	}
	j.folder = r.folders.cluster(j.Namespace, name)
	if j.cluster, err = util.GetClusterByName(ctx, r.client, j.Namespace, name); err != nil {
		j.cluster = nil
	}
	return client.IgnoreNotFound(err)
}

// take finds the machine's slot, if it has one. That of an object with another uid is this one's only if this one has been provisioned
// before: it was moved to this API, or restored.
func (r *machineReconciler) take(j *job) (mine bool, err error) {
	if j.folder == "" {
		return true, nil
	}
	s, has, err := j.folder.find(j.name())
	if err != nil || s == "" {
		return true, err
	}
	if has.uid != string(j.UID) {
		if j.Spec.ProviderID != j.providerID() {
			notReady(j, infrav1.FolderTakenReason, "%s is another %s's, of the uid %s: delete this object, or end what runs there and remove it", s, j.name(), has.uid)
			return false, nil
		}
		if err := s.setOwner(owner{j.name(), string(j.UID)}); err != nil {
			return false, err
		}
	}
	j.slot = s
	return true, nil
}

// run brings a machine from its declaration to its life, and says how it is.
func (r *machineReconciler) run(ctx context.Context, j *job) (ctrl.Result, error) {
	mine, err := r.take(j)
	if err != nil || !mine {
		return after(r.poll), err
	}
	if j.slot == "" {
		return r.start(ctx, j)
	}
	running, err := r.processes.Look(j.slot.machine())
	if err != nil {
		return ctrl.Result{}, err
	}
	// What the guest's firmware says first shows that the machine ran, once and for all.
	ran, err := hasContent(j.slot.console())
	if err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case running:
		return r.report(j)
	case ran:
		return after(r.poll), r.ended(j)
	}
	return r.start(ctx, j)
}

// start starts a machine that never ran.
func (r *machineReconciler) start(ctx context.Context, j *job) (ctrl.Result, error) {
	if !ptr.Deref(j.cluster.Status.Initialization.InfrastructureProvisioned, false) {
		notReady(j, infrav1.WaitingForInfrastructureReason, "the Cluster's infrastructure is not provisioned yet")
		return after(r.poll), nil
	}
	nodeConfig, err := r.userData(ctx, j)
	if err != nil || nodeConfig == nil {
		return after(r.poll), err
	}
	if j.slot == "" {
		j.slot, err = j.folder.claim(owner{j.name(), string(j.UID)})
		if errors.Is(err, errFull) {
			notReady(j, infrav1.NetworkFullReason, "%v", err)
			return after(r.poll), nil
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	before := lastFailure(j.slot.log())
	if err := r.switchOn(ctx, j, nodeConfig); err != nil {
		notReady(j, infrav1.StartFailedReason, "%v", err)
		return after(r.poll), nil
	}
	if before != "" {
		notReady(j, infrav1.StartFailedReason, "started again after: %s", before)
		return after(r.poll), nil
	}
	notReady(j, infrav1.StartingReason, "the machine is made and switched on; it logs to %s", j.slot.log())
	return after(soon), nil
}

// userData reads the node configuration that the Machine's data Secret holds. It returns nil after it has said what is missing or wrong.
func (r *machineReconciler) userData(ctx context.Context, j *job) ([]byte, error) {
	name := ptr.Deref(j.machine.Spec.Bootstrap.DataSecretName, "")
	if name == "" {
		notReady(j, infrav1.WaitingForBootstrapDataReason, "the Machine names no data Secret yet")
		return nil, nil
	}
	secret := &corev1.Secret{}
	err := r.secrets.Get(ctx, client.ObjectKey{Namespace: j.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		notReady(j, infrav1.WaitingForBootstrapDataReason, "the data Secret %s is not there", name)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value := secret.Data["value"]
	if _, err := hullmark.ParseNodeConfig(value); err != nil {
		notReady(j, infrav1.UserDataRefusedReason, "the data Secret %s (format %q) holds no node configuration: %v; a HullmarkConfig makes one", name, secret.Data["format"], err)
		return nil, nil
	}
	return value, nil
}

// switchOn writes what the machine is and starts it.
func (r *machineReconciler) switchOn(ctx context.Context, j *job, nodeConfig []byte) error {
	run, err := os.Readlink(filepath.Join(j.folder.network(), runName))
	if err != nil {
		return fmt.Errorf("the cluster's network does not run: %w", err)
	}
	description, err := machineFile(j.Spec.Machine)
	if err != nil {
		return err
	}
	for file, content := range map[string][]byte{j.slot.nodeConfig(): nodeConfig, j.slot.machineFile(): description, j.slot.pluggedIn(): []byte(run)} {
		if err := atomicfile.Write(file, content, 0o600); err != nil {
			return err
		}
	}
	return r.processes.Start(ctx, j.slot.machine(), j.slot.log(), "vm", j.Spec.Image,
		"--dir", j.slot.machine(), "--machine", j.slot.machineFile(), "--network", j.folder.network(), "--grace", r.grace.String())
}

// machineFile is the machine file of a hardware. Its words are the same.
func machineFile(h infrav1.Hardware) ([]byte, error) {
	content, err := json.Marshal(struct {
		Schema string `json:"schema"`
		infrav1.Hardware
		NodeConfig string `json:"nodeConfig"`
	}{machine.Schema, h, filepath.Base(slot("").nodeConfig())})
	if err != nil {
		return nil, err
	}
	_, err = machine.Parse(content, "/")
	return content, err
}

// report says who a running machine is and where.
func (r *machineReconciler) report(j *job) (ctrl.Result, error) {
	known, err := r.identify(j)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !known {
		// The reason of a failed start stays until this one has gone better.
		if conditions.GetReason(j, infrav1.ReadyCondition) != infrav1.StartFailedReason {
			notReady(j, infrav1.StartingReason, "the machine is made and switched on; it logs to %s", j.slot.log())
		}
		return after(soon), nil
	}
	if err := r.locate(j); err != nil {
		return ctrl.Result{}, err
	}
	fresh := !ptr.Deref(j.Status.Initialization.Provisioned, false)
	j.Spec.ProviderID = j.providerID()
	j.Status.Initialization.Provisioned = ptr.To(true)
	j.Status.Console = j.slot.console()
	lost, err := r.lostNetwork(j)
	if err != nil {
		return ctrl.Result{}, err
	}
	if fresh { // conditions are written before the rest: nobody must see a Ready machine that has no name
		notReady(j, infrav1.StartingReason, "the machine is made and switched on; it logs to %s", j.slot.log())
		return after(soon), nil
	}
	if lost {
		notReady(j, infrav1.NetworkLostReason, "the cluster's network ended under this machine, which cannot be plugged in again: delete its Machine")
		return after(r.poll), nil
	}
	setReady(j, metav1.ConditionTrue, infrav1.RunningReason, "")
	return after(r.poll), nil
}

// identify reports the machine's endorsement key, once it has one.
func (r *machineReconciler) identify(j *job) (known bool, err error) {
	ek, err := vm.ReadEK(j.slot.machine())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	j.Status.EKID = hullmark.EKIDOf(ek.Public).String()
	j.Status.EKCertificateAuthority = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ek.CA.Raw}))
	return true, nil
}

// locate reports the machine's addresses and where the host reaches its agent.
func (r *machineReconciler) locate(j *job) error {
	addresses, err := r.addresses(j)
	if err != nil || len(addresses) == 0 {
		return err
	}
	j.Status.Addresses = nil
	for _, a := range addresses {
		j.Status.Addresses = append(j.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: a.String()})
	}
	forwards, err := j.folder.forwards()
	if err != nil {
		return err
	}
	if port := hostPort(forwards, addresses[0], agentPort); port != 0 {
		j.Status.AgentAddress = onHost(port)
	}
	return nil
}

// addresses are those in the cluster's network that the machine's node configuration states; else the one that it was given. None is no
// error: a machine that boots has none yet, and one that was given one keeps it.
func (r *machineReconciler) addresses(j *job) (all []netip.Addr, err error) {
	content, err := os.ReadFile(j.slot.nodeConfig())
	if err != nil {
		return nil, err
	}
	config, err := hullmark.ParseNodeConfig(content)
	if err != nil {
		return nil, err
	}
	static := config.OwnAddresses()
	for _, text := range static {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		if network.Contains(prefix.Addr()) {
			all = append(all, prefix.Addr())
		}
	}
	if len(static) > 0 || len(j.Status.Addresses) > 0 {
		return all, nil
	}
	// Where the network does not run, the machine has no address, and says so otherwise.
	if given, err := givenAddress(j.folder.network(), cardOf(j.slot.machine())); err == nil && given.IsValid() {
		all = append(all, given)
	}
	return all, nil
}

// lostNetwork reports whether the network that the machine was plugged into has ended.
func (r *machineReconciler) lostNetwork(j *job) (bool, error) {
	then, err := os.ReadFile(j.slot.pluggedIn())
	if err != nil {
		return false, err
	}
	now, err := os.Readlink(filepath.Join(j.folder.network(), runName))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return string(then) != now, err
}

// ended says how a machine ended. A process that was killed left its folder of sockets; one that failed said why.
func (r *machineReconciler) ended(j *job) error {
	if _, err := r.identify(j); err != nil {
		return err
	}
	j.Status.Console = j.slot.console()
	const hint = "it is not started again: delete its Machine; the console's log is"
	_, err := os.Lstat(filepath.Join(j.slot.machine(), runName))
	switch last := lastLine(j.slot.log()); {
	case err == nil:
		notReady(j, infrav1.FailedReason, "the machine's process was killed; %s %s", hint, j.slot.console())
	case isFailure(last):
		notReady(j, infrav1.FailedReason, "%s; %s %s", last, hint, j.slot.console())
	default:
		notReady(j, infrav1.PoweredOffReason, "the guest switched itself off; %s %s", hint, j.slot.console())
	}
	return nil
}

// end switches a machine off and removes its folder.
func (r *machineReconciler) end(j *job) (ctrl.Result, error) {
	mine, err := r.take(j)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !mine || j.slot == "" {
		controllerutil.RemoveFinalizer(j.HullmarkMachine, infrav1.MachineFinalizer)
		return ctrl.Result{}, nil
	}
	ended, err := r.processes.Stop(j.slot.machine(), r.grace+cutTime)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !ended {
		notReady(j, infrav1.DeletingReason, "the power button is pressed; the guest has %v to switch itself off", r.grace)
		return after(soon), nil
	}
	if err := j.slot.remove(); err != nil {
		return ctrl.Result{}, err
	}
	controllerutil.RemoveFinalizer(j.HullmarkMachine, infrav1.MachineFinalizer)
	return ctrl.Result{}, nil
}
