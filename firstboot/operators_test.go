package firstboot

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/measurements"
)

// byVersion is the policy's version by which operators' certificates are made here.
const byVersion = 7

// named makes an operator, with a certificate that lasts so long.
func (s *stage) named(t *testing.T, name string, lasts time.Duration, may ...hullmark.Permission) (tls.Certificate, hullmark.Operator) {
	t.Helper()
	certificate, err := channel.NewNamedOperator(s.root, s.rootKey, channel.Named{Name: name, May: may, Policy: byVersion, Ends: time.Now().Add(lasts)})
	if err != nil {
		t.Fatal(err)
	}
	return certificate, hullmark.Operator{Name: name, Key: hullmark.OperatorKeyOf(certificate.Leaf.RawSubjectPublicKeyInfo), May: may}
}

// dialWith dials the node with a certificate.
func dialWith(t *testing.T, address string, certificate tls.Certificate) wire.NodeClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(channel.OperatorCredentials(certificate)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return wire.NewNodeClient(conn)
}

// asks makes one call of a verb, and returns how it ended.
func asks(t *testing.T, client wire.NodeClient, verb channel.Verb) error {
	t.Helper()
	var err error
	switch verb {
	case channel.VerbStatus:
		_, err = client.Status(t.Context(), &wire.StatusRequest{})
	case channel.VerbLogs:
		logs, failed := client.Journal(t.Context(), &wire.JournalRequest{})
		if err = failed; err == nil {
			_, err = logs.Recv()
		}
	case channel.VerbUpdate:
		replies, failed := client.Update(t.Context(), &wire.UpdateOrder{})
		if err = failed; err == nil {
			_, err = replies.Recv()
		}
	default:
		stream, failed := client.Exchange(t.Context())
		if err = failed; err == nil {
			_, err = stream.Recv()
		}
	}
	return err
}

// wantRefused wants a call to be refused in words.
func wantRefused(t *testing.T, what string, err error, says ...string) {
	t.Helper()
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("%s: got %v", what, err)
	}
	for _, words := range says {
		if !strings.Contains(status.Convert(err).Message(), words) {
			t.Errorf("%s: %v does not say %q", what, err, words)
		}
	}
}

// Before a node's disk is open an operator's certificate opens what he was granted when it was made, until it ends.
func TestOperatorLooksAtANodeThatWaits(t *testing.T) {
	s := newStage(t)
	var log agenttest.Text
	s.agent.Status.Log = &log
	address, _ := s.serve(t)
	look, _ := s.named(t, "alice", time.Hour, hullmark.MayLook)
	for _, verb := range []channel.Verb{channel.VerbStatus, channel.VerbLogs} {
		if err := asks(t, dialWith(t, address, look), verb); status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unavailable {
			t.Errorf("%s: %v", verb, err)
		}
	}
	wantRefused(t, "update", asks(t, dialWith(t, address, look), channel.VerbUpdate), "update is for whoever holds the cluster file", "alice")
	wantRefused(t, "an exchange", asks(t, dialWith(t, address, look), channel.VerbRecover), `recover needs the permission "recover"`, "alice")
	recovers, _ := s.named(t, "bob", time.Hour, hullmark.MayLook, hullmark.MayRecover)
	ended, _ := s.named(t, "carol", -time.Minute, hullmark.MayLook, hullmark.MayRecover)
	for _, verb := range []channel.Verb{channel.VerbStatus, channel.VerbLogs, channel.VerbRecover} {
		wantRefused(t, "a certificate that ended", asks(t, dialWith(t, address, ended), verb), "operator-expired", "carol")
	}
	c := dial(t, dialWith(t, address, recovers)) // a kind that no permission is for
	if err := c.call(); err != nil {
		t.Fatal(err)
	}
	if _, last := c.rest(); last.GetFailed().GetCode() != "operator-not-permitted" {
		t.Errorf("init by an operator: %v", last)
	}
	for _, want := range []string{"call: status by operator alice", "call: logs by operator alice", "permitted", "call: update by operator alice", "call: recover by operator carol", "refused: operator-expired", "call: init by operator bob"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the journal does not say %q:\n%s", want, log.String())
		}
	}
}

