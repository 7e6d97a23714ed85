//go:build explore

package explore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-tpm/tpm2/transport"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/joinservice"
)

// proc is a process of the world: a boot's agent, an exchange of a replica, or a workload. It runs until its next step, where
// it parks; only one runs at a time.
type proc struct {
	kind             string
	machine, replica int
	transit          *transit
	// history is all that it was told since it began. What it does next depends on nothing else.
	history []string
	// op is the step at which it is parked; options are what may come of it, those that begin with "!" by a fault.
	op      string
	options func() []string

	resume  chan string
	done    chan struct{}
	started bool
	dead    bool
	ended   bool
	cancel  func()
	begin   func()
	// version is that of the record that an exchange read or stored last, over what ends it.
	version joinservice.Version
	over    <-chan struct{}
	// slow says that an exchange goes on at any time after its node is gone, and phase that a message of Progress was sent.
	slow, phase bool
	// left are the faults that were still allowed when it began.
	left budget
	// forged says that what came of Proceed was a compromised service's, and level what the replica held that it came from.
	forged bool
	level  int
}

// transit is an exchange's messages under way.
type transit struct {
	toService, toNode []proto.Message
	// nodeGone and serviceGone say that an end will send nothing more.
	nodeGone, serviceGone bool
	// machine is the node's; past says that its boot had gone on past Proceed when the exchange began.
	machine int
	past    bool
	// workload says that the node's end is a workload's.
	workload bool
}

// run is one execution.
type run struct {
	site     *site
	w        *world
	services [2]*joinservice.Service
	procs    []*proc
	cur      *proc
	parked   chan struct{}
	violated *violation
	// pending are the bytes of the write to a disk that comes next.
	pending []byte
}

const dead = "dead"

// step parks the process that runs until it is its turn, and returns what came of it: one of the options, or "" if there is
// nothing but that.
func (r *run) step(op, options string, more ...func() []string) string {
	p := r.cur
	if p.dead {
		runtime.Goexit()
	}
	p.op, p.options = op, func() []string { return []string{options} }
	if len(more) > 0 {
		p.options = more[0]
	}
	r.parked <- struct{}{}
	came := <-p.resume
	if came == dead && !strings.HasPrefix(op, "receive") {
		runtime.Goexit()
	}
	p.history = append(p.history, op+" "+came)
	return came
}

// told adds to the history of the process that runs.
func (r *run) told(format string, args ...any) {
	r.cur.history = append(r.cur.history, fmt.Sprintf(format, args...))
}

func (r *run) violate(what string) {
	if r.violated == nil {
		r.violated = &violation{what}
	}
}

// spawn adds a process that begins when it is its turn.
func (r *run) spawn(p *proc, main func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	p.resume, p.done, p.cancel = make(chan string), make(chan struct{}), cancel
	p.op, p.options = "begin", func() []string { return []string{""} }
	p.begin = func() {
		go func() {
			defer func() {
				p.ended = true
				close(p.done)
				if !p.dead {
					r.parked <- struct{}{}
				}
			}()
			main(ctx)
		}()
	}
	r.procs = append(r.procs, p)
}

// advance lets a process do its step and go on to the next.
func (r *run) advance(p *proc, came string) {
	r.cur = p
	if !p.started {
		p.started = true
		p.begin()
	} else {
		p.resume <- came
	}
	<-r.parked
	r.cur = nil
	if !p.ended {
		return
	}
	p.cancel()
	r.remove(p)
	if w := r.of("workload", p.machine); w != nil && r.w.machines[p.machine].mode == off {
		r.kill(w)
	}
}

func (r *run) remove(p *proc) {
	r.procs = slices.DeleteFunc(r.procs, func(q *proc) bool { return p == q })
	if p.transit == nil {
		return
	}
	if p.kind == "service" {
		p.transit.serviceGone = true
	} else {
		p.transit.nodeGone = true
	}
}

// kill ends a process where it is.
func (r *run) kill(p *proc) {
	if p.started {
		r.cur, p.dead = p, true
		p.cancel()
		p.resume <- dead
		<-p.done
		r.cur = nil
	}
	p.cancel()
	r.remove(p)
}

// end kills all.
func (r *run) end() {
	for len(r.procs) > 0 {
		r.kill(r.procs[0])
	}
}

