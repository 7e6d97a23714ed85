package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/etcd"
	"github.com/hullmark/hullmark/tools/capi/internal/kubeconfig"
)

const (
	// lookTimeout bounds a look at a cluster that runs, and probeTimeout a question to one of its API servers.
	lookTimeout, probeTimeout = 20 * time.Second, 5 * time.Second
	// apiPort and etcdPort are where a control plane serves.
	apiPort, etcdPort = 6443, 2379
	// etcdValidity is how long the certificate of one look at etcd is good for, clocks that differ included.
	etcdValidity = time.Hour
)

// Workload is the cluster that runs on the Machines.
type Workload interface {
	// Look says how it is. The error says that its API does not answer.
	Look(ctx context.Context) (View, error)
	// Serves returns nothing if the API server of a Node says that it is ready.
	Serves(ctx context.Context, n Node) error
	// Members lists the members of etcd, as a quorum of them knows them, and asks each whether it is there. It is reached at any of these
	// Nodes.
	Members(ctx context.Context, at []Node) ([]etcd.Member, error)
	// RemoveMember removes a member of etcd, unless that would risk the quorum. One that leads gives that up before.
	RemoveMember(ctx context.Context, at []Node, id uint64) error
	// RemoveStray removes a member of etcd that is nobody's, unless it answers now.
	RemoveStray(ctx context.Context, at []Node, id uint64) error
	// Forget forgets a machine that is gone: its record, its name and its Node.
	Forget(ctx context.Context, node hullmark.EKID) error
}

// View is a cluster that runs.
type View struct {
	// Nodes are those of control planes, by name.
	Nodes map[string]Node
	// Records are what the join service keeps, by machine.
	Records map[hullmark.EKID]joinservice.Machine
}

// Node is what counts of one.
type Node struct {
	Name string
	// Address is the internal one.
	Address netip.Addr
	// Ready says that it is, and Changed since when it is or is not.
	Ready   bool
	Changed time.Time
	// Kubelet is its version.
	Kubelet string
}

// workload is a cluster as the lent file's administrator reaches it.
type workload struct {
	file *cluster.File
	api  *operate.API
	kube kubernetes.Interface
	// apiPort and etcdPort are those of Nodes.
	apiPort, etcdPort uint16
}

// connect reaches a cluster with certificates that live for an hour.
func connect(file *cluster.File, server string) (Workload, error) {
	api, err := operate.Connect(file, operate.APIOptions{Server: server, Wrap: kubeconfig.Guard})
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(api.Config())
	return &workload{file: file, api: api, kube: kube, apiPort: apiPort, etcdPort: etcdPort}, err
}

// Look implements Workload.
func (w *workload) Look(ctx context.Context) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	v := View{Nodes: map[string]Node{}, Records: map[hullmark.EKID]joinservice.Machine{}}
	nodes, err := w.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	if err != nil {
		return v, fmt.Errorf("list the Nodes of control planes: %w", err)
	}
	for i := range nodes.Items {
		n := nodeOf(&nodes.Items[i])
		v.Nodes[n.Name] = n
	}
	machines, err := w.api.Machines(ctx)
	for _, m := range machines {
		v.Records[m.EKID] = m.Machine
	}
	return v, err
}

func nodeOf(n *corev1.Node) Node {
	out := Node{Name: n.Name, Kubelet: n.Status.NodeInfo.KubeletVersion}
	for _, each := range n.Status.Addresses {
		if a, err := netip.ParseAddr(each.Address); err == nil && each.Type == corev1.NodeInternalIP && !out.Address.IsValid() {
			out.Address = a.Unmap()
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready, out.Changed = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return out
}

// Serves implements Workload. Such a server asks its own member of etcd.
func (w *workload) Serves(ctx context.Context, n Node) error {
	if !n.Address.IsValid() {
		return fmt.Errorf("node %s has no internal address", n.Name)
	}
	client, err := rest.HTTPClientFor(w.api.Config())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+netip.AddrPortFrom(n.Address, w.apiPort).String()+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("its API server does not answer: %w", err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 4<<10))
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("its API server says %s", answer.Status)
	}
	return nil
}

// Members implements Workload.
func (w *workload) Members(ctx context.Context, at []Node) (members []etcd.Member, err error) {
	return members, w.anywhere(at, func(m *etcd.Members) error {
		members, err = m.List(ctx)
		return err
	})
}

// RemoveMember implements Workload.
func (w *workload) RemoveMember(ctx context.Context, at []Node, id uint64) error {
	return w.anywhere(at, func(m *etcd.Members) error { return m.Leave(ctx, id) })
}

// RemoveStray implements Workload.
func (w *workload) RemoveStray(ctx context.Context, at []Node, id uint64) error {
	return w.anywhere(at, func(m *etcd.Members) error { return m.RemoveSilent(ctx, id) })
}

// anywhere asks members of etcd, one after the other, until one answers.
func (w *workload) anywhere(at []Node, do func(*etcd.Members) error) error {
	tls, err := w.file.Cluster.EtcdClient(time.Now(), etcdValidity)
	if err != nil {
		return err
	}
	for _, n := range at {
		if !n.Address.IsValid() {
			continue
		}
		one := do(&etcd.Members{Endpoint: "https://" + netip.AddrPortFrom(n.Address, w.etcdPort).String(), TLS: tls})
		var condition *hullmark.Condition
		if one == nil || errors.As(one, &condition) && !condition.Retry {
			return one
		}
		err = errors.Join(err, fmt.Errorf("at %s: %w", n.Address, one))
	}
	if err == nil {
		err = errors.New("no Node of a control plane has an address at which etcd could be asked")
	}
	return err
}

// Forget implements Workload.
func (w *workload) Forget(ctx context.Context, node hullmark.EKID) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := w.api.Remove(ctx, node.String(), operate.RemoveOptions{Force: true, Gone: true})
	return err
}
