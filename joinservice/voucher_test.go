package joinservice_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// enroller is who knows which machines there are.
type enroller struct {
	public  ed25519.PublicKey
	private ed25519.PrivateKey
}

func newEnroller(t *testing.T) enroller {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return enroller{public, private}
}

// group is that of a pool, of two machines at most.
func (e enroller) group(name string) measurements.Group {
	return measurements.Group{Name: name, Enrollers: [][]byte{e.public}, Max: 2}
}

// vouchers are what the cluster's API has, by machine, and how often it was asked.
type vouchers struct {
	issued map[hullmark.EKID][]byte
	asked  int
	err    error
}

func (v *vouchers) Voucher(_ context.Context, node hullmark.EKID) ([]byte, error) {
	v.asked++
	return v.issued[node], v.err
}

// enrolment is a site whose policy names no machine, and an enroller of its group.
type enrolment struct {
	*site
	enroller
	vouchers *vouchers
}

func newEnrolment(t *testing.T) *enrolment {
	t.Helper()
	e := &enrolment{site: newSite(t), enroller: newEnroller(t), vouchers: &vouchers{issued: map[hullmark.EKID][]byte{}}}
	e.service.Vouchers = e.vouchers
	e.enrol(t)
	return e
}

// enrol puts a policy in force that has these groups, or the enroller's if there are none, and no members.
func (e *enrolment) enrol(t *testing.T, groups ...measurements.Group) {
	t.Helper()
	if len(groups) == 0 {
		groups = []measurements.Group{e.group("cloud")}
	}
	e.accept(t, func(p *measurements.Policy) { p.Members, p.Groups, p.Denied = nil, groups, nil }, "image")
}

// legal is a voucher for the site's machine.
func (e *enrolment) legal() measurements.Voucher {
	return measurements.Voucher{
		ClusterRoot: e.cluster.ID(), Group: "cloud", EKID: e.node.ID, Name: "cloud-1", ProviderID: "test:///1",
		NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second),
	}
}

// issue puts a voucher where the join service looks for the site's machine's.
func (e *enrolment) issue(t *testing.T, by enroller, changes ...func(*measurements.Voucher)) {
	t.Helper()
	v := e.legal()
	for _, change := range changes {
		change(&v)
	}
	signed, err := measurements.SignVoucher(by.private, v)
	if err != nil {
		t.Fatal(err)
	}
	e.vouchers.issued[e.node.ID] = signed
}

// expired is long over.
func expired(v *measurements.Voucher) { v.NotAfter = time.Unix(1, 0).UTC() }

// strange fails the test unless the machine is denied, and leaves nothing behind.
func (e *enrolment) strange(t *testing.T, code string, says ...string) {
	t.Helper()
	before := e.node.Ticket()
	if err := e.dial(t); err != nil {
		t.Fatalf("the exchange broke: %v", err)
	}
	if told := e.node.Denied(); told == nil || told.Code != code || told.Next == "" || e.node.Ticket() != before || e.outcome() != code {
		t.Fatalf("the node was told %+v, outcome %s, want %s", told, e.outcome(), code)
	}
	wantAll(t, "the log says", e.journal.reason(t), says)
	if m := e.machine(t); m.Name != "" {
		t.Errorf("a machine that was refused has a record: %+v", m)
	}
}

// A machine that an enroller vouches for joins under the voucher's name and provider ID, and comes back when that has expired or is gone.
func TestVoucherAdmitsItsMachine(t *testing.T) {
	e := newEnrolment(t)
	e.strange(t, joinservice.CodeVoucherMissing, "there is no voucher for it", e.node.ID.String())
	if !e.node.Denied().Retry {
		t.Error("a machine whose voucher is late does not try again")
	}
	e.issue(t, e.enroller)
	m := e.join(t)
	if m.Name != "cloud-1" || m.Role != hullmark.Worker || m.ProviderID != "test:///1" || len(m.Voucher) == 0 || m.EKCertificate != nil {
		t.Errorf("the machine is %+v", m)
	}
	if documents := string(e.node.Proceed().GetKubeadmDocuments()); !strings.Contains(documents, "name: provider-id\n    value: test:///1\n") {
		t.Errorf("its kubelet is not told the provider ID:\n%s", documents)
	}
	e.reboot()
	e.issue(t, e.enroller, expired)
	asked := e.vouchers.asked
	if m := e.join(t); m.Name != "cloud-1" || m.Record.Issued != 2 || m.ProviderID != "test:///1" || len(m.Voucher) == 0 {
		t.Errorf("the machine came back as %+v", m)
	}
	delete(e.vouchers.issued, e.node.ID)
	e.reboot()
	if m := e.join(t); m.Record.Issued != 3 || e.vouchers.asked != asked {
		t.Errorf("the machine came back as %+v; the API was asked for vouchers %d times", m, e.vouchers.asked-asked)
	}
	if err := e.policy.Admits(e.machine(t)); err != nil {
		t.Errorf("its kubelet gets no certificate: %v", err)
	}
}

