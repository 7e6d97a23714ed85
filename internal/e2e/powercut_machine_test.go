//go:build powercut

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/powercut"
	"github.com/hullmark/hullmark/internal/vm"
)

// powerDiskSize is a state disk's, in bytes.
const powerDiskSize = 10 << 30

// powered is a machine whose power can be cut.
type powered struct {
	name   string
	config vm.Config
	// agent, api and etcd are where it is reached on this host.
	agent, api, etcd string
	// uid and boot are what the cluster knew the node by when it was last seen Ready; empty before.
	uid, boot string

	*vm.Machine
	disk     *powercut.Disk
	armed    *atomic.Bool // The power goes before the next flush that would store something.
	file     *os.File
	listener net.Listener
	on       time.Time
	status   *status
}

// ek is the ID of the machine's endorsement key, which it has once it was switched on.
func (p *powered) ek() (string, error) {
	text, err := os.ReadFile(filepath.Join(p.config.Dir, vm.EKIDFile))
	return strings.TrimSpace(string(text)), err
}

// switchOn starts the machine with its disk as it is. watch sees what is written to it, and can cut the power.
func (p *powered) switchOn(t *testing.T, operator *cluster.Cluster, watch func(powercut.Record) bool) {
	t.Helper()
	if err := os.MkdirAll(p.config.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.file, err = os.OpenFile(filepath.Join(p.config.Dir, "state.raw"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.file.Truncate(powerDiskSize); err != nil {
		t.Fatal(err)
	}
	p.on = time.Now()
	p.status = &status{began: p.on}
	p.disk = powercut.NewDisk(p.file, powerDiskSize)
	armed, unflushed := new(atomic.Bool), false
	p.armed = armed
	p.disk.Watch = func(r powercut.Record) bool {
		if r.Offset == statedisk.OffsetB && len(r.Data) > 0 {
			p.status.note("formats its disk")
		}
		if r.Flush && unflushed && armed.Load() {
			return true
		}
		unflushed = len(r.Data) > 0 || unflushed && !r.Flush
		return watch != nil && watch(r)
	}
	// A socket's path is short.
	if p.config.StateNBD == "" {
		dir, err := os.MkdirTemp("", "powercut")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		p.config.StateNBD = filepath.Join(dir, "disk")
	}
	if p.listener, err = net.Listen("unix", p.config.StateNBD); err != nil {
		t.Fatal(err)
	}
	go powercut.Serve(p.listener, p.disk)
	if p.Machine, err = vm.Start(t.Context(), p.config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	go p.status.follow(p.agent, operator, p.Done())
}

// cut cuts the power, and leaves on the disk what is left of what was not flushed.
func (p *powered) cut(random *rand.Rand) (powercut.Loss, error) {
	p.disk.Cut()
	p.Kill()
	loss, err := p.disk.Tear(random)
	return loss, errors.Join(err, p.listener.Close(), p.file.Close())
}

// ended reports whether the machine has ended.
func (p *powered) ended() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// switchOff presses the power button.
func (p *powered) switchOff() error {
	p.Stop(5 * time.Minute)
	return errors.Join(p.disk.Flush(), p.listener.Close(), p.file.Close())
}

// status is what a machine's agent says of itself in one boot.
type status struct {
	began time.Time
	mutex sync.Mutex
	// latest is the document as it was last heard; said are the different things that it said, in their order.
	latest firstboot.Document
	said   []saying
}

// saying is something that happened, and how long after power-on.
type saying struct {
	what  string
	after time.Duration
}

func (s *status) note(what string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !slices.ContainsFunc(s.said, func(o saying) bool { return o.what == what }) {
		s.said = append(s.said, saying{what, time.Since(s.began)})
	}
}

func (s *status) now() (d firstboot.Document, said []saying) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.latest, slices.Clone(s.said)
}

// story says what happened.
func (s *status) story() string {
	_, said := s.now()
	var words []string
	for _, o := range said {
		words = append(words, fmt.Sprintf("%s %.0f s", o.what, o.after.Seconds()))
	}
	return strings.Join(words, ", ")
}

// kubeadm is how long kubeadm ran.
func (s *status) kubeadm() time.Duration {
	_, said := s.now()
	first := slices.IndexFunc(said, func(o saying) bool { return inKubeadm(o.what) })
	last := slices.IndexFunc(said, func(o saying) bool { return o.what == firstboot.StepReady })
	if first < 0 || last < first {
		return 0
	}
	return said[last].after - said[first].after
}

// follow asks the agent until the machine has ended. Most of the time there is none that answers.
func (s *status) follow(agent string, operator *cluster.Cluster, ended <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-ended
		cancel()
	}()
	certificate, err := operator.Operator(channel.VerbStatus, hullmark.EKID{})
	if err != nil {
		panic(err)
	}
	connection, err := grpc.NewClient("passthrough:///"+agent, grpc.WithTransportCredentials(channel.OperatorCredentials(certificate)), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Second, Multiplier: 1, MaxDelay: time.Second}, MinConnectTimeout: 15 * time.Second}))
	if err != nil {
		panic(err)
	}
	defer func() { _ = connection.Close() }()
	for client := wire.NewNodeClient(connection); ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		reply, err := client.Status(attempt, &wire.StatusRequest{})
		cancel()
		var d firstboot.Document
		if err != nil || json.Unmarshal(reply.GetJson(), &d) != nil {
			continue
		}
		s.mutex.Lock()
		s.latest = d
		s.mutex.Unlock()
		s.note(phaseOf(d))
	}
}

// phaseOf is the step that a document tells of, and within KUBEADM the first word of what is done, which is kubeadm's phase or the agent's.
func phaseOf(d firstboot.Document) string {
	word, _, found := strings.Cut(d.Doing, ":")
	if d.Step != firstboot.StepKubeadm || !found {
		return d.Step
	}
	return d.Step + " " + word
}

// agentPhases are those of the agent's within KUBEADM; all others are kubeadm's.
var agentPhases = []string{"mount", "hooks", "joinservice", "kubelet"}

// inKubeadm reports whether kubeadm runs in a phase.
func inKubeadm(phase string) bool {
	name, ok := strings.CutPrefix(phase, firstboot.StepKubeadm+" ")
	return ok && !slices.Contains(agentPhases, name)
}