// What the root did not sign for an operator, or not so, does not pass the handshake.
func TestOperatorMakesHimselfNobody(t *testing.T) {
	s, other := newStage(t), newStage(t)
	address, _ := s.serve(t)
	alice, _ := s.named(t, "alice", time.Hour, hullmark.MayLook)
	stranger, _ := other.named(t, "alice", time.Hour, hullmark.MayLook)
	unknown, _ := s.named(t, "alice", time.Hour, "root")
	unordered, _ := s.named(t, "alice", time.Hour, hullmark.MayRecover, hullmark.MayLook)
	twice, _ := s.named(t, "alice", time.Hour, hullmark.MayLook, hullmark.MayLook)
	blind, _ := s.named(t, "alice", time.Hour, hullmark.MayRecover)
	root, _ := s.named(t, "root", time.Hour, hullmark.MayLook)
	// He signs a certificate for more himself, below his own.
	own := stranger
	own.Certificate = [][]byte{stranger.Certificate[0], alice.Certificate[0]}
	borrowed := stranger
	borrowed.Certificate = [][]byte{stranger.Certificate[0], s.root.Raw}
	for name, certificate := range map[string]tls.Certificate{
		"another cluster's": stranger, "under his own": own, "under a copy of the root": borrowed, "an unknown permission": unknown, "out of order": unordered, "one twice": twice, "recover without look": blind, "called root": root,
	} {
		if err := asks(t, dialWith(t, address, certificate), channel.VerbStatus); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "bad certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := asks(t, dialWith(t, address, alice), channel.VerbStatus); err != nil {
		t.Errorf("the positive control: %v", err)
	}
}

// policyWith is what comes with a rotation, by a policy that names operators.
func policyWith(version uint64, operators ...hullmark.Operator) set {
	return set{version: version, number: 1, keyset: "own", edit: func(p *measurements.Policy) { p.Operators = operators }}
}

// A control plane goes by the newest signed policy on its disk.
func TestOperatorIsHeldToThePolicyOnTheDisk(t *testing.T) {
	for name, c := range map[string]struct {
		held, cached func(alice, other hullmark.Operator) *set
		code         string
	}{
		"granted":   {held: func(alice, _ hullmark.Operator) *set { p := policyWith(7, alice); return &p }},
		"no policy": {held: func(_, _ hullmark.Operator) *set { p := policyWith(7); return &p }, code: "operator-withdrawn"},
		"withdrawn since": {
			held:   func(alice, _ hullmark.Operator) *set { p := policyWith(7, alice); return &p },
			cached: func(_, other hullmark.Operator) *set { p := policyWith(8, other); return &p }, code: "operator-withdrawn",
		},
		"an older policy is replayed": {
			held:   func(_, _ hullmark.Operator) *set { p := policyWith(8); return &p },
			cached: func(alice, _ hullmark.Operator) *set { p := policyWith(7, alice); return &p }, code: "operator-withdrawn",
		},
		"another key under the name": {
			held: func(_, other hullmark.Operator) *set { other.Name = "alice"; p := policyWith(7, other); return &p }, code: "operator-withdrawn",
		},
		"certificates of that time revoked": {
			held: func(alice, _ hullmark.Operator) *set {
				p := policyWith(8, alice)
				p.edit = func(p *measurements.Policy) { p.Operators, p.OperatorsFrom = []hullmark.Operator{alice}, 8 }
				return &p
			},
			code: "operator-revoked",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := returning(t, time.Now().Add(year))
			certificate, alice := s.named(t, "alice", time.Hour, hullmark.MayLook, hullmark.MayRecover)
			_, other := s.named(t, "other", time.Hour, hullmark.MayLook)
			s.holds(t, s.signed(t, *c.held(alice, other)))
			if c.cached != nil {
				s.caches(t, s.signed(t, *c.cached(alice, other)))
			}
			address, _ := s.serve(t)
			if err := asks(t, dialWith(t, address, certificate), channel.VerbStatus); err != nil {
				t.Errorf("before the disk is open: %v", err)
			}
			x := dial(t, dialAs(t, address, s.root, s.rootKey, channel.Scope{Verb: channel.VerbRecover, Policy: 8}))
			x.kind = hullmark.Recover
			x.ticket(x.admit(s))
			x.receive()
			p := controlPlane()
			p.Manifests = nil
			x.proceedWith(p)
			if _, last := x.rest(); !last.GetReady() {
				t.Fatalf("last = %v", last)
			}
			err := asks(t, dialWith(t, address, certificate), channel.VerbStatus)
			if c.code == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantRefused(t, name, err, c.code)
			if c.code != "operator-revoked" {
				wantRefused(t, name, err, "status", `permission "look"`)
			}
			if err := asks(t, dialAs(t, address, s.root, s.rootKey, channel.Scope{Verb: channel.VerbStatus, Policy: 8}), channel.VerbStatus); err != nil {
				t.Errorf("whoever holds the root key: %v", err)
			}
		})
	}
}