// Each voucher is refused by its own reason, and then a legal one is taken from the same machine.
func TestVoucherIsRefused(t *testing.T) {
	e := newEnrolment(t)
	other := newEnroller(t)
	e.enrol(t, e.group("cloud"), other.group("other"))
	for name, c := range map[string]struct {
		issue func(*testing.T)
		code  string
		says  string
	}{
		"another machine's":        {func(t *testing.T) { e.issue(t, e.enroller, func(v *measurements.Voucher) { v.EKID[0] ^= 1 }) }, joinservice.CodeVoucherRefused, "it is for another machine"},
		"another cluster's":        {func(t *testing.T) { e.issue(t, e.enroller, func(v *measurements.Voucher) { v.ClusterRoot[0] ^= 1 }) }, joinservice.CodeVoucherRefused, "it is for another cluster"},
		"another enroller's group": {func(t *testing.T) { e.issue(t, other) }, joinservice.CodeVoucherRefused, "its enroller does not enrol for the group cloud"},
		"a group that is not there": {func(t *testing.T) {
			e.issue(t, e.enroller, func(v *measurements.Voucher) { v.Group, v.Name = "nowhere", "nowhere-1" })
		}, joinservice.CodeVoucherRefused, "its enroller does not enrol for the group nowhere"},
		"of nobody's key": {func(t *testing.T) { e.issue(t, newEnroller(t)) }, joinservice.CodeVoucherRefused, "by a key that no group of the policy names"},
		"expired":         {func(t *testing.T) { e.issue(t, e.enroller, expired) }, joinservice.CodeVoucherRefused, "it has expired"},
		"no voucher":      {func(*testing.T) { e.vouchers.issued[e.node.ID] = []byte("x") }, joinservice.CodeVoucherRefused, "it cannot be read: open voucher: invalid character"},
		"an empty object": {func(*testing.T) { e.vouchers.issued[e.node.ID] = []byte{} }, joinservice.CodeVoucherRefused, "it cannot be read: open voucher: it is empty"},
		"a megabyte":      {func(*testing.T) { e.vouchers.issued[e.node.ID] = []byte(strings.Repeat(" ", 1<<20)) }, joinservice.CodeVoucherRefused, "1048576 bytes, want at most 4096"},
		"changed": {func(t *testing.T) {
			e.issue(t, e.enroller)
			s := e.vouchers.issued[e.node.ID]
			at := strings.Index(string(s), `"signature": "`) + len(`"signature": "`)
			if s[at]++; s[at] > 'Z' {
				s[at] = 'A'
			}
		}, joinservice.CodeVoucherRefused, "voucher was changed"},
		"a name in the policy": {func(t *testing.T) {
			e.issue(t, e.enroller)
			e.accept(t, func(p *measurements.Policy) {
				p.Members = []measurements.Member{{EKID: hullmark.EKID{9}, Role: hullmark.Worker, Name: "cloud-1"}}
			}, "image")
		}, "name-taken", "another machine holds the name cloud-1"},
		"a provider ID in the policy": {func(t *testing.T) {
			e.issue(t, e.enroller)
			e.accept(t, func(p *measurements.Policy) {
				p.Members = []measurements.Member{{EKID: hullmark.EKID{9}, Role: hullmark.Worker, Name: "own-1", ProviderID: "test:///1"}}
			}, "image")
		}, joinservice.CodeVoucherRefused, "its provider ID is that of own-1"},
		"of a key that was taken out": {func(t *testing.T) {
			e.issue(t, e.enroller)
			e.enrol(t, other.group("cloud"))
		}, joinservice.CodeVoucherRefused, "by a key that no group of the policy names"},
	} {
		t.Run(name, func(t *testing.T) {
			c.issue(t)
			e.strange(t, c.code, c.says)
			e.enrol(t, e.group("cloud"), other.group("other"))
		})
	}
	e.issue(t, e.enroller)
	e.accept(t, func(p *measurements.Policy) { p.Denied = []hullmark.EKID{e.node.ID} }, "image")
	e.refused(t, "not-a-member", e.node.ID.String())
	e.vouchers.err = &hullmark.Condition{Code: joinservice.CodeUnreachable, Title: "the API is down", Next: "wait", Retry: true}
	e.enrol(t, e.group("cloud"), other.group("other"))
	e.strange(t, joinservice.CodeUnreachable, "the API is down")
	e.vouchers.err = nil
	if m := e.join(t); m.Name != "cloud-1" {
		t.Errorf("with a legal voucher the machine is %+v", m)
	}
}

