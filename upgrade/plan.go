package upgrade

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// Plan is what an upgrade would do, and what stands against it.
type Plan struct {
	Spec Spec `json:"spec"`
	// Steps are the nodes in the order in which they go.
	Steps []Step `json:"steps"`
	// Against is what stops it, or would stop it on its way; Notes are what it would pass over.
	Against []*hullmark.Condition `json:"against,omitempty"`
	Notes   []string              `json:"notes,omitempty"`
}

// Step is what would be done with a node.
type Step struct {
	Node string        `json:"node"`
	Role hullmark.Role `json:"role"`
	Pool string        `json:"pool,omitempty"`
	// Batch counts the sets of nodes that may be away at a time, from 1; it is 0 for a node that is left as it is, because it runs the
	// release already (There).
	Batch int  `json:"batch,omitempty"`
	There bool `json:"there,omitempty"`
	// Attended says that the node restarts only while its operator is there to recover it.
	Attended bool `json:"attended,omitempty"`
	// Document is the one that the node will be tried by.
	Document hullmark.DocumentID `json:"document,omitzero"`
	// Evicted is how many pods go. Away is how long the node was away the last time; zero says that nothing is known of it.
	Evicted int      `json:"evicted"`
	Away    Duration `json:"away,omitempty"`
}

// planner makes a plan of what was seen.
type planner struct {
	view  View
	last  State
	judge Judge
	plan  Plan
}

// MakePlan says what an upgrade would do to a cluster; last is the state of the one before, and request its request. The view has all pods,
// and what the API servers say. A plan without anything against it can be begun.
func MakePlan(s Spec, view View, request Request, last State, judge Judge) Plan {
	// What was planned is what the next step is judged by.
	view.Machines, view.Nodes = maps.Clone(view.Machines), maps.Clone(view.Nodes)
	p := planner{view: view, last: last, judge: judge, plan: Plan{Spec: s, Steps: []Step{}}}
	p.checkFree(request)
	if s.Action == hullmark.UpdateTry {
		if err := view.accepted(s); err != nil {
			p.against(hullmark.AsCondition(err, stepName, "document-not-accepted"))
		}
	}
	p.lookAtMachines()
	p.lookAtStrangers()
	p.lookAtPlanes()
	p.lookAtPods()
	p.batch()
	if len(p.plan.Against) == 0 && !slices.ContainsFunc(p.plan.Steps, func(s Step) bool { return !s.There }) {
		p.against(&hullmark.Condition{Code: "nothing-to-do", Step: stepName, Title: "every node has what is wanted already", Next: "nothing; hullmark node list shows what they run"})
	}
	return p.plan
}

func (p *planner) against(c *hullmark.Condition) { p.plan.Against = append(p.plan.Against, c) }

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

// checkFree wants no other upgrade under way.
func (p *planner) checkFree(r Request) {
	if c := UnderWay(r, p.last); c != nil {
		p.against(c)
	}
}

// UnderWay is the condition of a cluster that has an upgrade which is not over; nil if there is none.
func UnderWay(r Request, last State) *hullmark.Condition {
	if r.Spec.ID == "" || last.Spec.ID == r.Spec.ID && last.Phase.Over() {
		return nil
	}
	return &hullmark.Condition{
		Code: "upgrade-under-way", Step: stepName, Title: "an upgrade is under way, and there is one at a time", Got: r.Spec.says(),
		Next: "wait for its end (hullmark upgrade status), or end it (hullmark upgrade abort)",
	}
}

// says names what a spec is about.
func (s Spec) says() string {
	if s.Action == hullmark.UpdateRestart {
		return strings.TrimSuffix("restart: "+s.Reason, ": ")
	}
	return "release " + s.Release
}

// lookAtMachines makes the steps, and says of each node what stops it.
func (p *planner) lookAtMachines() {
	t := turn{view: p.view, state: &State{Spec: p.plan.Spec}, fresh: true}
	t.meet()
	if len(t.state.Nodes) > MaxNodes {
		p.against(&hullmark.Condition{
			Code: "too-many-nodes", Step: stepName, Title: "an upgrade has fewer nodes than this cluster", Expected: fmt.Sprint(MaxNodes, " at most"), Got: fmt.Sprint(len(t.state.Nodes)),
			Next: "leave some out (--except), and upgrade them afterwards",
		})
	}
	for _, n := range t.state.Nodes {
		m := p.view.Machines[n.EKID]
		s := Step{Node: n.Name, Role: n.Role, Pool: n.Pool, There: p.view.there(p.plan.Spec, m), Away: p.away(n.EKID)}
		p.plan.Steps = append(p.plan.Steps, s)
		if !s.There {
			p.lookAtMachine(&p.plan.Steps[len(p.plan.Steps)-1], m)
		}
	}
}

// away is how long a machine was away the last time that an upgrade restarted it.
func (p *planner) away(node hullmark.EKID) Duration {
	for _, n := range p.last.Nodes {
		if n.EKID == node {
			return cmp.Or(n.Away, n.Before)
		}
	}
	return 0
}

