package upgradetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
)

// Cluster is a cluster in memory. It is an upgrade.Cluster, whose time is Tick's, and notes in Broken what must never happen. Its methods
// are safe for concurrent use; what its fields hold may be changed between two of them.
type Cluster struct {
	Policy    measurements.Policy
	Documents map[hullmark.DocumentID]measurements.Document
	Machines  map[string]*Machine
	Pods      map[string]*Pod
	Budgets   map[string]*Budget
	// Down are control planes whose API server is not ready.
	Down map[string]bool
	// Unavailable is how many workers of a pool may be away; Together what the others' names are.
	Unavailable int
	// Before, if set, is called before each call of the cluster that changes something; its error ends the call, as a process that is
	// killed there would.
	Before func(call string) error
	// Broken are promises that were broken, Evictions counts.
	Broken    []string
	Evictions int

	mutex      sync.Mutex
	now        time.Time
	versions   int
	request    stored[upgrade.Request]
	state      stored[upgrade.State]
	lease      stored[upgrade.Lease]
	nodes      map[string]*node
	directions map[hullmark.EKID]stored[hullmark.UpdateDirection]
}

type stored[T any] struct {
	content T
	version upgrade.Version
}

type node struct {
	unschedulable bool
	cordonedBy    string
	version       upgrade.Version
}

// Pod is a pod. One with a controller comes back on another node.
type Pod struct {
	upgrade.Pod
	Node string
	gone time.Time
}

// Budget is a PodDisruptionBudget that wants so many of its pods healthy.
type Budget struct{ Desired int }

var _ upgrade.Cluster = (*Cluster)(nil)

// grace is how long a pod takes to end.
const grace = 8 * time.Second

// New returns a cluster without machines, that accepts some documents.
func New(documents ...measurements.Document) (*Cluster, error) {
	c := &Cluster{
		Documents: map[hullmark.DocumentID]measurements.Document{}, Machines: map[string]*Machine{}, Pods: map[string]*Pod{}, Budgets: map[string]*Budget{},
		Down: map[string]bool{}, Unavailable: 1, now: time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC),
		nodes: map[string]*node{}, directions: map[hullmark.EKID]stored[hullmark.UpdateDirection]{},
	}
	for _, d := range documents {
		id, err := d.Digest()
		if err != nil {
			return nil, err
		}
		c.Documents[id] = d
		c.Policy.Documents = append(c.Policy.Documents, measurements.Accepted{Document: id})
	}
	return c, nil
}

// Add takes a machine up, into a pool.
func (c *Cluster) Add(m *Machine, pool string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.Machines[m.Name] = m
	c.nodes[m.Name] = &node{version: c.next()}
	c.Policy.Members = append(c.Policy.Members, measurements.Member{EKID: m.EKID, Role: m.Role, Name: m.Name, Pool: pool})
}

// Remove forgets a machine.
func (c *Cluster) Remove(name string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.Machines, name)
	delete(c.nodes, name)
}

// Run binds a pod to a node.
func (c *Cluster) Run(nodeName string, p upgrade.Pod) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	p.UID = string(c.next())
	c.Pods[p.String()] = &Pod{Pod: p, Node: nodeName}
}

// next is the next version of an object.
func (c *Cluster) next() upgrade.Version {
	c.versions++
	return upgrade.Version(strconv.Itoa(c.versions))
}

// Now is the cluster's time.
func (c *Cluster) Now() time.Time {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.now
}

// Tick lets time pass, second by second.
func (c *Cluster) Tick(d time.Duration) {
	for range d / time.Second {
		c.mutex.Lock()
		c.now = c.now.Add(time.Second)
		for _, m := range c.Machines {
			ready, shown := m.Ready, m.Shown(c.now.Add(-time.Second))
			m.Step(c.now, c.directions[m.EKID].content)
			if ready && !m.Ready {
				c.leaves(m)
			}
			if shown != m.Shown(c.now) && c.nodes[m.Name] != nil {
				c.nodes[m.Name].version = c.next()
			}
		}
		c.movePods()
		c.mutex.Unlock()
	}
}

// leaves holds a restart that was directed to what was promised of it.
func (c *Cluster) leaves(m *Machine) {
	if n := c.nodes[m.Name]; n == nil || !n.unschedulable {
		c.broke("%s restarted without being cordoned", m.Name)
	}
	for _, p := range c.Pods {
		if p.Node == m.Name && !p.Mirror && !p.DaemonSet {
			c.broke("%s restarted with pod %s", m.Name, p)
		}
	}
	away := map[string]int{}
	for _, other := range c.Machines {
		if !other.Ready {
			away[string(other.Role)+"/"+c.poolOf(other)]++
		}
	}
	for of, n := range away {
		if most := max(1, c.Unavailable); n > most || n > 1 && of == string(hullmark.ControlPlane)+"/" {
			c.broke("%d of %s are away", n, of)
		}
	}
}

