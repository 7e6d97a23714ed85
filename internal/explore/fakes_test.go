//go:build explore

package explore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/network"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/firstboot/statedisk/volume"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
)

// records lets the scheduler come between an exchange and what is kept.
type records struct{ run *run }

var errReply = &hullmark.Condition{Code: joinservice.CodeUnreachable, Title: "no reply", Next: "wait", Retry: true}

func (k records) Load(ctx context.Context, node hullmark.EKID) (joinservice.Machine, joinservice.Version, error) {
	if k.run.step("load", "", orReply("")) == "!lost" {
		return joinservice.Machine{}, "", errReply
	}
	m, v, err := k.run.w.records.Load(ctx, node)
	k.run.cur.version = v
	k.run.told("%v %s", v != "", recordText(m))
	return m, v, err
}

// orReply are the options of a call whose request, or reply, may be lost.
func orReply(also string) func() []string {
	return func() []string {
		options := []string{"", "!lost"}
		if also != "" {
			options = append(options, also)
		}
		return options
	}
}

func (k records) Store(ctx context.Context, m joinservice.Machine, v joinservice.Version) (joinservice.Version, error) {
	came := k.run.step("store "+string(m.State), "", orReply("!reply"))
	if came == "!lost" {
		return "", errReply
	}
	m.Seen = m.Seen.AddDate(-100, 0, 0) // A denial is then recorded each time.
	if !m.Advanced.IsZero() {
		m.Advanced = m.Advanced.AddDate(-1, 0, 0) // The pause between two numbers is over.
	}
	v, err := k.run.w.records.Store(ctx, m, v)
	k.run.told("%v", err)
	k.run.cur.version = v
	if came == "!reply" {
		return "", errReply
	}
	return v, err
}

func (k records) Claim(ctx context.Context, name string, node hullmark.EKID) error {
	k.run.step("claim", "")
	err := k.run.w.records.Claim(ctx, name, node)
	k.run.told("%s", codeOf(err))
	return err
}

// codeOf is the code of an error's condition.
func codeOf(err error) string {
	var c *hullmark.Condition
	if errors.As(err, &c) {
		return c.Code
	}
	return fmt.Sprint(err)
}

func (k records) ClaimAddress(ctx context.Context, address netip.Addr, node hullmark.EKID) error {
	return k.run.w.records.ClaimAddress(ctx, address, node)
}

func (k records) ReleaseAddress(ctx context.Context, address netip.Addr, node hullmark.EKID) error {
	return k.run.w.records.ReleaseAddress(ctx, address, node)
}

func (k records) Enrol(context.Context, string, hullmark.EKID, int) error {
	return errors.New("there are no groups")
}

func (k records) Leave(context.Context, string, hullmark.EKID) error {
	return errors.New("there are no groups")
}

func (k records) Issue(ctx context.Context, m joinservice.Machine, note func(string) error) (hullmark.Secret, error) {
	return k.run.w.records.Issue(ctx, m, func(id string) error {
		if err := note(id); err != nil {
			return err
		}
		k.run.step("make token", "")
		return nil
	})
}

func (k records) Revoke(ctx context.Context, id string) error {
	k.run.step("revoke", "")
	return k.run.w.records.Revoke(ctx, id)
}

// removeNode is Registry.RemoveNode's.
func (r *run) removeNode(_ context.Context, name string) error {
	r.step("remove Node", "")
	holder, there := r.w.nodes[name]
	if there && r.w.machines[holder].mode == ready {
		r.told("alive")
		return &hullmark.Condition{Code: "node-alive", Title: "the Node is Ready", Next: "wait", Retry: true}
	}
	delete(r.w.nodes, name)
	return nil
}

// fakeDisk is the helper without its socket.
type fakeDisk struct{ run *run }

func (d fakeDisk) Probe(context.Context, hullmark.DiskSelector) (hullmark.DiskClaim, error) {
	d.run.step("probe", "")
	d.run.at().show(d.run.disk())
	c, err := volume.Probe(d.run.at().device())
	d.run.told("%s %s", d.run.disk().text(), name(c.UUID))
	return c, err
}

