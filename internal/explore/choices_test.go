//go:build explore

package explore

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// choice is an event that may come next.
type choice struct {
	text  string
	fault bool
	do    func()
}

// choices are the events that may come next: those that need no fault first, and the first of them is what happens if the world
// is left alone.
//
// Where the order of two events makes no difference, one order is enough: what a machine does alone, with its disk, comes
// before what others do, and may be cut off before or after. An exchange whose node is gone ends at once, unless it falls
// behind: then it goes on at any time.
func (r *run) choices() []choice {
	for _, p := range r.procs {
		if p.kind == "service" && p.transit.nodeGone && !p.slow {
			return slices.Concat(r.steps(p), r.fallsBehind(p), r.restarts())
		}
		if p.kind == "service" && !p.started || p.kind == "workload" && p.ready() || p.kind == "service" && p.transit.workload && p.ready() {
			return r.steps(p)
		}
	}
	for i := range r.w.machines {
		if p := r.of("agent", i); p != nil && (private[p.op] || p.op == "receive" && len(p.transit.toNode) > 0) {
			return slices.Concat(r.steps(p), r.power(i))
		}
		if m := r.w.machines[i].mode; m == off || m == waiting {
			boot := choice{text: fmt.Sprintf("machine %d: %s, begin", i, m), do: func() { r.boot(i); r.advance(r.of("agent", i), "") }}
			if repairs := r.repairs(i); len(repairs) > 0 {
				return slices.Concat(repairs, r.power(i))
			}
			return slices.Concat([]choice{boot}, r.power(i))
		}
	}
	var calm, faults []choice
	for _, kind := range []string{"service", "workload", "agent"} {
		for _, p := range r.procs {
			if p.kind == kind {
				for _, c := range r.steps(p) {
					if c.fault {
						faults = append(faults, c)
					} else {
						calm = append(calm, c)
					}
				}
			}
		}
	}
	for i := range r.w.machines {
		faults = append(faults, r.power(i)...)
	}
	return slices.Concat(calm, faults, r.restarts())
}

// ready reports whether a process can go on without a fault.
func (p *proc) ready() bool {
	return slices.ContainsFunc(p.options(), func(o string) bool { return !strings.HasPrefix(o, "!") })
}

// private are the steps of an agent that no other process can tell from its waiting.
var private = map[string]bool{
	"begin": true, "dial": true, "probe": true, "open": true, "format": true, "write record A": true, "write the LUKS area": true, "write record B": true,
	"store epoch": true, "store kubeadm": true, "sync": true, "blow the fuse": true, "mount": true, "stored the manifest": true, "kubeadm join": true, "write kubelet.conf": true, "reboot": true,
}

// steps are what may come of a process's step.
func (r *run) steps(p *proc) (all []choice) {
	for _, option := range p.options() {
		c := choice{text: fmt.Sprintf("%s %d/%d: %s %s", p.kind, p.machine, p.replica, p.op, option), do: func() { r.advance(p, option) }}
		if strings.HasPrefix(option, "!") {
			left := r.faultsLeft(option)
			if *left == 0 {
				continue
			}
			c.fault, c.do = true, func() { *left--; r.advance(p, option) }
		}
		all = append(all, c)
	}
	return all
}

func (r *run) faultsLeft(option string) *int {
	switch option {
	case "!cut":
		return &r.w.left.Cut
	case "!again":
		return &r.w.left.Again
	case "!number", "!foreign", "!content", "!older":
		return &r.w.left.Rogue
	}
	return &r.w.left.Replies
}

func fault(left *int, text string, do func()) []choice {
	if *left == 0 {
		return nil
	}
	return []choice{{text: text, fault: true, do: func() { *left--; do() }}}
}

func (r *run) fallsBehind(p *proc) []choice {
	return fault(&r.w.left.Slow, fmt.Sprintf("the exchange of machine %d at replica %d falls behind", p.machine, p.replica), func() { p.slow = true })
}