// A name that a record holds is its machine's.
func TestVouchersNameIsTaken(t *testing.T) {
	e := newEnrolment(t)
	e.issue(t, e.enroller)
	e.join(t)
	first := e.node
	e.node = nodetest.New(t, e.cluster.ID())
	e.node.Boot(t, "image")
	e.issue(t, e.enroller)
	e.strange(t, "name-taken", "another machine holds the name cloud-1", first.ID.String())
	e.issue(t, e.enroller, func(v *measurements.Voucher) { v.Name = "cloud-2" })
	if m := e.join(t); m.Name != "cloud-2" {
		t.Errorf("with a name of its own the machine is %+v", m)
	}
}

// A group has as many machines as it may, whatever its enroller signs.
func TestVouchersGroupIsFull(t *testing.T) {
	e := newEnrolment(t)
	one := e.group("cloud")
	one.Max = 1
	e.enrol(t, one)
	e.issue(t, e.enroller)
	e.join(t)
	first := e.node
	e.node = nodetest.New(t, e.cluster.ID())
	e.node.Boot(t, "image")
	e.issue(t, e.enroller, func(v *measurements.Voucher) { v.Name = "cloud-2" })
	e.strange(t, "group-full", "the group cloud has as many machines as it may")
	second := e.node
	e.node = first
	e.reboot()
	e.join(t)
	// A machine that has a rule of its own since leaves its place to another.
	e.accept(t, func(p *measurements.Policy) {
		p.Groups, p.Members = []measurements.Group{one}, []measurements.Member{{EKID: first.ID, Role: hullmark.Worker, Name: "cloud-1"}}
	}, "image")
	e.reboot()
	if m := e.join(t); m.Name != "cloud-1" || len(m.Voucher) != 0 {
		t.Errorf("with a rule of its own the machine is %+v", m)
	}
	e.node = second
	if m := e.join(t); m.Name != "cloud-2" {
		t.Errorf("in the place that is free the machine is %+v", m)
	}
}

// A machine that shows another's public EK cannot answer for it: a voucher names a key, not whoever says that it has it.
func TestVoucherIsForTheKeysHolder(t *testing.T) {
	e := newEnrolment(t)
	var public []byte
	e.node.EditHello = func(h *wire.Hello) { public = bytes.Clone(h.GetEkPublic()) }
	e.strange(t, joinservice.CodeVoucherMissing, e.node.ID.String())
	e.issue(t, e.enroller)
	victim, asked := e.node, e.vouchers.asked
	e.node = nodetest.New(t, e.cluster.ID())
	e.node.Boot(t, "image")
	e.node.EditHello = func(h *wire.Hello) { h.EkPublic = public }
	if err := e.dial(t); err == nil && e.outcome() == joinservice.OutcomeReady {
		t.Fatal("a machine joined by another's key")
	}
	if e.vouchers.asked != asked {
		t.Error("its voucher was looked for before it showed that it has the key")
	}
	e.node = victim
	if m := e.join(t); m.Name != "cloud-1" {
		t.Errorf("the key's holder is %+v", m)
	}
}

