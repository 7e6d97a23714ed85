//go:build long

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

// host is an infrastructure provider whose machines are stand-ins. Each proves with a TPM emulator what it booted, and does with what it is
// given what a node does: a control plane applies its manifests and runs the join service, and each gets a Node, which is Ready.
type host struct {
	management, workload client.Client
	// api is the machines' cluster's. It runs before that begins, and has nothing of it.
	api *testenv.Environment
	// program is the join service's, dir its files'.
	program, dir string

	mutex    sync.Mutex
	service  *testenv.JoinService
	machines map[string]*machine
}

// machine is one of them.
type machine struct {
	// name is its object's, and its Machine's.
	name, address string
	plane         bool
	node          *nodetest.Node
	// nodeName is its Node's, once that is there, and heard when that was renewed last.
	nodeName string
	heard    time.Time
	// agent is where its agent listens, if it does.
	agent string
}

// work does what a provider does, until ctx ends or something fails.
func (h *host) work(ctx context.Context, t *testing.T) error {
	for {
		if err := errors.Join(h.reportClusters(ctx), h.reportMachines(ctx, t), h.join(ctx), h.renew(ctx)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func (h *host) reportClusters(ctx context.Context) error {
	list := &infrav1.HullmarkClusterList{}
	if err := h.management.List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		c := &list.Items[i]
		if c.Status.APIServer != "" {
			continue
		}
		before := c.DeepCopy()
		c.Status.APIServer, c.Status.Initialization.Provisioned = h.api.Address, ptr.To(true)
		if err := h.management.Status().Patch(ctx, c, client.MergeFrom(before)); err != nil {
			return err
		}
	}
	return nil
}

// reportMachines makes the machines that have their node configuration, and reports them.
func (h *host) reportMachines(ctx context.Context, t *testing.T) error {
	list := &infrav1.HullmarkMachineList{}
	if err := h.management.List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		m := &list.Items[i]
		by := metav1.GetControllerOf(m)
		if h.get(m.Name) != nil || by == nil || by.Kind != "Machine" {
			continue
		}
		owner, data := &clusterv1.Machine{}, &corev1.Secret{}
		if err := h.management.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: by.Name}, owner); err != nil {
			return err
		}
		if owner.Spec.Bootstrap.DataSecretName == nil {
			continue
		}
		if err := h.management.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: *owner.Spec.Bootstrap.DataSecretName}, data); err != nil {
			return err
		}
		_, plane := owner.Labels[clusterv1.MachineControlPlaneLabel]
		made, err := h.boot(t, owner.Name, plane, data.Data["value"])
		if err != nil {
			return err
		}
		if err := h.report(ctx, m, made); err != nil {
			return err
		}
		h.mutex.Lock()
		h.machines[made.name] = made
		h.mutex.Unlock()
	}
	return nil
}

// boot makes a machine, which measures its node configuration and its image.
func (h *host) boot(t *testing.T, name string, plane bool, config []byte) (*machine, error) {
	parsed, err := hullmark.ParseNodeConfig(config)
	if err != nil {
		return nil, err
	}
	m := &machine{name: name, plane: plane, node: nodetest.New(t, parsed.ClusterRoot), address: "10.0.2.100"}
	image := workerImage
	if plane {
		m.address, image = endpoint, planeImage
	}
	m.node.Config, m.node.Addresses = config, []string{m.address}
	m.node.Reboot(t, image)
	m.node.Join = func(given *wire.Proceed) error { return h.joined(t.Context(), m, given) }
	if plane {
		m.agent = m.node.Serve(t, parsed.ClusterRoot)
	}
	return m, nil
}

// report reports a machine.
func (h *host) report(ctx context.Context, o *infrav1.HullmarkMachine, m *machine) error {
	before := o.DeepCopy()
	o.Spec.ProviderID = "hullmark-qemu://" + o.Namespace + "/" + o.Name
	if err := h.management.Patch(ctx, o, client.MergeFrom(before)); err != nil {
		return err
	}
	before = o.DeepCopy()
	o.Status.EKID, o.Status.AgentAddress, o.Status.Initialization.Provisioned = m.node.ID.String(), m.agent, ptr.To(true)
	o.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: m.address}}
	return h.management.Status().Patch(ctx, o, client.MergeFrom(before))
}