func (r *run) of(kind string, machine int) *proc {
	for _, p := range r.procs {
		if p.kind == kind && p.machine == machine {
			return p
		}
	}
	return nil
}

// mostTries is how often a machine may begin again, in one boot or the next, from one fault to Ready.
const mostTries = 8

// boot begins an agent's process, in a new boot or in the one that is under way.
func (r *run) boot(machine int) {
	m, at := &r.w.machines[machine], r.site.places[machine]
	if m.mode == off {
		m.pcr8, m.fused, m.past = false, false, false
	}
	d := &r.w.disks[m.disk]
	m.mode, m.code, m.stored, m.wrote = running, "", d.files, ""
	if m.tries++; m.tries > mostTries {
		r.violate("left alone, a machine tries again and again")
	}
	fillTree(at.state(), d.files)
	fillTree(at.run(), nil)
	must(os.MkdirAll(at.work(), 0o755))
	p := &proc{kind: "agent", machine: machine}
	agent := r.newAgent(machine)
	r.spawn(p, func(ctx context.Context) {
		r.site.agents[machine] = agent
		_ = agent.Run(ctx)
	})
	p.history = []string{fmt.Sprint(m.pcr8, m.fused), d.text(), filesText(d.files)}
}

// newAgent makes the agent of a machine.
func (r *run) newAgent(machine int) *firstboot.Agent {
	at := r.site.places[machine]
	return &firstboot.Agent{
		OpenTPM: func() (transport.TPMCloser, error) { return noTPM{}, nil },
		Config:  config.Source{File: filepath.Join(at.dir, "fw"), Cache: filepath.Join(at.run(), "config.json")},
		Disk:    fakeDisk{r}, Machine: fakeMachine{r}, Cluster: &fakeCluster{run: r, Cluster: agenttest.Cluster{StateDir: at.state()}},
		StateDir: at.state(), RunDir: at.run(), Listen: "none", Timing: firstboot.DefaultTiming(),
		Status: &firstboot.Status{File: filepath.Join(at.run(), "status.json"), Console: io.Discard, Log: io.Discard, Notify: func(string) {}},
	}
}

// noTPM is closed after each use; the commands go to the world.
type noTPM struct{}

func (noTPM) Send([]byte) ([]byte, error) { return nil, errors.New("a command for a TPM that is none") }
func (noTPM) Close() error                { return nil }

// Pause ends the process: what it does next is what a new one does.
func (r *run) Pause(ctx context.Context, kept, wasReady bool) {
	p := r.cur
	if p == nil || p.dead || kept && !wasReady {
		<-ctx.Done() // The agent restarts the machine.
		return
	}
	m := &r.w.machines[p.machine]
	d := &r.w.disks[m.disk]
	d.files = r.at().held()
	if m.mode, m.code = waiting, statusCode(r.site.agents[p.machine].Status.Document()); kept {
		m.mode, m.code, m.tries = ready, "", 0
		r.leave(p.machine)
		r.checkReady(p.machine)
		r.checkNewest(p)
	} else if r.otherReplica(m.code) {
		m.tries--
	} else if slices.Contains(r.site.scenario.stands, m.code) {
		m.mode = refused
	}
	p.cancel()
}

// otherReplica reports whether a machine was refused because of a replica's old keys, while another has the newest: it dials
// them in any order, and meets that one in time.
func (r *run) otherReplica(code string) bool {
	return (code == "keys-outdated" || code == "keys-older") && slices.ContainsFunc(r.w.levels[:], func(level int) bool { return level == len(holdings)-1 })
}

// unplug takes the power of a machine. What was not stored for sure is kept or lost; torn is a write that ended half-way.
func (r *run) unplug(machine int, lost, torn bool) {
	m := &r.w.machines[machine]
	d := &r.w.disks[m.disk]
	if p := r.of("agent", machine); p != nil {
		if d.files = r.site.places[machine].held(); lost {
			d.files = maps.Clone(m.stored)
		}
		op := p.op
		r.kill(p)
		if torn {
			r.tear(d, op)
		}
	}
	if p := r.of("workload", machine); p != nil {
		r.kill(p)
	}
	m.mode, m.code, m.stored, m.tries, m.wrote, m.run = off, "", nil, 0, "", nil
}

// tear does half of the write that comes next.
func (r *run) tear(d *disk, op string) {
	for offset, name := range writes {
		if name == op {
			d.write(r.pending, offset, true)
		}
	}
}