// A worker holds no policy, and asks a join service each time.
func TestWorkerAsksAboutOperators(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.comeBack(t, "kubelet.conf")
	address, _ := s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(&wire.Proceed{NodeName: "node-1", Role: string(hullmark.Worker)})
	if _, last := c.finish(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	certificate, alice := s.named(t, "alice", time.Hour, hullmark.MayLook)
	looks := func() error { return asks(t, dialWith(t, address, certificate), channel.VerbStatus) }
	wantRefused(t, "a join service of another release", looks(), "operator-unknown", "alice")
	for name, c := range map[string]struct {
		answer *wire.OperatorAnswer
		says   string
	}{
		"withdrawn":      {&wire.OperatorAnswer{Denied: &wire.Condition{Code: "operator-withdrawn", Title: "he is none", Next: "ask"}}, "operator-withdrawn"},
		"no answer":      {&wire.OperatorAnswer{}, "operator-unknown"},
		"two answers":    {&wire.OperatorAnswer{May: true, Denied: &wire.Condition{Code: "operator-withdrawn"}}, "operator-unknown"},
		"causes for all": {&wire.OperatorAnswer{Denied: endless(wire.MaxCauses + 1)}, "operator-unknown"},
	} {
		service.operator = func(*wire.OperatorAsk) *wire.OperatorAnswer { return c.answer }
		wantRefused(t, name, looks(), c.says)
	}
	asked := make(chan *wire.OperatorAsk, 1)
	service.operator = func(ask *wire.OperatorAsk) *wire.OperatorAnswer {
		asked <- ask
		return &wire.OperatorAnswer{May: true}
	}
	if err := looks(); err != nil {
		t.Fatal(err)
	}
	if ask := <-asked; hullmark.OperatorKey(ask.GetKey()) != alice.Key || ask.GetName() != "alice" || ask.GetVerb() != "status" || ask.GetPolicy() != byVersion {
		t.Errorf("the service was asked %v", ask)
	}
	if err := asks(t, dialAs(t, address, s.root, s.rootKey, channel.Scope{Verb: channel.VerbStatus}), channel.VerbStatus); err != nil {
		t.Errorf("whoever holds the root key: %v", err)
	}
}

// endless is a condition with so many causes.
func endless(n int) (c *wire.Condition) {
	for range n {
		c = &wire.Condition{Code: "a", Because: c}
	}
	return c
}

// recovering is a control plane that was switched off, whose policy names alice, and her certificate.
type recovering struct {
	*stage
	address     string
	alice       hullmark.Operator
	certificate tls.Certificate
}

// newRecovering makes it; edit changes the policy on the disk.
func newRecovering(t *testing.T, edit func(*measurements.Policy)) *recovering {
	t.Helper()
	s, _ := returning(t, time.Now().Add(year))
	r := &recovering{stage: s}
	r.certificate, r.alice = s.named(t, "alice", time.Hour, hullmark.MayLook, hullmark.MayRecover)
	r.address, _ = s.serve(t)
	own := r.identity(t)
	policy := set{version: 7, number: 1, keyset: "own", edit: func(p *measurements.Policy) {
		p.Operators = []hullmark.Operator{r.alice}
		p.Members = []measurements.Member{{EKID: own, Role: hullmark.ControlPlane, Name: "node-1", Pool: "planes"}}
		p.Pools = []measurements.Pool{{Name: "planes", Hooks: []string{"site-a.service"}}}
		if edit != nil {
			edit(p)
		}
	}}
	settings, err := json.Marshal(map[string]any{"controlPlaneEndpoint": "192.0.2.7:6443", "networks": []string{"10.96.0.0/12"}})
	if err != nil {
		t.Fatal(err)
	}
	s.holds(t, replace(s.signed(t, policy), hullmark.SettingsFile, string(settings)))
	s.keep(keptFiles+"site.yaml", "stays")
	return r
}

// identity has the machine say who it is, by an exchange that it refuses.
func (r *recovering) identity(t *testing.T) hullmark.EKID {
	t.Helper()
	c := dial(t, dialAs(t, r.address, r.root, r.rootKey, channel.Scope{Verb: channel.VerbInit, EKID: hullmark.EKID{1}}))
	if err := c.call(); err != nil {
		t.Fatal(err)
	}
	c.rest()
	return r.node(t)
}

// recover plays an operator's recover, with what he brings.
func (r *recovering) recover(t *testing.T, p *wire.Proceed) *wire.Progress {
	t.Helper()
	c := dial(t, dialWith(t, r.address, r.certificate))
	c.kind = hullmark.Recover
	c.ticket(c.admit(r.stage))
	if opened := c.receive(); opened.GetOpened() == nil {
		return opened.GetProgress()
	}
	c.proceedWith(p)
	_, last := c.rest()
	return last
}

func planeOne() *wire.Proceed {
	return &wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane), Time: time.Now().Unix()}
}

