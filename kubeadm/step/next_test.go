package step

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hullmark/hullmark"
)

func TestNext(t *testing.T) {
	plane := func(name, version, acts string) Plane { return Plane{name, v(version), v(acts)} }
	const old, now = "v1.35.4", "v1.36.3"
	done := []Plane{plane("c", now, now), plane("a", now, now), plane("b", now, now)}
	node := func(name, acts, config string) Node {
		return Node{Name: name, Role: hullmark.ControlPlane, Version: v(now), Acts: v(acts), KubeletConfig: v(config)}
	}
	worker := func(version, config string) Node {
		return Node{Name: "w", Role: hullmark.Worker, Version: v(version), KubeletConfig: v(config)}
	}
	for name, c := range map[string]struct {
		node    Node
		cluster Cluster
		task    Task
		waits   string
	}{
		"another control plane is older": {node("a", old, old), Cluster{Planes: []Plane{plane("a", now, old), plane("b", old, old)}, Recorded: v(old)}, TaskWait, "control plane b, which runs v1.35.4"},
		"one that nobody knows":          {node("a", old, old), Cluster{Planes: []Plane{plane("a", now, old), plane("b", "", "")}}, TaskWait, "control plane b, which runs unknown"},
		"another is ahead":               {Node{Name: "a", Role: hullmark.ControlPlane, Version: v(old), Acts: v(old)}, Cluster{Planes: []Plane{plane("a", old, old), plane("b", now, old)}}, TaskNone, ""},
		"the first acts":                 {node("a", old, old), Cluster{Planes: []Plane{plane("a", now, old), plane("b", now, old)}, Recorded: v(old)}, TaskAct, ""},
		"the second after it":            {node("b", old, old), Cluster{Planes: []Plane{plane("a", now, old), plane("b", now, old)}, Recorded: v(old)}, TaskWait, "the API server of a, which behaves as v1.35.4"},
		"the second while that is down":  {node("b", old, old), Cluster{Planes: []Plane{plane("a", now, ""), plane("b", now, old)}, Recorded: v(old)}, TaskWait, "the API server of a, which behaves as unknown"},
		"the second":                     {node("b", old, old), Cluster{Planes: []Plane{plane("a", now, now), plane("b", now, old)}, Recorded: v(old)}, TaskAct, ""},
		"the first records once all act": {node("a", now, old), Cluster{Planes: []Plane{plane("a", now, now), plane("b", now, old)}, Recorded: v(old)}, TaskWait, "the API server of b, which behaves as v1.35.4"},
		"the first records":              {node("a", now, old), Cluster{Planes: done, Recorded: v(old)}, TaskRecord, ""},
		"others do not":                  {node("b", now, old), Cluster{Planes: done, Recorded: v(old)}, TaskWait, "the first control plane by name, which records the release"},
		"then kubelets":                  {node("b", now, old), Cluster{Planes: done, Recorded: v(now)}, TaskKubelet, ""},
		"of which nobody noted anything": {node("b", now, ""), Cluster{Planes: done, Recorded: v(now)}, TaskKubelet, ""},
		"then CoreDNS, after every node": {node("a", now, now), Cluster{Planes: done, Recorded: v(now), OldDNS: true, Kubelets: seen(now, old)}, TaskWait, "node b, which runs v1.35.4"},
		"by the first":                   {node("a", now, now), Cluster{Planes: done, Recorded: v(now), OldDNS: true, Kubelets: seen(now, now)}, TaskDNS, ""},
		"alone":                          {node("b", now, now), Cluster{Planes: done, Recorded: v(now), OldDNS: true, Kubelets: seen(now, now)}, TaskNone, ""},
		"then nothing":                   {node("a", now, now), Cluster{Planes: done, Recorded: v(now)}, TaskNone, ""},
		"a patch back":                   {node("a", now, now), Cluster{Planes: done, Recorded: v("v1.36.4")}, TaskRecord, ""},
		"a worker before the record":     {worker(now, old), Cluster{Recorded: v(old)}, TaskWait, "the control planes, of which kubeadm has recorded v1.35.4"},
		"a worker":                       {worker(now, old), Cluster{Recorded: v(now)}, TaskKubelet, ""},
		"a worker of another patch":      {worker("v1.36.4", now), Cluster{Recorded: v(now)}, TaskKubelet, ""},
		"a worker that has it":           {worker(now, now), Cluster{Recorded: v(now)}, TaskNone, ""},
		"a worker that stays behind":     {worker(old, ""), Cluster{Recorded: v(now)}, TaskNone, ""},
		"no control plane is to be seen": {node("a", now, now), Cluster{Recorded: v(old)}, TaskWait, "its own Node"},
	} {
		if task, waits := c.node.Next(c.cluster); task != c.task || waits != c.waits {
			t.Errorf("%s: %q, waits for %q; want %q, %q", name, task, waits, c.task, c.waits)
		}
	}
}

