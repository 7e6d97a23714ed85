package joinservice_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// provider is whoever rents machines out and vouches for their TPMs.
type provider struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newProvider(t *testing.T, isCA bool) provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "EK CA"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1, 0), // long over
		BasicConstraintsValid: true, IsCA: isCA, KeyUsage: x509.KeyUsageCertSign,
	}
	p := provider{key: key}
	p.certificate = p.sign(t, template, key.Public())
	return p
}

func (p provider) sign(t *testing.T, template *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	t.Helper()
	parent := p.certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, p.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// named is the provider with a newer certificate, of this name.
func (p provider) named(t *testing.T, name string) provider {
	t.Helper()
	template := *p.certificate
	template.SerialNumber, template.RawSubject, template.Subject = big.NewInt(7), nil, pkix.Name{CommonName: name}
	return provider{certificate: p.sign(t, &template, p.key.Public()), key: p.key}
}

// vouch makes the EK certificate of whoever says hello, with this subject and these changes.
func (p provider) vouch(t *testing.T, subject pkix.Name, changes ...func(*x509.Certificate)) func(*wire.Hello) {
	return func(hello *wire.Hello) {
		ek, _, ok := attest.ParseEK(hello.GetEkPublic())
		modulus, err := ek.Unique.RSA()
		if !ok || err != nil {
			t.Error("the machine shows no EK", err)
			return
		}
		key := &rsa.PublicKey{N: new(big.Int).SetBytes(modulus.Buffer), E: 65537}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: subject, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1, 0),
			KeyUsage: x509.KeyUsageKeyEncipherment, UnknownExtKeyUsage: []asn1.ObjectIdentifier{{2, 23, 133, 8, 1}},
		}
		for _, change := range changes {
			change(template)
		}
		hello.EkCertificate = p.sign(t, template, key).Raw
	}
}

func (p provider) group(name string) measurements.Group {
	return measurements.Group{Name: name, Authorities: [][]byte{p.certificate.Raw}, Subject: []measurements.Attribute{{Type: "OU", Value: "my-project"}, {Type: "L", Value: "here"}}, Max: 2}
}

var mine = pkix.Name{Organization: []string{"Cloud"}, OrganizationalUnit: []string{"my-project"}, Locality: []string{"here"}, CommonName: "1234"}

// groupSite is a site whose machine no rule names, and that has a group.
func groupSite(t *testing.T) (*site, provider) {
	t.Helper()
	s, p := newSite(t), newProvider(t, true)
	s.accept(t, func(policy *measurements.Policy) {
		policy.Members, policy.Groups = nil, []measurements.Group{p.group("cloud")}
	}, "image")
	return s, p
}

// A machine that the provider vouches for joins as a worker under a name of its own, and comes back.
func TestGroupAdmitsItsMachines(t *testing.T) {
	s, p := groupSite(t)
	s.node.EditHello = p.vouch(t, mine)
	want := p.group("cloud").Member(s.node.ID).Name
	if m := s.join(t); m.Name != want || m.Role != hullmark.Worker || m.State != joinservice.MachineReady {
		t.Errorf("the machine is %+v, want the worker %s", m, want)
	}
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	if m := s.join(t); m.Name != want || m.Record.Issued != 2 {
		t.Errorf("the machine came back as %+v", m)
	}
}

// below is a CA that the provider signed, as its maker's TPMs have it in their memory.
func (p provider) below(t *testing.T) provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := *p.certificate
	template.SerialNumber, template.RawSubject, template.Subject = big.NewInt(8), nil, pkix.Name{CommonName: "chip's own CA"}
	return provider{certificate: p.sign(t, &template, key.Public()), key: key}
}

// A group's root admits machines that show the chain below it, and its record keeps that; it signs no endorsement key itself, and no
// other's chain leads to it.
func TestGroupBelowARoot(t *testing.T) {
	s, root := groupSite(t)
	ca, other := root.below(t), newProvider(t, true).below(t)
	s.accept(t, func(policy *measurements.Policy) {
		group := root.group("cloud")
		group.Authorities, group.Roots = nil, group.Authorities
		policy.Members, policy.Groups = nil, []measurements.Group{group}
	}, "image")
	with := func(by provider, chain ...provider) func(*wire.Hello) {
		return func(hello *wire.Hello) {
			by.vouch(t, mine)(hello)
			for _, ca := range chain {
				hello.EkCertificate = append(hello.EkCertificate, ca.certificate.Raw...)
			}
		}
	}
	for name, edit := range map[string]func(*wire.Hello){"no chain": with(ca), "another's": with(other, other), "another's and the root": with(other, other, root, ca)} {
		t.Run(name, func(t *testing.T) {
			s.node.EditHello = edit
			s.refused(t, "not-a-member", "no membership rule admits this machine", "with a certificate of")
		})
	}
	s.node.EditHello = with(ca, ca)
	m := s.join(t)
	if err := s.policy.Admits(m); err != nil || len(m.EKCertificate) <= len(ca.certificate.Raw) {
		t.Errorf("the machine is %+v: %v", m, err)
	}
	s.accept(t, func(policy *measurements.Policy) {
		group := root.group("cloud")
		group.Authorities, group.Roots = nil, [][]byte{newProvider(t, true).certificate.Raw}
		policy.Members, policy.Groups = nil, []measurements.Group{group}
	}, "image")
	if err := s.policy.Admits(m); err == nil {
		t.Error("another root admits it")
	}
}

