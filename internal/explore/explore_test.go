//go:build explore

package explore

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"google.golang.org/grpc/credentials"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/internal/explore/seam"
	"github.com/hullmark/hullmark/internal/jointest"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

var (
	scenarioFlag = flag.String("scenario", "", "what to explore")
	shortFlag    = flag.Bool("small", false, "allow fewer faults")
	mostFlag     = flag.Int("most", 0, "stop after so many states")
	traceFlag    = flag.Bool("trace", false, "write each step")
)

// scenario is a cluster, its machines and disks, and the faults that are allowed.
type scenario struct {
	name     string
	machines int
	disks    int
	// role is that of all machines, workers if it is empty.
	role hullmark.Role
	// levels are how far the exchange of keys has come at first.
	levels [2]int
	// dials are the replicas that each machine may reach. With sameName each replica's policy names one machine alone, both by one name.
	dials    [][]string
	sameName bool
	// full and small are the faults that may happen, in the long form and in the short one.
	full, small budget
	// stands are the codes of refusals that may stand at the end.
	stands []string
}

var both = []string{"0", "1"}

var scenarios = []scenario{
	{name: "crashes", machines: 1, disks: 1, dials: [][]string{both}, full: budget{Crash: 2, Slow: 1}, small: budget{Crash: 2}},
	{name: "messages", machines: 1, disks: 1, dials: [][]string{both}, full: budget{Crash: 2, Cut: 1, Again: 1, Replies: 1}, small: budget{Crash: 1, Cut: 1, Replies: 1}},
	{name: "restarts", machines: 1, disks: 1, dials: [][]string{both}, full: budget{Crash: 2, Slow: 1, Restart: 1, Agent: 1}, small: budget{Restart: 1, Agent: 1}},
	{name: "behind", machines: 1, disks: 1, dials: [][]string{both}, full: budget{Crash: 2, Slow: 1, Agent: 1}, small: budget{Crash: 1, Slow: 1}},
	{name: "disks", machines: 1, disks: 2, dials: [][]string{{"0"}}, full: budget{Crash: 2, Swap: 2}, small: budget{Crash: 2, Swap: 1}},
	{name: "copies", machines: 1, disks: 1, dials: [][]string{{"0"}}, full: budget{Crash: 3, Copy: 1, Swap: 1}, small: budget{Crash: 2, Copy: 1, Swap: 1}},
	{name: "workload", machines: 1, disks: 1, dials: [][]string{both}, full: budget{Crash: 2, Agent: 1, Workload: 1}, small: budget{Crash: 1, Agent: 1, Workload: 1}},
	{name: "names", machines: 2, disks: 2, dials: [][]string{{"0"}, {"1"}}, sameName: true, full: budget{Crash: 2}, small: budget{Crash: 1}, stands: []string{"name-taken"}},
	{name: "advance", machines: 1, disks: 1, dials: [][]string{both}, full: budget{Crash: 2, Slow: 1, Cut: 1, Again: 1, Replies: 1, Advance: 2}, small: budget{Crash: 1, Cut: 1, Advance: 2}},
	{name: "asks", machines: 1, disks: 1, dials: [][]string{{"0"}}, full: budget{Crash: 1, Cut: 1, Agent: 1, Restart: 1, Again: 1, Advance: 2}, small: budget{Cut: 1, Agent: 1, Advance: 2}},
	{name: "splices", machines: 1, disks: 1, dials: [][]string{{"0"}}, full: budget{Crash: 2, Copy: 1, Swap: 1, Cut: 1, Advance: 2}, small: budget{Crash: 1, Copy: 1, Swap: 1, Advance: 2}},
	{name: "forged", machines: 1, disks: 1, dials: [][]string{{"0"}}, full: budget{Crash: 2, Copy: 1, Swap: 1, Forge: 1, Advance: 1}, small: budget{Crash: 1, Swap: 1, Forge: 1, Advance: 1}},
	{name: "keys", machines: 1, disks: 1, role: hullmark.ControlPlane, dials: [][]string{both}, full: budget{Crash: 2, Rotate: 2, Rogue: 1, Cut: 1}, small: budget{Crash: 1, Rotate: 1, Rogue: 1}},
	{name: "newest", machines: 1, disks: 1, role: hullmark.ControlPlane, levels: [2]int{2, 0}, dials: [][]string{both}, full: budget{Crash: 2, Rotate: 1, Rogue: 1}, small: budget{Crash: 1, Rogue: 1}},
	{name: "members", machines: 1, disks: 1, role: hullmark.ControlPlane, dials: [][]string{{"0"}}, full: budget{Crash: 2, Grow: 2, Etcd: 1, Swap: 1, Advance: 1}, small: budget{Crash: 1, Grow: 1, Etcd: 1, Swap: 1, Advance: 1}},
	{name: "owners", machines: 2, disks: 3, dials: [][]string{{"0"}, {"1"}}, full: budget{Crash: 2, Swap: 1}, small: budget{Crash: 1, Swap: 1}},
}