// An operator who may recover opens the disk, and the node goes by what is on it: its policy's hooks and static pods, its settings, its
// pool's files. A pod that holds a secret is not started.
func TestOperatorRecovers(t *testing.T) {
	const folder = "/etc/kubernetes/manifests/"
	r := newRecovering(t, func(p *measurements.Policy) {
		p.Pools[0].Files = []measurements.PlacedFile{
			{Path: folder + "balancer.yaml", Mode: "0640", Content: "signed"},
			{Path: folder + "secret.yaml", Mode: "0600", Content: "hullmark-encrypted:1:" + folder + "secret.yaml:" + strings.Repeat("A", 40)},
			{Path: "/etc/kubernetes/site.conf", Mode: "0600", Content: "of the policy"},
		}
	})
	pods := filepath.Join(r.agent.StateDir, "etc-kubernetes/manifests")
	for _, name := range []string{"balancer.yaml", "secret.yaml", "evil.yaml"} {
		if err := errors.Join(os.MkdirAll(pods, 0o700), os.WriteFile(filepath.Join(pods, name), []byte("left"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	policy := r.kept(t, hullmark.PolicyFile)
	if last := r.recover(t, planeOne()); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	for _, unit := range []string{"site-a.service", joinServiceUnit, kubeletUnit} {
		if !r.machine.Has("start " + unit) {
			t.Errorf("%s was not started: %q", unit, r.machine.Did())
		}
	}
	if text, err := os.ReadFile(filepath.Join(pods, "balancer.yaml")); err != nil || string(text) != "signed" {
		t.Errorf("the pool's static pod says %q, %v", text, err)
	}
	for _, name := range []string{"manifests/secret.yaml", "manifests/evil.yaml", "site.conf"} {
		if _, err := os.Lstat(filepath.Join(r.agent.StateDir, "etc-kubernetes", name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	if r.kept(t, hullmark.PolicyFile) != policy || r.kept(t, keysetFile) != "own" || r.kept(t, keptDir+"site.yaml") != "stays" || r.shown(keptDir+"site.yaml") != "stays" {
		t.Error("what was on the disk is not there, or not shown")
	}
	if boot, err := os.ReadFile(filepath.Join(r.agent.RunDir, recoveredFile)); err != nil || !strings.HasSuffix(string(boot), " alice") || len(boot) < 16 {
		t.Errorf("the join service is told of the boot: %q, %v", boot, err)
	}
	if err := asks(t, dialWith(t, r.address, r.certificate), channel.VerbStatus); err != nil {
		t.Errorf("she looks at it: %v", err)
	}
}

// An operator brings a control plane nothing, gives it no other name, and is held to the policy on its disk before anything there runs.
func TestOperatorRecoversNoMore(t *testing.T) {
	for name, c := range map[string]struct {
		edit   func(*measurements.Policy)
		bring  func(*wire.Proceed)
		code   string
		before bool // refused before the fuse
	}{
		"a file": {nil, func(p *wire.Proceed) {
			p.Files = []*wire.File{{Path: "/etc/kubernetes/manifests/evil.yaml", Content: []byte("a"), Mode: 0o600}}
		}, "proceed-refused", true},
		"other keys": {nil, func(p *wire.Proceed) {
			p.Files = []*wire.File{{Path: "/etc/kubernetes/pki/sa.key", Content: []byte("a"), Mode: 0o600}}
		}, "proceed-refused", true},
		"a hook":            {nil, func(p *wire.Proceed) { p.Hooks = []string{"other.service"} }, "proceed-refused", true},
		"another endpoint":  {nil, func(p *wire.Proceed) { p.Endpoint = "198.51.100.1:6443" }, "proceed-refused", true},
		"names":             {nil, func(p *wire.Proceed) { p.Endpoint, p.Names = "192.0.2.7:6443", []string{"evil.example"} }, "proceed-refused", true},
		"a warning":         {nil, func(p *wire.Proceed) { p.Refused = []*wire.Condition{{Code: "fuse-blown", Title: "not so"}} }, "proceed-refused", true},
		"kubeadm documents": {nil, func(p *wire.Proceed) { p.KubeadmDocuments = []byte("a") }, "proceed-refused", true},
		"another name":      {nil, func(p *wire.Proceed) { p.NodeName = "node-2" }, "proceed-refused", false},
		"no member":         {func(p *measurements.Policy) { p.Members = nil }, func(*wire.Proceed) {}, "proceed-refused", false},
		"a worker's rule":   {func(p *measurements.Policy) { p.Members[0].Role = hullmark.Worker }, func(*wire.Proceed) {}, "proceed-refused", false},
		"withdrawn":         {func(p *measurements.Policy) { p.Operators = nil }, func(*wire.Proceed) {}, "operator-withdrawn", false},
		"may look alone": {
			func(p *measurements.Policy) { p.Operators[0].May = []hullmark.Permission{hullmark.MayLook} }, func(*wire.Proceed) {}, "operator-not-permitted", false,
		},
		"revoked": {func(p *measurements.Policy) { p.Version, p.OperatorsFrom = 8, 8 }, func(*wire.Proceed) {}, "operator-revoked", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecovering(t, c.edit)
			p := planeOne()
			c.bring(p)
			if last := r.recover(t, p); last.GetFailed().GetCode() != c.code {
				t.Errorf("last = %v, want %s", last, c.code)
			}
			if blown := r.registers(t)[attest.FuseRegister] != [32]byte{}; blown == c.before {
				t.Errorf("the fuse was blown: %v", blown)
			}
			if did := r.machine.Did(); slices.Contains(did, "start "+kubeletUnit) || slices.Contains(did, "start "+joinServiceUnit) || slices.Contains(did, "start site-a.service") {
				t.Errorf("machine did %q", did)
			}
		})
	}
}

// An operator's ticket leaves the disk as it is: by an epoch of his choosing he could keep the node out for good, though he was withdrawn.
func TestOperatorChoosesNoEpoch(t *testing.T) {
	r := newRecovering(t, nil)
	c := dial(t, dialWith(t, r.address, r.certificate))
	c.kind = hullmark.Recover
	message := ticketOf(hullmark.Recover, c.admit(r.stage))
	message.GetTicket().Unchecked, message.GetTicket().Issued = false, 1<<62
	c.send(message)
	if _, last := c.rest(); last.GetFailed().GetCode() != "ticket-mismatch" {
		t.Errorf("last = %v", last)
	}
	if len(r.disk.Grants) > 0 || r.registers(t)[attest.FuseRegister] != [32]byte{} {
		t.Errorf("the disk was opened by %+v", r.disk.Grants)
	}
	if last := r.recover(t, planeOne()); !last.GetReady() {
		t.Errorf("the positive control: %v", last)
	}
}

// What the host puts in the place of an authority is gone in a boot that an operator recovers, too, although he brings none.
func TestOperatorBringsNoFormerAuthority(t *testing.T) {
	r := newRecovering(t, nil)
	kept, _ := proceedName(hullmark.EtcdCACertificate)
	file := r.onDisk(t, hullmark.EtcdCACertificate)
	present, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r.keep(kept, string(present))
	if err := os.WriteFile(file, nodetest.NewAuthority(t).PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if last := r.recover(t, planeOne()); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, present) {
		t.Errorf("the disk has another authority: %v\n%s", err, got)
	}
}