func (c *Cluster) poolOf(m *Machine) string {
	member, _ := c.Policy.Member(m.EKID)
	return member.Pool
}

func (c *Cluster) broke(format string, args ...any) {
	c.Broken = append(c.Broken, c.now.Format(time.TimeOnly)+" "+fmt.Sprintf(format, args...))
}

// movePods ends pods, and makes those anew that have a controller, where there is room for them.
func (c *Cluster) movePods() {
	for _, name := range slices.Sorted(maps.Keys(c.Pods)) {
		p := c.Pods[name]
		if !p.gone.IsZero() && !c.now.Before(p.gone) {
			if p.gone, p.Ending, p.Node, p.UID = (time.Time{}), false, "", string(c.next()); !p.Controlled {
				delete(c.Pods, name)
				continue
			}
		}
		if p.Node == "" {
			p.Node = c.room()
		}
	}
}

// room is a worker that takes pods, the one with the fewest.
func (c *Cluster) room() (best string) {
	count := map[string]int{}
	for _, p := range c.Pods {
		count[p.Node]++
	}
	for _, name := range slices.Sorted(maps.Keys(c.Machines)) {
		if m := c.Machines[name]; m.Role == hullmark.Worker && m.Ready && !c.nodes[name].unschedulable && (best == "" || count[name] < count[best]) {
			best = name
		}
	}
	return best
}

// budget is how a budget stands.
func (c *Cluster) budget(name string) upgrade.Budget {
	b := upgrade.Budget{Name: name, Desired: c.Budgets[name].Desired}
	healthy := 0
	for _, p := range c.Pods {
		if !slices.Contains(p.Budgets, name) {
			continue
		}
		b.Expected++
		if m := c.Machines[p.Node]; m != nil && m.Ready && !p.Ending {
			healthy++
		}
	}
	b.Allowed = max(0, healthy-b.Desired)
	return b
}

// SetCordon cordons a node as an administrator does, or lets it take pods again.
func (c *Cluster) SetCordon(name string, cordoned bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.nodes[name].unschedulable, c.nodes[name].version = cordoned, c.next()
}

// Cordoned reports whether a node is cordoned, and by which upgrade.
func (c *Cluster) Cordoned(name string) (bool, string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.nodes[name].unschedulable, c.nodes[name].cordonedBy
}

// Want replaces the request.
func (c *Cluster) Want(r upgrade.Request) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.request = stored[upgrade.Request]{r, c.next()}
}

// DropLease deletes the Lease, as an administrator may.
func (c *Cluster) DropLease() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.lease = stored[upgrade.Lease]{}
}

// DropState deletes the state.
func (c *Cluster) DropState() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.state = stored[upgrade.State]{}
}

// DropRequest deletes what was asked for.
func (c *Cluster) DropRequest() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.request = stored[upgrade.Request]{}
}

// Last returns the state, as it was stored last.
func (c *Cluster) Last() upgrade.State {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.state.content
}

// Direction returns what a machine is directed to do.
func (c *Cluster) Direction(m *Machine) hullmark.UpdateDirection {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.directions[m.EKID].content
}

// errVersion is a compare-and-swap that was not.
var errVersion = fmt.Errorf("twin: %w", upgrade.ErrConflict)