func (d fakeDisk) Open(_ context.Context, _ hullmark.DiskSelector, g hullmark.DiskGrant) (statedisk.Opened, error) {
	d.run.step("open", "")
	d.run.at().show(d.run.disk())
	o, err := volume.Workspace{Dir: d.run.at().work()}.Open(d.run.at().device(), g)
	if err != nil {
		err = hullmark.AsCondition(err, "DISK", "disk-failed")
	}
	d.run.told("%v %s", o.Joined, codeOf(err))
	return o, err
}

// fakeMachine is systemd.
type fakeMachine struct{ run *run }

func (m fakeMachine) Start(_ context.Context, unit string) error {
	r := m.run
	switch unit {
	case "hullmark-state.service":
		r.step("mount", "")
		r.goesOn()
	case "kubelet.service":
		r.step("start the kubelet", "")
		r.checkMember()
		r.checkVote()
		r.w.nodes[r.site.names[r.cur.machine]] = r.cur.machine
	}
	return nil
}

// goesOn is called when a boot goes on past Proceed.
func (r *run) goesOn() {
	m, d := &r.w.machines[r.cur.machine], r.disk()
	m.past = true
	ready, err := statedisk.DecodeB([]byte(d.b))
	must(err)
	if d.boot < r.w.boots[ready.UUID] {
		r.violate("an old copy of a disk was opened")
	}
	if d.forged {
		r.violate("a disk was opened whose manifest is gone")
	}
	for i := range r.w.disks {
		if other := &r.w.disks[i]; other.joined && !d.joined {
			if id, _ := other.identity(); id.Owner == ready.Owner && id.UUID != ready.UUID {
				r.violate("a joined node is given up for another disk")
			}
		}
	}
	r.wentOn()
}

