package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/upgrade"
)

// Look reads what the cluster is like. A record or a direction that cannot be read is an error: without it nothing is decided.
func (c *Cluster) Look(ctx context.Context, need upgrade.Need) (upgrade.View, error) {
	policy, err := c.readPolicy(ctx)
	if err != nil {
		return upgrade.View{}, err
	}
	v := upgrade.View{
		Policy: policy.policy, Documents: policy.documents, Nodes: map[string]upgrade.Node{}, Machines: map[hullmark.EKID]upgrade.Machine{},
		Directions: map[hullmark.EKID]upgrade.Directed{}, Pods: map[string][]upgrade.Pod{}, Budgets: map[string]upgrade.Budget{}, Servers: map[string]error{},
	}
	nodes, err := c.api.Nodes(ctx)
	if err != nil {
		return upgrade.View{}, err
	}
	for _, n := range nodes {
		v.Nodes[n.Name] = nodeOf(n)
	}
	if err := errors.Join(c.readObjects(ctx, &v), c.readPods(ctx, &v, need)); err != nil {
		return upgrade.View{}, err
	}
	if need.Servers {
		err = c.askServers(ctx, &v, nodes)
	}
	return v, err
}

// nodeOf is what counts of a Node.
func nodeOf(n corev1.Node) upgrade.Node {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return upgrade.Node{
		Name: n.Name, Version: upgrade.Version(n.ResourceVersion), BootID: n.Status.NodeInfo.BootID, Kubelet: n.Status.NodeInfo.KubeletVersion,
		Ready: ready, Unschedulable: n.Spec.Unschedulable, CordonedBy: n.Annotations[registry.CordonedBy],
	}
}

// readObjects reads machines' records and directions.
func (c *Cluster) readObjects(ctx context.Context, v *upgrade.View) error {
	machines, directions, err := c.api.MachinesAndDirections(ctx)
	if err != nil {
		return err
	}
	for i := range machines {
		var m upgrade.Machine
		if err := registry.ReadMachine(&machines[i], &m); err != nil {
			return err
		}
		if machines[i].Name != registry.MachineObject(m.EKID) {
			return fmt.Errorf("ConfigMap %s holds the record of machine %s; mend or delete the object", machines[i].Name, m.EKID)
		}
		v.Machines[m.EKID] = m
	}
	for i := range directions {
		d, err := registry.ParseDirection(&directions[i])
		if err != nil {
			return err
		}
		node, err := hullmark.ParseEKID(directions[i].Name[len(registry.DirectionObjects):])
		if err != nil {
			return fmt.Errorf("ConfigMap %s is no machine's direction: %w; delete the object", directions[i].Name, err)
		}
		v.Directions[node] = upgrade.Directed{UpdateDirection: d, Version: upgrade.Version(directions[i].ResourceVersion)}
	}
	return nil
}

// readPods reads the pods that are needed, and the budgets that count them.
func (c *Cluster) readPods(ctx context.Context, v *upgrade.View, need upgrade.Need) error {
	var pods []corev1.Pod
	var err error
	switch {
	case need.AllPods:
		if pods, err = c.api.Pods(ctx, ""); err != nil {
			return err
		}
	default:
		for _, name := range need.Pods {
			bound, err := c.api.Pods(ctx, name)
			if err != nil {
				return err
			}
			v.Pods[name] = nil // There may be none.
			pods = append(pods, bound...)
		}
	}
	if len(pods) == 0 {
		return nil
	}
	budgets, err := c.readBudgets(ctx, v)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			v.Pods[p.Spec.NodeName] = append(v.Pods[p.Spec.NodeName], podOf(p, budgets))
		}
	}
	return nil
}

// budget is a PodDisruptionBudget that chooses pods of a namespace.
type budget struct {
	namespace, name string
	chooses         labels.Selector
}

func (c *Cluster) readBudgets(ctx context.Context, v *upgrade.View) ([]budget, error) {
	list, err := c.api.Budgets(ctx)
	if err != nil {
		return nil, err
	}
	var budgets []budget
	for _, b := range list {
		chooses, err := metav1.LabelSelectorAsSelector(b.Spec.Selector) // None chooses nothing, an empty one everything.
		if err != nil {
			return nil, fmt.Errorf("PodDisruptionBudget %s/%s: %w; mend or delete the object", b.Namespace, b.Name, err)
		}
		name := b.Namespace + "/" + b.Name
		v.Budgets[name] = budgetOf(name, b)
		budgets = append(budgets, budget{b.Namespace, name, chooses})
	}
	return budgets, nil
}

func budgetOf(name string, b policyv1.PodDisruptionBudget) upgrade.Budget {
	s := b.Status
	return upgrade.Budget{Name: name, Allowed: int(s.DisruptionsAllowed), Expected: int(s.ExpectedPods), Desired: int(s.DesiredHealthy)}
}

// podOf is what counts of a pod.
func podOf(p corev1.Pod, budgets []budget) upgrade.Pod {
	pod := upgrade.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID),
		Finished: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed, Ending: p.DeletionTimestamp != nil,
		EmptyDir: slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }),
	}
	_, pod.Mirror = p.Annotations[corev1.MirrorPodAnnotationKey]
	if owner := metav1.GetControllerOf(&p); owner != nil {
		pod.Controlled, pod.DaemonSet = true, owner.Kind == "DaemonSet"
	}
	for _, b := range budgets {
		if b.namespace == p.Namespace && b.chooses.Matches(labels.Set(p.Labels)) {
			pod.Budgets = append(pod.Budgets, b.name)
		}
	}
	return pod
}

// askServers says of each control plane whether its API server is ready.
func (c *Cluster) askServers(ctx context.Context, v *upgrade.View, nodes []corev1.Node) error {
	var shown []corev1.Pod
	if c.probe == nil {
		var err error
		if shown, err = c.api.Pods(ctx, ""); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if !isPlane(v, n.Name) {
			continue
		}
		if c.probe == nil {
			if err, told := shownReady(shown, n.Name); told {
				v.Servers[n.Name] = err
			}
			continue
		}
		address, err := addressOf(n)
		if err == nil {
			err = c.probe(ctx, address)
		}
		v.Servers[n.Name] = err
	}
	return nil
}

func isPlane(v *upgrade.View, name string) bool {
	for _, m := range v.Machines {
		if m.Name == name && m.Role == hullmark.ControlPlane {
			return true
		}
	}
	return false
}

// shownReady is what a kubelet says of its API server and its member of etcd; told is false if it says nothing of either.
func shownReady(pods []corev1.Pod, node string) (err error, told bool) {
	for _, name := range []string{"kube-apiserver-" + node, "etcd-" + node} {
		for _, p := range pods {
			if p.Namespace != metav1.NamespaceSystem || p.Name != name || p.Spec.NodeName != node {
				continue
			}
			told = true
			if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				err = errors.Join(err, fmt.Errorf("its kubelet says that pod %s is not Ready", name))
			}
		}
	}
	return err, told
}

// addressOf is the address of a Node inside of the cluster.
func addressOf(n corev1.Node) (netip.Addr, error) {
	for _, a := range n.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			return address, nil
		}
	}
	return netip.Addr{}, errors.New("its Node has no address")
}