// change calls Before, and then changes something under the lock.
func (c *Cluster) change(call string, do func() error) error {
	if c.Before != nil {
		if err := c.Before(call); err != nil {
			return err
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return do()
}

// Request returns the request.
func (c *Cluster) Request(context.Context) (upgrade.Request, upgrade.Version, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.request.content, c.request.version, nil
}

// State returns the state, read anew from its encoded form.
func (c *Cluster) State(context.Context) (upgrade.State, upgrade.Version, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.state.version == "" {
		return upgrade.State{}, "", nil
	}
	text, err := c.state.content.Encode()
	if err != nil {
		return upgrade.State{}, "", err
	}
	s, err := upgrade.ParseState(text)
	return s, c.state.version, err
}

// StoreState replaces the state.
func (c *Cluster) StoreState(_ context.Context, s upgrade.State, v upgrade.Version) (version upgrade.Version, err error) {
	err = c.change("store state", func() error {
		if v != c.state.version {
			return errVersion
		}
		if s.Term < c.state.content.Term {
			c.broke("the term fell from %d to %d", c.state.content.Term, s.Term)
		}
		c.state = stored[upgrade.State]{s, c.next()}
		version = c.state.version
		_, err := s.Encode()
		return err
	})
	return version, err
}

// Lease returns the Lease.
func (c *Cluster) Lease(context.Context) (upgrade.Lease, upgrade.Version, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.lease.content, c.lease.version, nil
}

// StoreLease replaces it.
func (c *Cluster) StoreLease(_ context.Context, l upgrade.Lease, v upgrade.Version) (version upgrade.Version, err error) {
	err = c.change("store lease", func() error {
		if v != c.lease.version {
			return errVersion
		}
		c.lease = stored[upgrade.Lease]{l, c.next()}
		version = c.lease.version
		return nil
	})
	return version, err
}

// Look returns a copy of what there is.
func (c *Cluster) Look(_ context.Context, need upgrade.Need) (upgrade.View, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	v := upgrade.View{
		Policy: c.Policy, Documents: maps.Clone(c.Documents), Nodes: map[string]upgrade.Node{}, Machines: map[hullmark.EKID]upgrade.Machine{},
		Directions: map[hullmark.EKID]upgrade.Directed{}, Pods: map[string][]upgrade.Pod{}, Budgets: map[string]upgrade.Budget{}, Servers: map[string]error{},
	}
	for name, m := range c.Machines {
		n, recorded, kubelet := c.nodes[name], m.Recorded, "v1.36.3"
		if version := c.Documents[m.Document].Image.Kubernetes; version.Known() {
			kubelet = version.String()
		}
		v.Nodes[name] = upgrade.Node{Name: name, Version: n.version, BootID: m.BootID, Kubelet: kubelet, Ready: m.Shown(c.now), Unschedulable: n.unschedulable, CordonedBy: n.cordonedBy}
		v.Machines[m.EKID] = upgrade.Machine{EKID: m.EKID, Name: name, Role: m.Role, Document: m.Document, Update: &recorded}
		if d, ok := c.directions[m.EKID]; ok {
			v.Directions[m.EKID] = upgrade.Directed{UpdateDirection: d.content, Version: d.version}
		}
		if m.Role == hullmark.ControlPlane && need.Servers {
			if v.Servers[name] = nil; !m.Ready || c.Down[name] {
				v.Servers[name] = errors.New("/readyz: connection refused")
			}
		}
		if need.AllPods || slices.Contains(need.Pods, name) {
			v.Pods[name] = nil
		}
	}
	for _, p := range c.Pods {
		if _, wanted := v.Pods[p.Node]; wanted {
			v.Pods[p.Node] = append(v.Pods[p.Node], p.Pod)
		}
	}
	for name := range c.Budgets {
		v.Budgets[name] = c.budget(name)
	}
	return v, nil
}

// changeNode changes a node that is as it was seen.
func (c *Cluster) changeNode(call string, seen upgrade.Node, do func(*node)) error {
	return c.change(call+" "+seen.Name, func() error {
		n, ok := c.nodes[seen.Name]
		if !ok || n.version != seen.Version {
			return errVersion
		}
		do(n)
		n.version = c.next()
		return nil
	})
}

// Cordon keeps pods away.
func (c *Cluster) Cordon(_ context.Context, seen upgrade.Node, id string) error {
	return c.changeNode("cordon", seen, func(n *node) { n.unschedulable, n.cordonedBy = true, id })
}

// Uncordon lets pods in again.
func (c *Cluster) Uncordon(_ context.Context, seen upgrade.Node) error {
	return c.changeNode("uncordon", seen, func(n *node) {
		if n.cordonedBy == "" {
			c.broke("%s was uncordoned, and somebody else had cordoned it", seen.Name)
		}
		n.unschedulable, n.cordonedBy = false, ""
	})
}

// Evict ends a pod, if its budgets let it go.
func (c *Cluster) Evict(_ context.Context, p upgrade.Pod) error {
	return c.change("evict "+p.String(), func() error {
		there := c.Pods[p.String()]
		if there == nil || there.UID != p.UID || there.Ending {
			return nil
		}
		if len(p.Budgets) > 1 {
			return errors.New("several budgets")
		}
		for _, name := range p.Budgets {
			if c.budget(name).Allowed < 1 {
				return fmt.Errorf("%s: %w", name, upgrade.ErrBudget)
			}
		}
		if n := c.nodes[there.Node]; n == nil || !n.unschedulable {
			c.broke("pod %s was evicted from %s, which takes pods", p, there.Node)
		}
		there.Ending, there.gone = true, c.now.Add(grace)
		c.Evictions++
		return nil
	})
}

// Direct writes a direction.
func (c *Cluster) Direct(_ context.Context, node hullmark.EKID, d hullmark.UpdateDirection, v upgrade.Version) error {
	return c.change(fmt.Sprintf("direct %s %d", d.Action, d.Serial), func() error {
		last := c.directions[node]
		if last.version != v {
			return errVersion
		}
		if d.Serial != 0 {
			if err := d.Check(); err != nil {
				return err
			}
			if d.Serial <= last.content.Serial {
				c.broke("a serial fell from %d to %d", last.content.Serial, d.Serial)
			}
		}
		c.directions[node] = stored[hullmark.UpdateDirection]{d, c.next()}
		return nil
	})
}
