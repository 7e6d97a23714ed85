package joinservice_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// neighbour is another machine of a site, and nine its address.
var neighbour, nine = hullmark.EKID{9}, netip.MustParseAddr("192.0.2.9")

func addresses(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// neighbour records one with the address nine.
func (s *site) neighbour(t *testing.T, role hullmark.Role) {
	t.Helper()
	m := joinservice.Machine{EKID: neighbour, Name: "neighbour", Role: role, State: joinservice.MachineReady, Addresses: []netip.Addr{nine}}
	if _, err := s.records.Store(t.Context(), m, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.records.ClaimAddress(t.Context(), nine, neighbour); err != nil {
		t.Fatal(err)
	}
}

// refusals are the codes of what a record says of each refused address.
func refusals(m joinservice.Machine) map[string]string {
	codes := map[string]string{}
	for _, r := range m.Refused {
		codes[r.Address.String()] = r.Condition.Code
	}
	return codes
}

// request asks for a certificate as the approver does, and returns why it is denied.
func (s *site) request(t *testing.T, texts ...string) string {
	t.Helper()
	granted, refused, err := s.service.ClaimAddresses(t.Context(), s.node.ID, addresses(texts...))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refused {
		return r.Condition.Code
	}
	for _, a := range addresses(texts...) {
		if !slices.Contains(granted, joinservice.CanonicalAddress(a)) {
			return "not granted"
		}
	}
	return ""
}

// A worker's host names what others are reached at. Its own address is all that it gets, it joins, and its kubelet is told to
// name that one.
func TestWorkerNamesOthersAddresses(t *testing.T) {
	s := newSite(t)
	s.service.Settings.Names = []string{"2001:db8::1", "api.example.net"}
	s.neighbour(t, hullmark.Worker)
	own := "192.0.2.7"
	for _, foreign := range []struct{ named, is, code string }{
		{"10.96.0.1", "10.96.0.1", "address-reserved"},
		{"::ffff:10.96.0.1", "10.96.0.1", "address-reserved"},
		{"10.111.255.254", "10.111.255.254", "address-reserved"},
		{"10.244.3.1", "10.244.3.1", "address-reserved"},
		{"192.0.2.1", "192.0.2.1", "address-reserved"},
		{"::ffff:c000:201", "192.0.2.1", "address-reserved"},
		{"2001:db8:0::1", "2001:db8::1", "address-reserved"},
		{"192.0.2.9", "192.0.2.9", "address-taken"},
	} {
		s.node.Addresses = []string{foreign.named, own, "127.0.0.1", "0.0.0.9", "fe80::1"}
		m := s.join(t)
		if got := refusals(m); !slices.Equal(m.Addresses, addresses(own)) || len(got) != 1 || got[foreign.is] != foreign.code {
			t.Errorf("%s: the record has %v, refused %v, want %s", foreign.named, m.Addresses, got, foreign.code)
		}
		if p := s.node.Proceed(); p.GetAddress() != own || len(p.GetRefused()) != 1 || p.GetRefused()[0].GetCode() != foreign.code {
			t.Errorf("%s: Proceed says %s, %v", foreign.named, p.GetAddress(), p.GetRefused())
		}
		if code := s.request(t, foreign.named); code != foreign.code {
			t.Errorf("%s: a request of its kubelet: %q, want %s", foreign.named, code, foreign.code)
		}
		if code := s.request(t, own); code != "" {
			t.Errorf("%s: the kubelet's request for its own address: %s", foreign.named, code)
		}
		s.reboot()
	}
	if claims := s.records.Addresses(); len(claims) != 2 || claims[nine] != neighbour || claims[netip.MustParseAddr(own)] != s.node.ID {
		t.Errorf("the claims are %v", claims)
	}
	s.node.Addresses = []string{own}
	if m := s.join(t); len(m.Refused) != 0 || s.node.Proceed().GetAddress() != "" {
		t.Errorf("of a node with its own address alone: refused %v, Proceed says %q", m.Refused, s.node.Proceed().GetAddress())
	}
}

// Addresses that mean no single machine are granted to nobody, also where Opened passes over them without a word.
func TestNobodysAddressesAreNotGranted(t *testing.T) {
	s := newSite(t)
	s.join(t)
	for _, a := range []string{
		"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "0.1.2.3", "169.254.0.1", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255", "240.1.2.3",
		"::10.96.0.1", "64:ff9b::10.96.0.1", "2002:a60:1::1",
	} {
		if got := s.request(t, a); got == "" {
			t.Errorf("%s was granted", a)
		}
	}
	if got := s.request(t, "192.0.2.7"); got != "" {
		t.Errorf("its own: %s", got)
	}
}

// The node joins although no address of its host's is its own; its kubelet's next request is decided anew.
func TestNodeWithoutAnAddressOfItsOwn(t *testing.T) {
	s := newSite(t)
	s.neighbour(t, hullmark.Worker)
	s.node.Addresses = []string{nine.String()}
	m := s.join(t)
	if m.State != joinservice.MachineReady || len(m.Addresses) != 0 || refusals(m)[nine.String()] != "address-taken" || s.node.Proceed().GetAddress() != "" {
		t.Errorf("the record is %+v", m)
	}
	if code := s.request(t, nine.String()); code != "address-taken" {
		t.Errorf("its kubelet's request: %q", code)
	}
	if code := s.request(t, "192.0.2.8"); code != "" {
		t.Errorf("its kubelet's request for a free address: %s", code)
	}
	if m := s.machine(t); !slices.Equal(m.Addresses, addresses("192.0.2.8")) || len(m.Refused) != 0 {
		t.Errorf("after that the record has %v, refused %v", m.Addresses, m.Refused)
	}
}

// A dead holder's address is another's to take; when it comes back, it joins without.
func TestClaimOfADeadHolderYields(t *testing.T) {
	s := newSite(t)
	s.neighbour(t, hullmark.Worker)
	s.node.Addresses = []string{"192.0.2.7", nine.String()}
	if m := s.join(t); refusals(m)[nine.String()] != "address-taken" {
		t.Fatalf("refused %v", m.Refused)
	}
	s.records.SetGone(neighbour, true)
	if code := s.request(t, nine.String()); code != "" {
		t.Errorf("of a dead holder: %s", code)
	}
	if m := s.machine(t); !slices.Contains(m.Addresses, nine) || len(m.Refused) != 0 || s.records.Addresses()[nine] != s.node.ID {
		t.Errorf("the record has %v, refused %v", m.Addresses, m.Refused)
	}
	_, refused, err := s.service.ClaimAddresses(t.Context(), neighbour, []netip.Addr{nine})
	if err != nil || len(refused) != 1 || refused[0].Condition.Code != "address-taken" || refused[0].Condition.Expected != s.node.ID.String() {
		t.Errorf("the one that came back: %v, %v", refused, err)
	}
}

// A worker's host waits until a control plane is not Ready, or names its address before it has joined: the control plane has
// its own, and another control plane may follow it.
func TestControlPlanesAddressIsNoWorkers(t *testing.T) {
	s := newSite(t)
	s.neighbour(t, hullmark.ControlPlane)
	s.records.SetGone(neighbour, true)
	s.node.Addresses = []string{"192.0.2.7", nine.String()}
	if m := s.join(t); refusals(m)[nine.String()] != "address-taken" || s.records.Addresses()[nine] != neighbour {
		t.Errorf("of a control plane that is not Ready: refused %v", m.Refused)
	}
	seven := addresses("192.0.2.7")
	granted, refused, err := s.service.ClaimAddresses(t.Context(), neighbour, seven)
	if err != nil || len(refused) != 0 || !slices.Equal(granted, seven) {
		t.Errorf("a control plane at an address that a worker took before it: %v, refused %v, %v", granted, refused, err)
	}
	if code := s.request(t, "192.0.2.7"); code != "address-taken" {
		t.Errorf("the worker after that: %q", code)
	}
	s.store(t, func(m *joinservice.Machine) { m.Role = hullmark.ControlPlane })
	if code := s.request(t, nine.String()); code != "" {
		t.Errorf("another control plane, at the address of one that is gone: %s", code)
	}
	s.records.SetGone(neighbour, false)
	if code := s.request(t, "192.0.2.7"); code != "address-taken" {
		t.Errorf("at the address of one that is Ready: %q", code)
	}
}

// An address that DHCP gave another is changed without a reboot, and the old one is free.
func TestWorkerMoves(t *testing.T) {
	s := newSite(t)
	s.join(t)
	for _, a := range []string{"192.0.2.8", "2001:db8::8", "192.0.2.8"} {
		if code := s.request(t, a); code != "" {
			t.Fatalf("%s: %s", a, code)
		}
		if m := s.machine(t); !slices.Equal(m.Addresses, addresses(a)) || len(s.records.Addresses()) != 1 || s.records.Addresses()[netip.MustParseAddr(a)] != s.node.ID {
			t.Errorf("the record has %v, the claims are %v", m.Addresses, s.records.Addresses())
		}
	}
	if err := s.records.ClaimAddress(t.Context(), netip.MustParseAddr("192.0.2.7"), neighbour); err != nil {
		t.Errorf("its first address, for another: %v", err)
	}
	if writes := s.records.Writes(); s.request(t, "192.0.2.8") != "" || s.records.Writes() != writes {
		t.Error("a renewal with the same address wrote the record")
	}
	s.node.Addresses = []string{"192.0.2.77"}
	s.reboot()
	if m := s.join(t); !slices.Equal(m.Addresses, addresses("192.0.2.77")) || len(s.records.Addresses()) != 2 {
		t.Errorf("after its next ticket the record has %v, the claims are %v", m.Addresses, s.records.Addresses())
	}
}

// A machine holds a bounded number of addresses, whatever its kubelet asks for, and however often.
func TestClaimsAreBounded(t *testing.T) {
	for _, role := range []hullmark.Role{hullmark.Worker, hullmark.ControlPlane} {
		s := newSite(t)
		s.join(t)
		s.store(t, func(m *joinservice.Machine) { m.Role = role })
		for i := range 5 {
			var all []netip.Addr
			for j := range joinservice.MaxAddresses {
				all = append(all, netip.AddrFrom4([4]byte{192, 0, byte(3 + i), byte(j)}))
			}
			if _, _, err := s.service.ClaimAddresses(t.Context(), s.node.ID, all); err != nil {
				t.Fatal(err)
			}
		}
		m := s.machine(t)
		if len(s.records.Addresses()) > joinservice.MaxAddresses || len(m.Addresses) != len(s.records.Addresses()) || len(m.Refused) > joinservice.MaxAddresses {
			t.Errorf("%s: %d claims, %d in the record, %d refused", role, len(s.records.Addresses()), len(m.Addresses), len(m.Refused))
		}
	}
}

// A control plane's host names another's address: nobody is removed from etcd for it. Its own, which is the endpoint's, it may have.
func TestControlPlaneNamesAnothersAddress(t *testing.T) {
	s := newSite(t)
	r := s.controlPlanes(t)
	s.neighbour(t, hullmark.ControlPlane)
	s.node.Addresses = []string{nine.String()}
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	if told := s.node.Denied(); told == nil || told.Code != "address-taken" || !told.Retry || s.node.Proceed() != nil || len(r.take()) != 0 {
		t.Errorf("told %+v", told)
	}
	for _, reserved := range []string{"10.96.0.1", "10.244.0.1"} {
		s.node.Addresses, s.node.Unjoined = []string{reserved}, true
		s.reboot()
		if err := s.dial(t); err != nil {
			t.Fatal(err)
		}
		if told := s.node.Denied(); told == nil || told.Code != "address-reserved" || told.Retry || len(r.take()) != 0 {
			t.Errorf("%s: told %+v", reserved, told)
		}
	}
	s.node.Addresses = []string{nine.String(), "192.0.2.1"}
	s.reboot()
	m := s.join(t)
	if did := r.take(); !slices.Contains(did, "member control-plane-2 192.0.2.1") || refusals(m)[nine.String()] != "address-taken" {
		t.Errorf("at the endpoint's address: the service did %q, refused %v", did, m.Refused)
	}
	if documents := string(s.node.Proceed().GetKubeadmDocuments()); !strings.Contains(documents, "advertiseAddress: 192.0.2.1") {
		t.Errorf("documents %s", documents)
	}
	if code := s.request(t, "192.0.2.1"); code != "" {
		t.Errorf("its kubelet's request: %s", code)
	}
}

// What the policy moves the endpoint to is reserved, and so is where it was.
func TestEndpointThatMoved(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.accept(t, func(p *measurements.Policy) {
		p.Endpoint = &measurements.Endpoint{Address: "[2001:db8::6]:6443", Names: []string{"192.0.2.66"}}
	}, "image")
	for _, a := range []string{"192.0.2.1", "2001:db8::6", "192.0.2.66"} {
		if code := s.request(t, a); code != "address-reserved" {
			t.Errorf("%s: %q", a, code)
		}
	}
}

// Of two machines that claim an address at two replicas at once, one gets it.
func TestAddressIsClaimedOnce(t *testing.T) {
	s := newSite(t)
	other, _, _ := s.replica(t)
	for _, node := range []hullmark.EKID{{1}, {2}} {
		if _, err := s.records.Store(t.Context(), joinservice.Machine{EKID: node, Name: "w", Role: hullmark.Worker}, ""); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		a := netip.AddrFrom4([4]byte{192, 0, 3, byte(i)})
		var group sync.WaitGroup
		won := make(chan hullmark.EKID, 4)
		for _, service := range []*joinservice.Service{s.service, other} {
			for _, node := range []hullmark.EKID{{1}, {2}} {
				group.Go(func() {
					granted, _, err := service.ClaimAddresses(t.Context(), node, []netip.Addr{a})
					if err == nil && len(granted) == 1 {
						won <- node
					}
				})
			}
		}
		group.Wait()
		close(won)
		first, any := <-won
		for next := range won {
			if next != first {
				t.Fatalf("%s was granted to both", a)
			}
		}
		if holder := s.records.Addresses()[a]; any && holder != first {
			t.Fatalf("%s was granted to %s, and %s holds it", a, first, holder)
		}
	}
}

// What was claimed when the service ends is in the record already, from which whoever removes the machine gives it up.
func TestClaimsAreInTheRecordFirst(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.service.Records = interrupted{s.records}
	if _, _, err := s.service.ClaimAddresses(t.Context(), s.node.ID, addresses("192.0.2.8", "192.0.2.10")); err == nil {
		t.Fatal("it was not interrupted")
	}
	m := s.machine(t)
	for a := range s.records.Addresses() {
		if !slices.Contains(m.Addresses, a) {
			t.Errorf("%s is claimed, and the record has %v", a, m.Addresses)
		}
	}
	s.service.Records = s.records
	if code := s.request(t, "192.0.2.8"); code != "" {
		t.Errorf("after that: %s", code)
	}
}

// interrupted are records whose keeper is gone when a claim was made.
type interrupted struct{ joinservice.Records }

func (i interrupted) ClaimAddress(ctx context.Context, a netip.Addr, node hullmark.EKID) error {
	return errors.Join(i.Records.ClaimAddress(ctx, a, node), errors.New("interrupted"))
}

// DNS decides nothing: whoever answers that a worker has the endpoint's address causes a warning.
func TestNamesAreResolvedForWarningsOnly(t *testing.T) {
	s := newSite(t)
	s.service.Settings.ControlPlaneEndpoint = "api.example.net:6443"
	s.service.Lookup = func(context.Context, string) ([]netip.Addr, error) { return addresses("::ffff:192.0.2.7"), nil }
	if m := s.join(t); !slices.Equal(m.Addresses, addresses("192.0.2.7")) {
		t.Errorf("the record has %v, refused %v", m.Addresses, m.Refused)
	}
	waitFor(t, func() bool { return s.journal.says("DNS gives for the endpoint") })
}

// The first node's addresses are claimed as its record is handed over; those of the pods' interfaces on it are none.
func TestAdoptClaimsAddresses(t *testing.T) {
	s := newSite(t)
	s.neighbour(t, hullmark.ControlPlane)
	first := joinservice.Machine{
		EKID: hullmark.EKID{5}, Name: "cp-1", Role: hullmark.ControlPlane, State: joinservice.MachineJoining, Record: joinservice.Record{Disk: hullmark.UUID{5}, Committed: 1, Issued: 1},
		Addresses: addresses("192.0.2.1", "10.244.0.1", "10.96.0.1", nine.String()),
	}
	for range 2 {
		if err := s.service.Adopt(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		m, _, err := s.records.Load(t.Context(), first.EKID)
		if err != nil || !slices.Equal(m.Addresses, addresses("192.0.2.1")) || len(refusals(m)) != 1 || refusals(m)[nine.String()] != "address-taken" {
			t.Errorf("the record has %v, refused %v, %v", m.Addresses, m.Refused, err)
		}
	}
}

// In a cluster whose networks are not IPv4 alone the ticket says which of its addresses a kubelet names: one of each family, the
// primary one first. A node that has none of one does not join, and asks again; one that comes back does.
func TestNodeAddressesByFamily(t *testing.T) {
	const v4, v6 = "192.0.2.7", "2001:db8::7"
	networks := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	ipv4, ipv6 := networks("10.96.0.0/12", "10.244.0.0/16"), networks("fd00:10:96::/112", "fd00:10:244::/56")
	both := []netip.Prefix{ipv4[0], ipv6[0], ipv4[1], ipv6[1]}
	for name, c := range map[string]struct {
		networks []netip.Prefix
		named    []string
		want     string
	}{
		"IPv4 alone":           {ipv4, []string{v6, v4}, ""},
		"IPv6 alone":           {ipv6, []string{v4, v6}, v6},
		"both, IPv4 first":     {both, []string{v6, v4, "2001:db8::8"}, v4 + "," + v6},
		"both, IPv6 first":     {[]netip.Prefix{ipv6[0], ipv4[0], ipv6[1], ipv4[1]}, []string{v4, v6}, v6 + "," + v4},
		"both, one is refused": {both, []string{"10.96.0.1", v4, v6}, v4 + "," + v6},
		"pods alone of both":   {slices.Concat(ipv4, ipv6[1:]), []string{v4}, ""},
	} {
		s := newSite(t)
		s.service.Settings.Networks = c.networks
		s.node.Addresses = c.named
		s.join(t)
		if got := s.node.Proceed().GetAddress(); got != c.want {
			t.Errorf("%s: Proceed says %q, want %q", name, got, c.want)
		}
	}
	s := newSite(t)
	s.service.Settings.Networks = both
	s.node.Addresses = []string{v4}
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	s.told(t, "address-missing", true, "IPv6")
	s.node.Addresses = []string{v4, v6}
	s.join(t)
	s.reboot()
	s.node.Addresses = []string{v4}
	s.join(t)
	if got := s.node.Proceed().GetAddress(); got != v4 {
		t.Errorf("a node that comes back with IPv4 alone is told %q", got)
	}
}