// world is a cluster that goes from one release to the next.
type world struct {
	nodes    map[string]*Node
	down     map[string]bool
	recorded hullmark.Version
	dns      hullmark.Version
}

// seenBy is what a node sees of it.
func (w *world) seenBy(n *Node) Cluster {
	c := Cluster{Recorded: w.recorded, OldDNS: w.dns != n.Version}
	for _, other := range w.nodes {
		acts := other.Acts
		if w.down[other.Name] {
			acts = hullmark.Version{}
		}
		if other.Role == hullmark.ControlPlane {
			c.Planes = append(c.Planes, Plane{other.Name, other.Version, acts})
		}
		c.Kubelets = append(c.Kubelets, Seen{other.Name, other.Version})
	}
	return c
}

// do does a node's next task, unless the power is cut before it is done, and checks what must hold then.
func (w *world) do(t *testing.T, n *Node, cut bool) {
	t.Helper()
	task, _ := n.Next(w.seenBy(n))
	if cut {
		return
	}
	switch task {
	case TaskAct:
		n.Acts = n.Version
		for _, other := range w.nodes {
			if other.Role == hullmark.ControlPlane && !other.Version.SameLine(n.Version) {
				t.Fatalf("%s behaves as %v, and %s still runs %v", n.Name, n.Version, other.Name, other.Version)
			}
		}
	case TaskRecord:
		w.recorded = n.Version
		for _, other := range w.nodes {
			if other.Role == hullmark.ControlPlane && !other.Acts.SameLine(n.Version) {
				t.Fatalf("%s records %v, and %s behaves as %v", n.Name, n.Version, other.Name, other.Acts)
			}
		}
	case TaskKubelet:
		if !w.recorded.SameLine(n.Version) {
			t.Fatalf("%s, which runs %v, takes a kubelet's configuration of %v", n.Name, n.Version, w.recorded)
		}
		n.KubeletConfig = n.Version
	case TaskDNS:
		w.dns = n.Version
	}
}

// In whatever order nodes get the new release and go on, with power cuts and servers that are down for a while, the cluster arrives, and
// at no moment does anything run ahead of what others understand. One that is never brought forward holds all others back.
func TestStepsEnd(t *testing.T) {
	for seed := range uint64(300) {
		chance := rand.New(rand.NewPCG(seed, 1))
		old, now := v("v1.35.4"), v("v1.36.3")
		if seed%3 == 0 {
			old = v("v1.36.2")
		}
		w := &world{nodes: map[string]*Node{}, down: map[string]bool{}, recorded: old, dns: old}
		for i := range 1 + chance.IntN(3) {
			name := fmt.Sprint("p", i)
			w.nodes[name] = &Node{Name: name, Role: hullmark.ControlPlane, Version: old, Acts: old, KubeletConfig: old}
		}
		for i := range chance.IntN(4) {
			name := fmt.Sprint("w", i)
			w.nodes[name] = &Node{Name: name, Role: hullmark.Worker, Version: old, KubeletConfig: old}
		}
		var names []string
		for name := range w.nodes {
			names = append(names, name)
		}
		slices.Sort(names) // control planes come first
		upgraded := 0
		for range 400 {
			n := w.nodes[names[chance.IntN(len(names))]]
			switch chance.IntN(6) {
			case 0: // the next node runs the new release, which is committed; a control plane behaves as the old one
				if upgraded < len(names) {
					next := w.nodes[names[upgraded]]
					next.Version = now
					upgraded++
				}
			case 1:
				w.down[n.Name] = !w.down[n.Name]
			default:
				if !w.down[n.Name] {
					w.do(t, n, chance.IntN(4) == 0)
				}
			}
		}
		clear(w.down)
		for range 20 {
			for _, name := range names {
				w.do(t, w.nodes[name], false)
			}
		}
		if w.recorded != now || w.dns != now {
			t.Fatalf("seed %d: recorded %v, CoreDNS of %v", seed, w.recorded, w.dns)
		}
		for _, n := range w.nodes {
			if n.KubeletConfig != now || n.Role == hullmark.ControlPlane && !n.Acts.SameLine(now) {
				t.Fatalf("seed %d: %+v", seed, *n)
			}
			if task, _ := n.Next(w.seenBy(n)); task != TaskNone {
				t.Fatalf("seed %d: %s still has to %s", seed, n.Name, task)
			}
		}
	}
}
