package step

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
)

// Task is what a node does to end a step, once its release is not on trial any more.
type Task string

// The tasks, in their order. Each can be cut short anywhere, and is begun again.
const (
	// TaskNone: nothing is left.
	TaskNone Task = ""
	// TaskWait: others go first.
	TaskWait Task = "wait"
	// TaskAct: write the control plane's pods so that they behave as the release that they are.
	TaskAct Task = "act"
	// TaskRecord: have kubeadm write the release, and its configuration of kubelets, into the cluster (kubeadm upgrade apply).
	TaskRecord Task = "record"
	// TaskKubelet: take the kubelet's configuration from the cluster (kubeadm upgrade node).
	TaskKubelet Task = "kubelet"
	// TaskDNS: have kubeadm bring CoreDNS to the release.
	TaskDNS Task = "dns"
)

// Plane is a control plane, as its Node and its API server say it.
type Plane struct {
	// Node is its name, Version that of its kubelet, and so of its image; unknown of one that said none.
	Node    string
	Version hullmark.Version
	// Acts is the release that its API server behaves as, or the first of its minor release; unknown of one that does not answer.
	Acts hullmark.Version
}

// Cluster is how far a cluster has come.
type Cluster struct {
	// Planes are all control planes.
	Planes []Plane
	// Recorded is the release that kubeadm keeps of the cluster: kubernetesVersion of its ClusterConfiguration.
	Recorded hullmark.Version
	// OldDNS says that CoreDNS is of another release than a node's own kubeadm would start. Kubelets are those of all nodes; they
	// count only then.
	OldDNS   bool
	Kubelets []Seen
}

// Node is one that is to end its step.
type Node struct {
	Name string
	Role hullmark.Role
	// Version is its image's. Acts is what its own control plane's pods behave as.
	Version, Acts hullmark.Version
	// KubeletConfig is the release whose kubeadm wrote the kubelet's configuration; unknown if nobody noted that.
	KubeletConfig hullmark.Version
}

// Next returns what a node does next, and of TaskWait for what. Control planes go one after the other, by name: none behaves as a new minor
// release before all of them run it, and the first alone writes into the cluster, when all do (docs/kubernetes.md, Steps).
func (n Node) Next(c Cluster) (task Task, waitsFor string) {
	if n.Role != hullmark.ControlPlane {
		return n.nextOfWorker(c)
	}
	planes := slices.SortedFunc(slices.Values(c.Planes), func(a, b Plane) int { return cmp.Compare(a.Node, b.Node) })
	for _, p := range planes {
		switch order := p.Version.Compare(n.Version); {
		case order < 0:
			return TaskWait, fmt.Sprintf("control plane %s, which runs %v", p.Node, p.Version)
		case order > 0:
			return TaskNone, "" // This node's own step is yet to come.
		}
	}
	if !slices.ContainsFunc(planes, func(p Plane) bool { return p.Node == n.Name }) {
		return TaskWait, "its own Node"
	}
	first := planes[0].Node == n.Name
	switch {
	case !n.Acts.SameLine(n.Version):
		return n.after(planes, func(p Plane) bool { return p.Node < n.Name }, TaskAct)
	case c.Recorded != n.Version && first:
		return n.after(planes, func(p Plane) bool { return p.Node != n.Name }, TaskRecord)
	case c.Recorded != n.Version:
		return TaskWait, "the first control plane by name, which records the release"
	case n.KubeletConfig != n.Version:
		return TaskKubelet, ""
	case first && c.OldDNS:
		return n.nextOfDNS(c.Kubelets)
	}
	return TaskNone, ""
}

// after is a task that comes once the API servers of some control planes behave as this node's release.
func (n Node) after(planes []Plane, others func(Plane) bool, task Task) (Task, string) {
	for _, p := range planes {
		if others(p) && !p.Acts.SameLine(n.Version) {
			return TaskWait, fmt.Sprintf("the API server of %s, which behaves as %v", p.Node, p.Acts)
		}
	}
	return task, ""
}

// nextOfWorker takes the kubelet's configuration from a cluster that keeps one of the worker's own minor release.
func (n Node) nextOfWorker(c Cluster) (Task, string) {
	switch behind := behind(c.Recorded, n.Version); {
	case behind > 0:
		return TaskWait, fmt.Sprintf("the control planes, of which kubeadm has recorded %v", c.Recorded)
	case behind == 0 && n.KubeletConfig != n.Version:
		return TaskKubelet, ""
	}
	return TaskNone, "" // A kubelet does not read what a later kubeadm wrote.
}

// nextOfDNS waits until every node has the image's name by which this release's kubeadm starts CoreDNS.
func (n Node) nextOfDNS(kubelets []Seen) (Task, string) {
	for _, k := range kubelets {
		if k.Version != n.Version {
			return TaskWait, fmt.Sprintf("node %s, which runs %v", k.Node, k.Version)
		}
	}
	return TaskDNS, ""
}