func TestGroupRefusesOthers(t *testing.T) {
	s, p := groupSite(t)
	other := mine
	other.OrganizationalUnit = []string{"another-project"}
	two := mine
	two.OrganizationalUnit = []string{"my-project", "another-project"}
	elsewhere := mine
	elsewhere.Locality = nil
	for name, c := range map[string]struct {
		hello func(*wire.Hello)
		says  string
	}{
		"no certificate":          {nil, "the node shows no EK certificate"},
		"another project":         {p.vouch(t, other), "OU=another-project"},
		"two projects":            {p.vouch(t, two), "OU=my-project+OU=another-project"},
		"an attribute is missing": {p.vouch(t, elsewhere), `with a certificate of "CN=1234,OU=my-project,O=Cloud" by "CN=EK CA"`},
		"another provider":        {newProvider(t, true).vouch(t, mine), `by "CN=EK CA"`},
		"its key by another name": {p.named(t, "another EK CA").vouch(t, mine), `by "CN=another EK CA"`},
		"a key that signs":        {p.vouch(t, mine, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }), `by "CN=EK CA"`},
		"a server's key": {p.vouch(t, mine, func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), `by "CN=EK CA"`},
		"a CA":                    {p.vouch(t, mine, func(c *x509.Certificate) { c.BasicConstraintsValid, c.IsCA = true, true }), `by "CN=EK CA"`},
		"no certificate of X.509": {func(h *wire.Hello) { h.EkCertificate = []byte("x") }, "its certificate: asn1:"},
		"another machine's":       {func(h *wire.Hello) { h.EkCertificate = p.certificate.Raw }, "its certificate is for another key"},
	} {
		t.Run(name, func(t *testing.T) {
			s.node.EditHello = c.hello
			s.refused(t, "not-a-member", "no membership rule admits this machine", s.node.ID.String(), c.says)
		})
	}
	if m := s.machine(t); m.Name != "" {
		t.Errorf("a machine that was refused has a record: %+v", m)
	}
	s.node.EditHello = p.vouch(t, mine)
	s.accept(t, func(policy *measurements.Policy) { policy.Denied = []hullmark.EKID{s.node.ID} }, "image")
	s.refused(t, "not-a-member", s.node.ID.String())
	s.accept(t, func(policy *measurements.Policy) { policy.Members = []measurements.Member{worker(s.node.ID)} }, "image")
	if m := s.join(t); m.Name != "worker-1" {
		t.Errorf("a machine with a rule of its own is %+v", m)
	}
}

// A group whose authority cannot be one is not signed. Where a service cannot read it all the same, it admits nobody, and all
// other rules hold.
func TestGroupsAuthorityIsChecked(t *testing.T) {
	s, p := groupSite(t)
	for name, authority := range map[string][]byte{"no certificate": []byte("x"), "no CA": newProvider(t, false).certificate.Raw} {
		broken := p.group("cloud")
		broken.Authorities = append(broken.Authorities, authority)
		if err := joinservice.CheckGroups(measurements.Policy{Groups: []measurements.Group{broken}}); err == nil || !strings.Contains(err.Error(), "group cloud: authorities") {
			t.Errorf("%s: %v", name, err)
		}
		s.node.EditHello = p.vouch(t, mine)
		next := s.next(t, func(policy *measurements.Policy) { policy.Members, policy.Groups = nil, []measurements.Group{broken} }, "image")
		for _, taken := range []bool{true, false} {
			if got, err := s.policy.Offer(next); got != taken || err == nil || !strings.Contains(err.Error(), "group cloud: authorities") {
				t.Errorf("%s: offered, taken %v: %v", name, got, err)
			}
		}
		if _, warning, err := joinservice.OpenPolicyStore(s.cluster.ID(), next, servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json"))); err != nil || warning == nil || !strings.Contains(warning.Error(), "group cloud: authorities") {
			t.Errorf("%s: opened with the warning %v, %v", name, warning, err)
		}
		s.refused(t, "not-a-member", s.node.ID.String())
	}
	next := s.next(t, func(policy *measurements.Policy) { policy.Members = []measurements.Member{worker(s.node.ID)} }, "image")
	if taken, err := s.policy.Offer(next); !taken || err == nil {
		t.Errorf("taken %v, %v", taken, err)
	}
	if m := s.join(t); m.Name != "worker-1" {
		t.Errorf("a machine with a rule of its own is %+v", m)
	}
}

