package joinservice

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// MaxAddresses bounds the addresses of one machine.
const MaxAddresses = wire.MaxAddresses

// Refusal is an address that a machine named, and that its certificates do not name.
type Refusal struct {
	Address netip.Addr `json:"address"`
	// Condition says why.
	Condition *hullmark.Condition `json:"condition"`
}

// String names the address and the code of what it was refused for, as far as a record has one.
func (r Refusal) String() string {
	if r.Condition == nil {
		return "refused: " + r.Address.String()
	}
	return r.Condition.Root().Code + ": " + r.Address.String()
}

// CanonicalAddress returns the one form in which an address is claimed and compared: IPv4 as such, and without a zone.
func CanonicalAddress(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Family is one of the two kinds of addresses.
type Family string

// The families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Reserved are the addresses that no machine may claim, or no worker.
type Reserved struct {
	// Networks are those of the cluster's services and pods, of which no machine has an address of its own.
	Networks []netip.Prefix
	// Endpoints are where nodes reach the API server, as far as they are addresses; a control plane may have one of them.
	Endpoints []netip.Addr
}

// nobodys are addresses that Go holds to be global unicast, though they are no single machine's: of "this network" (RFC 791),
// reserved (RFC 1112), and IPv6 that stands for an IPv4 address (RFC 4291 §2.5.5.1, RFC 6052, RFC 3056).
var nobodys = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2002::/16"),
}

// usable returns the addresses that a machine can be reached at: none that means another machine to everybody else.
func usable(own []netip.Addr) []netip.Addr {
	var addresses []netip.Addr
	for _, a := range own {
		a = CanonicalAddress(a)
		foreign := slices.ContainsFunc(nobodys, func(p netip.Prefix) bool { return p.Contains(a) })
		if a.IsGlobalUnicast() && !foreign && !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// Check refuses an address to a machine of a role: the error is a *hullmark.Condition of code address-reserved.
func (r Reserved) Check(a netip.Addr, role hullmark.Role) error {
	a = CanonicalAddress(a)
	inside := func(p netip.Prefix) bool { return p.Contains(a) }
	switch i := slices.IndexFunc(r.Networks, inside); {
	case len(usable([]netip.Addr{a})) == 0:
		return addressReserved(a, "which is no single machine's")
	case i >= 0:
		return addressReserved(a, "which is of the services' or pods' network "+r.Networks[i].String())
	case role != hullmark.ControlPlane && slices.Contains(r.Endpoints, a):
		return addressReserved(a, "at which nodes reach the control plane")
	}
	return nil
}

func addressReserved(a netip.Addr, why string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "address-reserved", Step: "EPOCH", Title: fmt.Sprintf("the machine names the address %s, %s", a, why), Got: a.String(),
		Next: "give the machine another address, by DHCP or in its node config; until then its certificates do not name this one",
	}
}

// codeAddressTaken is the code of AddressTaken.
const codeAddressTaken = "address-taken"

// AddressTaken is the condition of an address that another machine holds.
func AddressTaken(a netip.Addr, holder, node hullmark.EKID) *hullmark.Condition {
	return &hullmark.Condition{
		Code: codeAddressTaken, Step: "EPOCH", Title: "another machine holds the address " + a.String(), Expected: holder.String(), Got: node.String(), Retry: true,
		Next: "give one of the two another address, or remove the other machine (hullmark node remove); a worker's claim yields by itself some minutes after its Node was Ready last",
	}
}

// ClaimYields reports whether a claim of an address goes from its holder to the machine that asks, by the roles of both, and
// whether the holder's Node was not Ready for long. A worker's host could wait for a control plane's reboot, or for the day
// before it joins: control planes' claims go to control planes alone, and they take workers' at once.
func ClaimYields(holder, node hullmark.Role, long bool) bool {
	if node == hullmark.ControlPlane {
		return long || holder == hullmark.Worker
	}
	return long && holder != hullmark.ControlPlane
}

// Reserved returns what no machine, or no worker, may claim by the settings and the policy in force. Names are not resolved:
// whoever answers for DNS decides nothing.
func (s *Service) Reserved() Reserved {
	r := Reserved{Networks: s.Settings.Networks}
	for _, settings := range []Settings{s.Settings, s.Settings.Under(s.Policy.Policy())} {
		host, _ := hullmark.EndpointHost(settings.ControlPlaneEndpoint)
		for _, text := range append([]string{host}, settings.Names...) {
			if a, err := netip.ParseAddr(text); err == nil {
				r.Endpoints = append(r.Endpoints, CanonicalAddress(a))
			}
		}
	}
	return r
}