func (m fakeMachine) Restart(context.Context, string) error { return nil }
func (m fakeMachine) Links() ([]network.Link, bool, error) {
	return []network.Link{{Name: "eth0", Card: true, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")}}}, true, nil
}
func (m fakeMachine) Uptime() (time.Duration, error) { return time.Hour, nil }
func (m fakeMachine) Journal(context.Context, io.Writer) error {
	return nil
}

func (m fakeMachine) RebootAtOnce(ctx context.Context) error { return m.Reboot(ctx) }

func (m fakeMachine) Reboot(context.Context) error {
	r := m.run
	r.step("reboot", "")
	machine := &r.w.machines[r.cur.machine]
	r.disk().files = r.at().held()
	if machine.mode = off; r.otherReplica(statusCode(r.site.agents[r.cur.machine].Status.Document())) {
		machine.tries--
	}
	return nil
}

// fakeCluster is Kubernetes. A join has a number of its own, which is the kubelet's key.
type fakeCluster struct {
	run *run
	agenttest.Cluster
}

const joinFile = "/var/lib/kubelet/pki/join"

func (c *fakeCluster) Join(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error {
	r := c.run
	r.step("kubeadm join", "")
	if r.disk().joined && !r.disk().anew {
		r.violate("a disk that held a joined node joins anew")
	}
	r.w.serials++
	key := fmt.Sprintf("j%d", r.w.serials)
	return c.Cluster.Join(ctx, documents, func(p kubeadm.Phase) {
		file := filepath.Join(c.StateDir, joinFile)
		must(os.MkdirAll(filepath.Dir(file), 0o755))
		must(os.WriteFile(file, []byte(key), 0o600))
		// Any certificate that has not ended is a kubelet's.
		must(os.WriteFile(filepath.Join(c.StateDir, kubeadm.ClientCertificate), r.site.cluster.KubernetesCA(), 0o600))
		if r.site.scenario.role == hullmark.ControlPlane {
			file := filepath.Join(c.StateDir, walFile)
			must(os.MkdirAll(filepath.Dir(file), 0o700))
			must(os.WriteFile(file, wal(uint64(r.w.serials), 1), 0o600))
		}
		r.step("use the token", "")
		c.Fail = r.useToken(ctx, tokenOf(documents), key)
		r.told("%v", c.Fail)
		r.step("write kubelet.conf", "")
		report(p)
	})
}

// useToken is what the API server and the approver do (registry.Approver): a token is good for one key, which is recorded first.
func (r *run) useToken(ctx context.Context, id, key string) error {
	node := r.site.nodes[r.cur.machine]
	m, v, err := r.w.records.Load(ctx, node)
	must(err)
	if r.w.records.Tokens()[id] != node || m.Token != id || m.FirstKey != "" && m.FirstKey != key {
		return errors.New("the token is not good")
	}
	m.FirstKey = key
	m.NoteCredential(joinservice.Credential{Fingerprint: key, Ends: time.Now().Add(kubeadm.CertificateLife)}, time.Now())
	_, err = r.w.records.Store(ctx, m, v)
	must(err)
	if r.w.used[id]++; r.w.used[id] > 1 {
		r.violate("a token served two joins")
	}
	r.w.nodes[r.site.names[r.cur.machine]] = r.cur.machine
	return nil
}

// checkMember looks whether the disk holds all that a join leaves.
func (r *run) checkMember() {
	for _, file := range []string{"etc-kubernetes/kubelet.conf", joinFile} {
		if _, err := os.Stat(filepath.Join(r.at().state(), file)); err != nil {
			r.violate("a join that did not end is taken for a joined node")
		}
	}
}

func (c *fakeCluster) WaitReady(ctx context.Context, access kubeadmrun.Access, node string, report func(error)) error {
	r := c.run
	r.step("wait until Ready", "")
	if holder, there := r.w.nodes[node]; !there || holder != r.cur.machine {
		r.told("gone")
		return errors.New("the Node is gone")
	}
	r.checkMember()
	return c.Cluster.WaitReady(ctx, access, node, report)
}

// checkReady looks at the cluster when a machine is Ready.
func (r *run) checkReady(machine int) {
	for i, m := range r.w.machines {
		if i != machine && m.mode == ready && r.site.names[i] == r.site.names[machine] {
			r.violate("two machines are one node")
		}
	}
	if !r.disk().joined {
		r.violate("a node is Ready whose disk does not say so")
	}
}

// workload asks for a ticket beside the agent, in the way that the agent does.
func (r *run) workload(machine int) {
	p := &proc{kind: "workload", machine: machine}
	r.spawn(p, func(context.Context) {
		s := nodeStream{nodeEnd: r.open(0, release)}
		defer func() { _ = s.CloseSend() }()
		keys, err := prover.Open(noTPM{}, hullmark.EKID{})
		must(err)
		claim := r.site.claim(r.disk())
		hello, err := wire.EncodeHello(&wire.Hello{
			Version: attest.Version, EkPublic: keys.Identity().EKPublic, AkPublic: keys.Identity().AKPublic, NodeConfig: r.site.config, Disk: wire.FromDiskClaim(claim),
		})
		must(err)
		_ = s.Send(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: hello}})
		m, err := s.Recv()
		if err != nil || m.GetChallenge() == nil {
			return
		}
		secret, err := keys.Activate(m.GetChallenge().GetCredential(), m.GetChallenge().GetSecret())
		must(err)
		from, _ := peer.FromContext(s.Context())
		channel, err := channel.Key(from)
		must(err)
		binding, err := attest.Bind(channel, secret, hello)
		must(err)
		evidence, err := keys.Prove(binding)
		must(err)
		_ = s.Send(&wire.FromNode{Message: &wire.FromNode_Proof{Proof: &wire.Proof{
			Quoted: evidence.Quoted, Signature: evidence.Signature, PcrValues: evidence.Registers.Bytes(),
		}}})
		_, _ = s.Recv()
	})
}

// claim is what a disk that is ready says of itself.
func (s *site) claim(d *disk) hullmark.DiskClaim {
	b, err := statedisk.DecodeB([]byte(d.b))
	must(err)
	return hullmark.DiskClaim{State: hullmark.DiskReady, UUID: b.UUID, Generation: b.Generation, Owner: b.Owner}
}