// Groups whose authorities are one CA's, under certificates of another time, could both admit a machine.
func TestGroupsOfARenewedAuthorityAreTheSame(t *testing.T) {
	p := newProvider(t, true)
	for name, c := range map[string]struct {
		by provider
		ok bool
	}{"renewed": {p.named(t, "EK CA"), false}, "another key": {newProvider(t, true), true}, "another name": {p.named(t, "another EK CA"), true}} {
		policy := measurements.Policy{Groups: []measurements.Group{p.group("one"), c.by.group("two")}}
		if err := joinservice.CheckGroups(policy); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "one and two could both admit") {
			t.Errorf("%s: %v", name, err)
		}
		policy.Groups[1].Subject = []measurements.Attribute{{Type: "OU", Value: "another-project"}}
		if err := joinservice.CheckGroups(policy); err != nil {
			t.Errorf("%s, and told apart: %v", name, err)
		}
	}
}

// A machine of a group that booted something else, or waits, leaves no record, and a named one does.
func TestGroupRefusalIsNotRecorded(t *testing.T) {
	s, p := groupSite(t)
	s.node.EditHello = p.vouch(t, mine)
	s.service.Keys = failingKeeper{s.cluster.Keys}
	s.denied(t, keys.CodeUnreachable, true, "the key keeper does not answer")
	s.service.Keys = s.cluster.Keys
	s.node.TPM.Extend(t, 4, []byte("more"))
	s.denied(t, joinservice.CodeMismatch, false, "did not boot what the measurement document describes: document ", "PCR 4: want ")
	if m := s.machine(t); m.Name != "" {
		t.Errorf("recorded %+v", m)
	}
	s.accept(t, func(policy *measurements.Policy) { policy.Members = []measurements.Member{worker(s.node.ID)} }, "image")
	if err := s.dial(t); err != nil || s.machine(t).State != joinservice.MachineFailed {
		t.Errorf("%v, recorded %+v", err, s.machine(t))
	}
}

// A group has as many machines as it may, and each of them comes again.
func TestGroupIsFull(t *testing.T) {
	s, p := groupSite(t)
	s.accept(t, func(policy *measurements.Policy) {
		one := p.group("cloud")
		one.Max = 1
		policy.Groups = []measurements.Group{one}
	}, "image")
	s.node.EditHello = p.vouch(t, mine)
	s.join(t)
	first := s.node
	s.node = nodetest.New(t, s.cluster.ID())
	s.node.Boot(t, "image")
	s.node.EditHello = p.vouch(t, mine)
	s.denied(t, "group-full", false, "the group cloud has as many machines as it may", "at most 1")
	if m := s.machine(t); m.Name != "" {
		t.Errorf("recorded %+v", m)
	}
	s.node = first
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	s.join(t)
}

// enrolments counts how often the groups' lists are asked.
type enrolments struct {
	joinservice.Records
	asked int
}

func (e *enrolments) Enrol(ctx context.Context, group string, node hullmark.EKID, most int) error {
	e.asked++
	return e.Records.Enrol(ctx, group, node, most)
}

// A machine is counted once: with its first ticket as the group's, and not when it comes back.
func TestGroupCountsAMachineOnce(t *testing.T) {
	s, p := groupSite(t)
	e := &enrolments{Records: s.records}
	s.service.Records = e
	s.node.EditHello = p.vouch(t, mine)
	if _, err := s.records.Store(t.Context(), joinservice.Machine{EKID: s.node.ID, Name: "worker-1", Role: hullmark.Worker}, ""); err != nil {
		t.Fatal(err)
	}
	s.join(t)
	if e.asked != 1 {
		t.Errorf("one that had a rule of its own was counted %d times", e.asked)
	}
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	s.join(t)
	if e.asked != 1 {
		t.Errorf("one that came back was counted %d times", e.asked)
	}
}

// A machine that was joined as a group's does not come back once the group is gone, or gives another name.
func TestGroupIsGone(t *testing.T) {
	s, p := groupSite(t)
	s.node.EditHello = p.vouch(t, mine)
	s.join(t)
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	s.accept(t, func(policy *measurements.Policy) { policy.Groups = nil }, "image")
	s.refused(t, "not-a-member", s.node.ID.String())
	s.accept(t, func(policy *measurements.Policy) { policy.Groups = []measurements.Group{p.group("other")} }, "image")
	s.denied(t, "member-changed", false, "set up under another name or role", p.group("other").Member(s.node.ID).Name, p.group("cloud").Member(s.node.ID).Name)
}