// power are the faults of a machine, its host and its workloads.
func (r *run) power(i int) (all []choice) {
	m, p := &r.w.machines[i], r.of("agent", i)
	if m.mode != off {
		all = append(all, fault(&r.w.left.Crash, fmt.Sprintf("machine %d loses its power", i), func() { r.unplug(i, false, false) })...)
	}
	if p != nil {
		if m.past {
			all = append(all, fault(&r.w.left.Crash, fmt.Sprintf("machine %d loses its power and what was not stored", i), func() { r.unplug(i, true, false) })...)
		}
		if p.op == "write record A" || p.op == "write the LUKS area" {
			all = append(all, fault(&r.w.left.Crash, fmt.Sprintf("machine %d loses its power in: %s", i, p.op), func() { r.unplug(i, false, true) })...)
		}
		all = append(all, fault(&r.w.left.Agent, fmt.Sprintf("machine %d's agent is killed", i), func() {
			r.leave(i)
			r.kill(p)
			if m.mode != ready {
				m.mode = waiting
			}
		})...)
	}
	if m.past && r.of("workload", i) == nil {
		all = append(all, fault(&r.w.left.Workload, fmt.Sprintf("machine %d's workload asks for a ticket", i), func() { r.workload(i) })...)
	}
	if m.mode == ready && p == nil {
		all = append(all, fault(&r.w.left.Advance, fmt.Sprintf("machine %d asks for its next number", i), func() { r.ask(i) })...)
	}
	if r.idle(i) && r.site.scenario.role != "" {
		all = append(all, fault(&r.w.left.Grow, fmt.Sprintf("machine %d's etcd acknowledges an entry", i), func() { r.grows(i) })...)
	}
	return append(all, r.diskFaults(i)...)
}

func (r *run) restarts() (all []choice) {
	for i := range r.services {
		all = append(all, fault(&r.w.left.Restart, fmt.Sprintf("replica %d restarts", i), func() {
			r.restart(i)
		})...)
	}
	return append(all, r.exchanges()...)
}

// restart ends the exchanges of a replica, and lets it begin anew.
func (r *run) restart(i int) {
	for _, p := range slices.Clone(r.procs) {
		if p.kind == "service" && p.replica == i {
			r.kill(p)
		}
	}
	r.services[i] = r.site.newService(r, i)
}

// unopened reports whether a machine's disk may be exchanged: it is not open.
func (r *run) unopened(i int) bool {
	m := &r.w.machines[i]
	p := r.of("agent", i)
	return m.mode == off || m.mode == waiting && !m.past || m.mode == running && p != nil && (p.op == "probe" || p.op == "open" || p.op == "dial")
}

// idle reports whether a machine is Ready and its agent does nothing: its disk stands still, and its host may copy it, or put
// older blocks under it.
func (r *run) idle(i int) bool {
	return r.w.machines[i].mode == ready && r.of("agent", i) == nil && r.site.goesOn
}

// sameDisk reports whether two disks are one, or copies of one.
func (r *run) sameDisk(i, k int) bool {
	one, _ := r.w.disks[i].identity()
	other, _ := r.w.disks[k].identity()
	return one.UUID == other.UUID
}

// diskFaults are what a host does with a machine's disk.
func (r *run) diskFaults(i int) (all []choice) {
	m := &r.w.machines[i]
	if !r.unopened(i) && !r.idle(i) {
		return nil
	}
	for k := range r.w.disks {
		if k != m.disk && r.free(k, i) && (!r.idle(i) || r.sameDisk(k, m.disk)) {
			all = append(all, fault(&r.w.left.Swap, fmt.Sprintf("machine %d gets disk %d", i, k), func() { r.attach(i, k) })...)
		}
	}
	all = slices.Concat(all, r.forge(i), r.forgeEtcd(i))
	if r.w.disks[m.disk].a != "" {
		all = append(all, fault(&r.w.left.Copy, fmt.Sprintf("disk %d is copied", m.disk), func() { r.w.disks = append(r.w.disks, r.w.disks[m.disk]) })...)
	}
	return all
}

