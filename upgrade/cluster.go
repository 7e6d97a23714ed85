package upgrade

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"unicode/utf8"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// Version is what a Cluster compares before it replaces an object. The zero value means that there is none yet.
type Version string

// ErrConflict says that an object was changed by somebody else since it was read.
var ErrConflict = errors.New("the object was changed by somebody else")

// ErrBudget says that a pod is not evicted now, because a PodDisruptionBudget does not allow it, or the API server is busy.
var ErrBudget = errors.New("no disruption is allowed now")

// Cluster is what an upgrade sees of a cluster, and may change in it. Each change is a compare-and-swap: ErrConflict, possibly wrapped,
// says that what was read is not what is there any more.
type Cluster interface {
	// Request returns what the operator wants; the zero Version says that there was never an upgrade.
	Request(ctx context.Context) (Request, Version, error)
	// State returns how far the last upgrade is, of a zero Version before the first.
	State(ctx context.Context) (State, Version, error)
	// StoreState replaces it, and returns the new version.
	StoreState(ctx context.Context, s State, v Version) (Version, error)
	// Lease returns who is the engine; StoreLease replaces it, and returns the new version.
	Lease(ctx context.Context) (Lease, Version, error)
	StoreLease(ctx context.Context, l Lease, v Version) (Version, error)
	// Look reads what the cluster is like.
	Look(ctx context.Context, need Need) (View, error)
	// Cordon keeps pods away from a node that is as it was seen, and notes that the upgrade of this ID did so; Uncordon takes both back.
	Cordon(ctx context.Context, n Node, id string) error
	Uncordon(ctx context.Context, n Node) error
	// Evict has a pod end, as long as it is this one; ErrBudget, possibly wrapped, says that it may not now.
	Evict(ctx context.Context, p Pod) error
	// Direct gives a node its direction, in the place of the one that was seen. The zero direction is none.
	Direct(ctx context.Context, node hullmark.EKID, d hullmark.UpdateDirection, v Version) error
}

// Lease says which engine acts.
type Lease struct {
	// Holder is the engine's Name; it is empty if there is none. Term rises with each holder.
	Holder string
	Term   uint64
}

// Need says what Look is to read beside nodes, machines, directions and documents.
type Need struct {
	// Pods are the nodes whose pods are read; AllPods are those of every node.
	Pods    []string
	AllPods bool
	// Servers asks the API server of each control plane whether it is ready.
	Servers bool
}

// View is a cluster at one time.
type View struct {
	// Policy is the one that the cluster was given last, which is not verified: pools and documents are taken from it, and each node
	// judges for itself. Documents are those that lie beside it.
	Policy    measurements.Policy
	Documents map[hullmark.DocumentID]measurements.Document
	// Nodes are Kubernetes', by name, and Machines the records of join services, by EKID.
	Nodes    map[string]Node
	Machines map[hullmark.EKID]Machine
	// Directions are what nodes are directed to do.
	Directions map[hullmark.EKID]Directed
	// Pods are those that Need named, by node; Budgets are named by them.
	Pods    map[string][]Pod
	Budgets map[string]Budget
	// Servers says of each control plane's node why its API server is not ready; nil if it is. An API server asks its own member
	// of etcd, and that member the others.
	Servers map[string]error
}

// Node is a node as Kubernetes has it.
type Node struct {
	Name    string
	Version Version
	// BootID is that of the machine's boot, Kubelet the kubelet's version.
	BootID, Kubelet string
	// Ready says that its kubelet says so, Unschedulable that it is cordoned, and CordonedBy which upgrade did that; empty if somebody
	// else did.
	Ready, Unschedulable bool
	CordonedBy           string
}

// boot tells the machine's boot from others. What its kubelet calls it is kept in the state only if it is as short as Linux' own, and text:
// a state that cannot be stored, or not be read, would end no more.
func (n Node) boot() string {
	if len(n.BootID) <= maxBootID && utf8.ValidString(n.BootID) {
		return n.BootID
	}
	digest := sha256.Sum256([]byte(n.BootID))
	return hex.EncodeToString(digest[:])
}

// Machine is what join services keep of a machine, as far as it matters here.
type Machine struct {
	EKID hullmark.EKID `json:"ekid"`
	Name string        `json:"name"`
	Role hullmark.Role `json:"role"`
	// Document is the one that its registers matched at its last boot.
	Document hullmark.DocumentID `json:"document"`
	// Voucher is the one by which a group admitted it, if one did.
	Voucher []byte `json:"voucher"`
	// Update is what it says of its slots; nil if its release says nothing.
	Update *hullmark.UpdateStatus `json:"update"`
}

// Directed is a direction as it stands. One that was withdrawn is zero.
type Directed struct {
	hullmark.UpdateDirection
	Version Version
}

// Pod is a pod that is bound to a node.
type Pod struct {
	Namespace, Name, UID string
	// Mirror pods are the kubelet's own, and DaemonSet's come back at once: both stay.
	Mirror, DaemonSet bool
	// Controlled says that a controller makes it anew, EmptyDir that it has data which does not outlive it, Finished that it has ended, and
	// Ending that it is being ended.
	Controlled, EmptyDir, Finished, Ending bool
	// Budgets are the names of the PodDisruptionBudgets that count it.
	Budgets []string
}

// String is NAMESPACE/NAME.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Budget is a PodDisruptionBudget.
type Budget struct {
	// Name is NAMESPACE/NAME.
	Name string
	// Allowed is how many of its pods may be evicted now, Expected how many there are to be, and Desired how many have to be healthy.
	Allowed, Expected, Desired int
}

// never reports whether the budget allows no disruption even when all of its pods are healthy.
func (b Budget) never() bool { return b.Expected > 0 && b.Desired >= b.Expected }

// pool returns the name of the pool that a machine belongs to.
func (v View) pool(m Machine) string {
	if member, ok := v.Policy.Member(m.EKID); ok {
		return member.Pool
	}
	g, _ := v.Policy.Recorded(m.Name, m.EKID, m.Voucher)
	return g.Pool
}

// planes returns the machines that are control planes.
func (v View) planes() (planes []Machine) {
	for _, m := range v.Machines {
		if m.Role == hullmark.ControlPlane {
			planes = append(planes, m)
		}
	}
	return planes
}

// unattended reports whether a control plane can restart without its operator: etcd keeps its quorum without it, so that the others let it
// in again.
func (v View) unattended() bool {
	n := len(v.planes())
	return n-1 > n/2
}