// join lets the workers dial the join service, again and again until each was vouched for.
func (h *host) join(ctx context.Context) error {
	h.mutex.Lock()
	service := h.service
	h.mutex.Unlock()
	if service == nil {
		return nil
	}
	for _, m := range h.all() {
		if m.plane || m.nodeName != "" {
			continue
		}
		config, err := hullmark.ParseNodeConfig(m.node.Config)
		if err != nil {
			return err
		}
		if err := m.node.Dial(ctx, service.Listen, config.ClusterRoot); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if denied := m.node.Denied(); denied != nil && denied.Code != joinservice.CodeVoucherMissing && !denied.Retry {
			return fmt.Errorf("%s: %w", m.name, denied)
		}
	}
	return nil
}

// joined does what a node does with what it was given.
func (h *host) joined(ctx context.Context, m *machine, given *wire.Proceed) error {
	kind := "JoinConfiguration"
	if m.plane {
		kind = "InitConfiguration"
		if err := h.begin(ctx, given); err != nil {
			return err
		}
	}
	var configuration struct {
		NodeRegistration struct {
			KubeletExtraArgs []struct{ Name, Value string }
		}
	}
	if err := kubeadm.Find(given.GetKubeadmDocuments(), kind, &configuration); err != nil {
		return err
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: given.GetNodeName()}}
	for _, argument := range configuration.NodeRegistration.KubeletExtraArgs {
		if argument.Name == "provider-id" {
			n.Spec.ProviderID = argument.Value
		}
	}
	if m.plane {
		n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	}
	if err := h.workload.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := h.makeReady(ctx, n.Name, m.address); err != nil {
		return err
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	m.nodeName, m.heard = n.Name, time.Now()
	return nil
}

// begin does what the first control plane does.
func (h *host) begin(ctx context.Context, given *wire.Proceed) error {
	for _, manifest := range given.GetManifests() {
		if err := h.api.Apply(ctx, manifest); err != nil {
			return err
		}
	}
	service, err := testenv.NewJoinService(h.program, h.dir, h.api.Cluster, "-api", "https://"+h.api.Address, "-etcd", h.api.EtcdURL())
	if err != nil {
		return err
	}
	if err := service.WriteFiles(given.GetFiles()); err != nil {
		return err
	}
	if err := service.Start(ctx); err != nil {
		return err
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.service = service
	return nil
}

// makeReady says of a Node what its kubelet says.
func (h *host) makeReady(ctx context.Context, name, address string) error {
	n := &corev1.Node{}
	if err := h.workload.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return err
	}
	before, now := n.DeepCopy(), metav1.Now()
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	n.Status.NodeInfo.KubeletVersion = planeImage
	n.Status.Conditions = nil
	for kind, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: "Test", LastTransitionTime: now, LastHeartbeatTime: now})
	}
	return h.workload.Status().Patch(ctx, n, client.MergeFrom(before))
}

// renew lets Nodes be heard: the controller manager is real.
func (h *host) renew(ctx context.Context) error {
	for _, m := range h.all() {
		if m.nodeName == "" || time.Since(m.heard) < 10*time.Second {
			continue
		}
		if err := h.makeReady(ctx, m.nodeName, m.address); err != nil {
			return err
		}
		h.mutex.Lock()
		h.machines[m.name].heard = time.Now()
		h.mutex.Unlock()
	}
	return nil
}

// all returns the machines as they are now.
func (h *host) all() (all []machine) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, m := range h.machines {
		all = append(all, *m)
	}
	return all
}

// get returns one, or nil.
func (h *host) get(name string) *machine {
	for _, m := range h.all() {
		if m.name == name {
			return &m
		}
	}
	return nil
}

// named returns the control plane, or the worker, or nil.
func (h *host) named(plane bool) *machine {
	for _, m := range h.all() {
		if m.plane == plane {
			return &m
		}
	}
	return nil
}