// free reports whether a disk may be given to a machine: nobody else has it open.
func (r *run) free(k, to int) bool {
	for i, m := range r.w.machines {
		if i != to && m.disk == k && !r.unopened(i) {
			return false
		}
	}
	return true
}

// attach gives a machine a disk; whoever had it gets the machine's.
func (r *run) attach(i, k int) {
	had := r.w.machines[i].disk
	for other := range r.w.machines {
		if r.w.machines[other].disk == k {
			r.plug(other, had)
		}
	}
	r.plug(i, k)
}

func (r *run) plug(i, k int) {
	r.w.machines[i].disk = k
	if p := r.of("agent", i); p != nil {
		d := &r.w.disks[k]
		fillTree(r.site.places[i].state(), d.files)
		r.w.machines[i].stored = d.files
		p.history = append(p.history, "gets "+d.text()+filesText(d.files))
	}
}

// repairs are what an honest host does: it gives a machine that waits, or is off, its newest disk back.
func (r *run) repairs(i int) []choice {
	m, best := &r.w.machines[i], r.newest(i)
	// One that boots with another disk is refused first: it is given back then.
	if m.code == "" || best == m.disk {
		return nil
	}
	return []choice{{text: fmt.Sprintf("machine %d gets its newest disk, %d, back", i, best), do: func() { r.attach(i, best) }}}
}

// newest returns the disk that an honest host gives a machine: the one that its node was on last, else the one that it began
// with, else an empty one.
func (r *run) newest(i int) int {
	record, _, err := r.w.records.Load(context.Background(), r.site.nodes[i])
	must(err)
	score := func(k int) int {
		d := &r.w.disks[k]
		id, begun := d.identity()
		switch {
		case !begun:
			return 0
		case d.forged, id.Owner != r.site.nodes[i]:
			return -1
		case d.joined:
			return 1000 + d.last
		case id.UUID == record.Record.Disk:
			return 1 + d.last
		}
		return -1
	}
	best := r.w.machines[i].disk
	for k := range r.w.disks {
		if score(k) > score(best) && r.free(k, i) {
			best = k
		}
	}
	return best
}

var drawn = regexp.MustCompile(`\b[utje][0-9]+\b`)

// committed is what all epochs are compared with: how many boots there were makes no difference.
func (r *run) committed() int {
	if len(r.site.nodes) > 1 {
		return 0
	}
	m, _, err := r.w.records.Load(context.Background(), r.site.nodes[0])
	must(err)
	if m.Record.Committed == 0 {
		return 0
	}
	return int(m.Record.Committed) - 1
}

// state names a state. UUIDs, tokens and keys are numbered as they appear.
func (r *run) state() [16]byte {
	var t strings.Builder
	t.WriteString(r.w.text(r.site.nodes))
	for _, p := range r.procs {
		fmt.Fprintf(&t, "%s %d %d %s\n", p.kind, p.machine, p.replica, p.op)
		if p.kind == "service" {
			_, v, _ := r.w.records.Load(context.Background(), r.site.nodes[p.machine])
			over := false
			select {
			case <-p.over:
				over = true
			default:
			}
			fmt.Fprintf(&t, "%v %v %v %v ", p.version == v, over, p.transit.past, p.slow)
			for _, m := range slices.Concat(p.transit.toService, p.transit.toNode) {
				t.WriteString(messageText(m) + ",")
			}
			fmt.Fprintln(&t, p.transit.nodeGone, p.transit.serviceGone)
		}
		t.WriteString(strings.Join(p.history, "\n"))
		t.WriteByte('\n')
	}
	numbers, committed := map[string]string{}, r.committed()
	text := drawn.ReplaceAllStringFunc(t.String(), func(n string) string {
		if n[0] == 'e' {
			e, err := strconv.Atoi(n[1:])
			must(err)
			return strconv.Itoa(e - committed)
		}
		if numbers[n] == "" {
			numbers[n] = fmt.Sprintf("%c%d", n[0], len(numbers))
		}
		return numbers[n]
	})
	sum := sha256.Sum256([]byte(text))
	return [16]byte(sum[:16])
}