func (p *planner) lookAtMachine(s *Step, m Machine) {
	node := p.view.Nodes[m.Name]
	if !node.Ready {
		p.against(&hullmark.Condition{
			Code: "node-not-ready", Step: stepName, Title: m.Name + " is not Ready, so it follows no direction",
			Next: "bring it back (hullmark node status), or leave it out (--except " + m.Name + ")",
		})
	}
	if node.Unschedulable {
		p.note("%s is cordoned already, and stays so: somebody else did that", m.Name)
	}
	if c := p.view.obstacle(p.plan.Spec, m, p.judge); c != nil {
		p.against(c)
		return
	}
	if p.plan.Spec.Action == hullmark.UpdateTry {
		s.Document, _ = p.view.documentFor(p.plan.Spec, m)
		m.Document, node.Kubelet = s.Document, p.view.Documents[s.Document].Image.Kubernetes.String()
		p.view.Machines[m.EKID], p.view.Nodes[m.Name] = m, node
	}
}

// lookAtStrangers says which nodes are none of the upgrade's.
func (p *planner) lookAtStrangers() {
	known := map[string]bool{}
	for _, m := range p.view.Machines {
		known[m.Name] = true
		if _, ok := p.view.Nodes[m.Name]; !ok && !p.plan.Spec.excepts(m.Name) {
			p.note("%s has a record and no Node: it is left as it is until it joins", m.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.view.Nodes)) {
		if !known[name] {
			p.note("%s has no record: no join service has let it in, and it is left as it is", name)
		}
	}
	for _, name := range p.plan.Spec.Except {
		if !known[name] {
			p.note("%s, which is left out, is not known", name)
		}
	}
	slices.Sort(p.plan.Notes)
}

// lookAtPlanes says which control planes need their operator, and which others are not there to let them in again.
func (p *planner) lookAtPlanes() {
	begun := false
	for i := range p.plan.Steps {
		s := &p.plan.Steps[i]
		if s.Role == hullmark.ControlPlane && !s.There {
			begun, s.Attended = true, !p.view.unattended()
		}
	}
	if !begun || !p.view.unattended() {
		return
	}
	for _, m := range p.view.planes() {
		switch err, asked := p.view.Servers[m.Name]; {
		case !p.view.Nodes[m.Name].Ready && p.plan.Spec.excepts(m.Name):
			p.against(&hullmark.Condition{
				Code: "control-plane-down", Step: stepName, Title: "the control plane " + m.Name + " is not Ready, and none other may go away meanwhile",
				Next: "bring it back, or remove it and its member of etcd (hullmark node remove)",
			})
		case asked && err != nil && p.view.Nodes[m.Name].Ready:
			p.against(&hullmark.Condition{
				Code: "control-plane-down", Step: stepName, Title: "the API server of " + m.Name + " is not ready", Got: cut(err.Error()),
				Next: "look at its API server and its member of etcd",
			})
		}
	}
}

// lookAtPods says which pods would be lost, and which budgets would not let them go.
func (p *planner) lookAtPods() {
	never, busy := map[string]bool{}, map[string]bool{}
	for i := range p.plan.Steps {
		s := &p.plan.Steps[i]
		if s.There {
			continue
		}
		pods := left(p.view.Pods[s.Node])
		s.Evicted = len(pods)
		if losses := p.plan.Spec.Drain.losses(pods); len(losses) > 0 {
			p.against(&hullmark.Condition{
				Code: "pods-lost", Step: stepName, Title: "pods on " + s.Node + " would be lost: " + list(losses),
				Next: "end them yourself, or say that they may be lost (--force, --delete-emptydir-data)",
			})
		}
		p.lookAtBudgets(s, pods, never, busy)
	}
}

// lookAtBudgets says of each budget once that it allows nothing.
func (p *planner) lookAtBudgets(s *Step, pods []Pod, never, busy map[string]bool) {
	for _, pod := range pods {
		if len(pod.Budgets) > 1 {
			p.against(&hullmark.Condition{
				Code: "budgets-overlap", Step: stepName, Title: fmt.Sprintf("pod %s on %s is counted by several PodDisruptionBudgets, so no API server evicts it", pod, s.Node),
				Got: list(pod.Budgets), Next: "have one budget count it",
			})
		}
		for _, name := range pod.Budgets {
			switch b := p.view.Budgets[name]; {
			case b.never() && !never[name]:
				never[name] = true
				p.against(&hullmark.Condition{
					Code: "budget-never-met", Step: stepName, Title: fmt.Sprintf("PodDisruptionBudget %s never lets a pod go, such as %s on %s", name, pod, s.Node),
					Expected: fmt.Sprintf("fewer than %d of %d pods that have to be healthy", b.Expected, b.Expected), Got: fmt.Sprint(b.Desired),
					Next: "give it a replica more, or change the budget",
				})
			case b.Allowed < 1 && !b.never() && !busy[name]:
				busy[name] = true
				p.note("PodDisruptionBudget %s allows no disruption at this moment (%d of %d pods have to be healthy)", name, b.Desired, b.Expected)
			}
		}
	}
}

// batch counts which nodes may be away together.
func (p *planner) batch() {
	batch, in := 0, 0
	pool, role := "", hullmark.Role("")
	for i := range p.plan.Steps {
		s := &p.plan.Steps[i]
		if s.There {
			continue
		}
		most := 1
		if s.Role == hullmark.Worker {
			most = p.plan.Spec.unavailable(s.Pool)
		}
		if batch == 0 || in >= most || s.Pool != pool || s.Role != role {
			batch, in = batch+1, 0
		}
		s.Batch, pool, role = batch, s.Pool, s.Role
		in++
	}
}