// The voucher of a record counts, not what is issued later: another name or provider ID changes nothing until the machine is
// removed. Once the policy does not take the record's any more, the one that is issued counts.
func TestVoucherIsChanged(t *testing.T) {
	e := newEnrolment(t)
	e.issue(t, e.enroller)
	e.join(t)
	e.issue(t, e.enroller, func(v *measurements.Voucher) { v.Name, v.ProviderID = "cloud-2", "test:///2" })
	e.reboot()
	if m := e.join(t); m.Name != "cloud-1" || m.ProviderID != "test:///1" {
		t.Errorf("with another voucher the machine is %+v", m)
	}
	next := newEnroller(t)
	e.enrol(t, next.group("cloud"))
	e.reboot()
	e.denied(t, joinservice.CodeVoucherRefused, true, "by a key that no group of the policy names")
	e.issue(t, next, func(v *measurements.Voucher) { v.Name = "cloud-2" })
	e.denied(t, "member-changed", false, "set up under another name", "cloud-2", "cloud-1")
	e.issue(t, next, func(v *measurements.Voucher) { v.ProviderID = "test:///2" })
	m := e.join(t)
	if m.Name != "cloud-1" || m.ProviderID != "test:///1" {
		t.Errorf("with the next enroller's voucher the machine is %+v", m)
	}
	if v, by, err := measurements.ReadVoucher(m.Voucher); err != nil || !next.public.Equal(by) || v.ProviderID != "test:///2" {
		t.Errorf("its record keeps %+v by %x, %v", v, by, err)
	}
}