// site is what no event changes.
type site struct {
	scenario scenario
	// goesOn says that nodes that are Ready ask for their disk's next number.
	goesOn   bool
	cluster  *cluster.Cluster
	policies [2]*joinservice.PolicyStore
	// rotations are those of a cluster whose machine is a control plane: two of its own, and another cluster's.
	rotations []rotation
	registers attest.Registers
	config    []byte
	eks       [][]byte
	ak        []byte
	nodes     []hullmark.EKID
	names     []string
	dials     [][]string
	places    []*place
	tls       [2]credentials.TLSInfo
	agents    map[int]*firstboot.Agent
}

func newSite(t *testing.T, s scenario) *site {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	x := &site{scenario: s, goesOn: s.full.Advance > 0, cluster: c, dials: s.dials, agents: map[int]*firstboot.Agent{}}
	for register, value := range nodetest.Document(t, "image").Values(pcrs.SHA256) {
		copy(x.registers[register][:], value)
	}
	if x.config, err = json.Marshal(hullmark.NodeConfig{
		Version: 1, ClusterRoot: c.ID(), StateDisk: hullmark.DiskSelector{Serial: "state"}, Endpoints: []string{"192.0.2.1:7444"},
	}); err != nil {
		t.Fatal(err)
	}
	point := sha256.Sum256([]byte("ak"))
	x.ak = tpm2.Marshal(attest.AKOf(point[:], point[:]))
	dir, err := os.MkdirTemp("/dev/shm", "explore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var members []measurements.Member
	for i := range s.machines {
		public := tpm2.RSAEKTemplate
		public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: []byte(strings.Repeat(string(rune('a'+i)), 256))})
		x.eks = append(x.eks, tpm2.Marshal(public))
		x.nodes = append(x.nodes, hullmark.EKIDOf(x.eks[i]))
		x.names = append(x.names, fmt.Sprintf("node-%d", i))
		if s.sameName {
			x.names[i] = "node"
		}
		p := &place{dir: filepath.Join(dir, fmt.Sprint(i))}
		for _, folder := range []string{p.dir, p.work()} {
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(p.dir, "fw"), x.config, 0o600); err != nil {
			t.Fatal(err)
		}
		x.places = append(x.places, p)
		members = append(members, measurements.Member{EKID: x.nodes[i], Role: cmp.Or(s.role, hullmark.Worker), Name: x.names[i]})
	}
	if s.role == hullmark.ControlPlane {
		x.rotate(t, members...)
	}
	for i := range x.policies {
		of := members
		if s.sameName {
			of = members[i : i+1]
		}
		x.policies[i] = jointest.PolicyStore(t, c, of...)
	}
	x.handshake(t)
	return x
}

// handshake makes the one real channel whose keys all exchanges are bound to.
func (x *site) handshake(t *testing.T) {
	leaf, err := channel.NewService(x.cluster.Root.Certificate, x.cluster.Online.Certificate, x.cluster.Online.Key)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	ends := []*tls.Conn{tls.Client(ours, channel.JoinTLS(x.cluster.ID())), tls.Server(theirs, channel.ServiceTLS(leaf))}
	failed := make(chan error)
	for _, end := range ends {
		go func() { failed <- end.Handshake() }()
	}
	for range ends {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	for i, end := range ends {
		x.tls[i] = credentials.TLSInfo{State: end.ConnectionState()}
	}
}

func (x *site) newService(r *run, replica int) *joinservice.Service {
	k := records{r}
	policies, planes := x.policies[replica], joinservice.ControlPlanes{}
	if len(x.rotations) > 0 {
		holds := holdings[r.w.levels[replica]]
		policies, planes = x.rotations[holds.policy].policy, x.controlPlanes(r, holds.keys)
	} else {
		planes.Rotation, planes.Keys = policies.Policy().Rotation, policies.Policy().Keys
	}
	return &joinservice.Service{
		ControlPlanes: planes,
		Root:          x.cluster.ID(), Policy: policies, Keys: x.cluster.Keys, Records: k, Tokens: k, RemoveNode: r.removeNode,
		Settings: joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}, KubernetesCA: x.cluster.KubernetesCA(),
		Timeouts: joinservice.Timeouts{Proof: time.Hour, Opened: time.Hour, Progress: time.Hour, Renew: time.Hour},
	}
}

// first is the world before anything happened.
func (x *site) first(left budget) *world {
	w := &world{
		levels: x.scenario.levels, records: &memrecords.Store{}, nodes: map[string]int{}, left: left,
		boots: map[hullmark.UUID]int{}, issued: map[string]bool{}, used: map[string]int{}, given: map[string]bool{},
	}
	for range x.scenario.disks {
		w.disks = append(w.disks, disk{keys: noKeys})
	}
	for i := range x.scenario.machines {
		w.machines = append(w.machines, machine{mode: off, disk: i})
	}
	return w
}

func (x *site) start(w *world) *run {
	r := &run{site: x, w: w.clone(), parked: make(chan struct{})}
	seam.World = r
	for i := range r.services {
		r.services[i] = x.newService(r, i)
	}
	return r
}