// A machine that was admitted by a voucher is held to the policy as it is now, as one of a CA's group is.
func TestVouchedMachineIsAdmittedAsRecorded(t *testing.T) {
	e := newEnrolment(t)
	e.issue(t, e.enroller)
	m := e.join(t)
	for name, c := range map[string]struct {
		change func(*measurements.Policy)
		legal  bool
	}{
		"no group":      {func(p *measurements.Policy) { p.Groups = nil }, false},
		"denied":        {func(p *measurements.Policy) { p.Denied = []hullmark.EKID{m.EKID} }, false},
		"another key":   {func(p *measurements.Policy) { p.Groups = []measurements.Group{newEnroller(t).group("cloud")} }, false},
		"another group": {func(p *measurements.Policy) { p.Groups = []measurements.Group{e.group("other")} }, false},
		"a CA's group":  {func(p *measurements.Policy) { p.Groups = []measurements.Group{newProvider(t, true).group("cloud")} }, false},
		"one key more": {func(p *measurements.Policy) {
			p.Groups[0].Enrollers = append(p.Groups[0].Enrollers, newEnroller(t).public)
		}, true},
		"a member there": {func(p *measurements.Policy) {
			p.Members = []measurements.Member{{EKID: hullmark.EKID{9}, Role: hullmark.Worker, Name: "cloud-1"}}
		}, false},
		"its own rule": {func(p *measurements.Policy) {
			p.Groups, p.Members = nil, []measurements.Member{{EKID: m.EKID, Role: hullmark.Worker, Name: "cloud-1"}}
		}, true},
	} {
		e.enrol(t)
		e.accept(t, c.change, "image")
		if err := e.policy.Admits(m); c.legal != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e.enrol(t)
	for name, change := range map[string]func(*joinservice.Machine){
		"no voucher":              func(m *joinservice.Machine) { m.Voucher = nil },
		"one that cannot be read": func(m *joinservice.Machine) { m.Voucher = m.Voucher[1:] },
		"another's":               func(m *joinservice.Machine) { m.EKID[0] ^= 1 },
		"another name":            func(m *joinservice.Machine) { m.Name = "cloud-2" },
		"a control plane":         func(m *joinservice.Machine) { m.Role = hullmark.ControlPlane },
	} {
		other := m
		change(&other)
		if err := e.policy.Admits(other); err == nil {
			t.Errorf("%s: admitted", name)
		}
	}
	if err := e.policy.Admits(m); err != nil {
		t.Errorf("as it was: %v", err)
	}
}

// A machine of a CA's group is asked for no voucher, and one that was admitted by a voucher keeps its name when a CA's group would give
// it another.
func TestVoucherAndCertificate(t *testing.T) {
	e, p := newEnrolment(t), newProvider(t, true)
	e.node.EditHello = p.vouch(t, mine)
	e.enrol(t, e.group("cloud"))
	e.issue(t, e.enroller)
	e.join(t)
	e.reboot()
	e.enrol(t, p.group("rented"), e.group("cloud"))
	asked := e.vouchers.asked
	if m := e.join(t); m.Name != "cloud-1" || len(m.Voucher) == 0 {
		t.Errorf("the machine came back as %+v", m)
	}
	e.node = nodetest.New(t, e.cluster.ID())
	e.node.Boot(t, "image")
	e.node.EditHello = p.vouch(t, mine)
	e.issue(t, e.enroller, func(v *measurements.Voucher) { v.Name = "cloud-2" })
	if m := e.join(t); m.Name != p.group("rented").Member(e.node.ID).Name || len(m.Voucher) != 0 || m.ProviderID != "" {
		t.Errorf("a machine that a CA vouches for is %+v", m)
	}
	if e.vouchers.asked != asked {
		t.Error("vouchers of machines that a CA vouches for were looked for")
	}
}

// A member's own provider ID goes the same way.
func TestMembersProviderID(t *testing.T) {
	s := newSite(t)
	s.accept(t, func(p *measurements.Policy) { p.Members[0].ProviderID = "test:///9" }, "image")
	if m := s.join(t); m.ProviderID != "test:///9" || !strings.Contains(string(s.node.Proceed().GetKubeadmDocuments()), "test:///9") {
		t.Errorf("the machine is %+v", m)
	}
	s.reboot()
	s.accept(t, func(p *measurements.Policy) { p.Members[0].ProviderID = "test:///10" }, "image")
	if m := s.join(t); m.ProviderID != "test:///9" {
		t.Errorf("a node that was registered has another provider ID since: %+v", m)
	}
}

// Where the group names CAs, a voucher is for a key that one of them signed, at each ticket and certificate.
func TestVouchedKeyIsReal(t *testing.T) {
	e := newEnrolment(t)
	makers, others := newProvider(t, true), newProvider(t, true)
	real := func(by ...provider) measurements.Group {
		g := e.group("cloud")
		for _, p := range by {
			g.Authorities = append(g.Authorities, p.certificate.Raw)
		}
		return g
	}
	e.enrol(t, real(makers))
	e.issue(t, e.enroller)
	const says = "the certificate of its endorsement key is of none of the group's authorities"
	usage := func(c *x509.Certificate) {
		c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	for name, hello := range map[string]func(*wire.Hello){
		"no certificate": func(h *wire.Hello) { h.EkCertificate = nil }, "another CA's": others.vouch(t, mine), "of another usage": makers.vouch(t, mine, usage),
	} {
		t.Log(name)
		e.node.EditHello = hello
		e.strange(t, joinservice.CodeVoucherRefused, says)
	}
	e.node.EditHello = makers.vouch(t, mine)
	if m := e.join(t); m.Name != "cloud-1" || len(m.Voucher) == 0 || len(m.EKCertificate) == 0 {
		t.Errorf("the machine is %+v", m)
	}
	if err := e.policy.Admits(e.machine(t)); err != nil {
		t.Errorf("its kubelet gets no certificate: %v", err)
	}
	e.reboot()
	e.enrol(t, real(others))
	if err := e.policy.Admits(e.machine(t)); err == nil {
		t.Error("its kubelet gets a certificate, though its maker is not trusted any more")
	}
	before := e.node.Ticket()
	if err := e.dial(t); err != nil {
		t.Fatal(err)
	}
	if told := e.node.Denied(); told == nil || told.Code != joinservice.CodeVoucherRefused || e.node.Ticket() != before {
		t.Errorf("it was told %+v", told)
	}
	e.enrol(t, real(others, makers))
	if m := e.join(t); m.Name != "cloud-1" || m.Record.Issued != 2 {
		t.Errorf("the machine came back as %+v", m)
	}
}
