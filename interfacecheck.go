package hullmark

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

var (
	// interfacePattern is narrower than what Linux takes (dev_valid_name): such a name can stand anywhere in a file of systemd.
	interfacePattern = regexp.MustCompile(`^[a-z][a-z0-9._-]{0,14}$`)
	zonePattern      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`)
	macPattern       = regexp.MustCompile(`^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`)
	driverPattern    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	pathPattern      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:._-]{0,127}$`)
	classPattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$`)
	// reserved are names that Linux, the container runtime or a pod network gives to interfaces.
	reserved = regexp.MustCompile(`^(all|default|lo|(cilium|cni|docker|dummy|flannel|ip6tnl|kube|lxc|sit|tap|tun|tunl|veth|vxlan|wg).*)$`)
)

// ValidCardName reports whether a name can be a card's: what matches patterns or ends a line is none.
func ValidCardName(s string) bool { return zonePattern.MatchString(s) }

func (c NodeConfig) checkInterfaces() error {
	if len(c.Interfaces) == 0 {
		return nil
	}
	if len(c.Addresses) > 0 || c.Gateway != "" || len(c.NameServers) > 0 {
		return errors.New("interfaces: addresses, gateway and nameServers are for machines without; give them to an interface")
	}
	if len(c.Interfaces) > maxInterfaces {
		return fmt.Errorf("interfaces: %d, at most %d are possible", len(c.Interfaces), maxInterfaces)
	}
	named := map[string]Interface{}
	for n, i := range c.Interfaces {
		if _, twice := named[i.Name]; twice {
			return fmt.Errorf("interfaces: two have the name %q", i.Name)
		}
		named[i.Name] = i
		if err := i.check(); err != nil {
			return fmt.Errorf("interfaces[%d] (%.20q): %w", n, i.Name, err)
		}
	}
	for _, check := range []func(map[string]Interface) error{c.checkMembers, c.checkVLANs, c.checkTwice, c.checkDefaultRoutes, c.checkNode} {
		if err := check(named); err != nil {
			return fmt.Errorf("interfaces: %w", err)
		}
	}
	return nil
}

func (i Interface) check() error {
	if !interfacePattern.MatchString(i.Name) || reserved.MatchString(i.Name) {
		return errors.New("name: want a lower-case letter and at most 14 letters, digits, dots, hyphens or underscores, and none that Linux or a pod network uses")
	}
	for _, err := range []error{i.checkKind(), i.checkMTU(), i.checkStatic(), i.checkOffers(), i.checkNames()} {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkKind looks at what the interface is, by itself.
func (i Interface) checkKind() error {
	kinds := 0
	for _, is := range []bool{i.Card != nil, i.Bond != nil, i.VLAN != nil, i.Bridge != nil} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return errors.New("exactly one of card, bond, vlan and bridge must be set")
	}
	switch {
	case i.Card != nil:
		return i.Card.check()
	case i.Bond != nil:
		return i.Bond.check()
	case i.VLAN != nil && (i.VLAN.ID < 1 || i.VLAN.ID > 4094):
		return fmt.Errorf("vlan: id %d: 1 to 4094 are possible", i.VLAN.ID)
	case i.Bridge != nil:
		return checkMemberList("bridge", i.Bridge.Members)
	}
	return nil
}

func (c Card) check() error {
	set := 0
	for _, s := range []string{c.MAC, c.Name, c.Driver, c.Path} {
		if s != "" {
			set++
		}
	}
	switch {
	case set != 1:
		return errors.New("card: exactly one of mac, name, driver and path must be set")
	case c.MAC != "" && (!macPattern.MatchString(c.MAC) || c.MAC == "00:00:00:00:00:00"):
		return fmt.Errorf("card: mac %q: want one card's address in lower case, such as 52:54:00:12:34:56", c.MAC)
	case c.Name != "" && !zonePattern.MatchString(c.Name):
		return fmt.Errorf("card: name %q: want the kernel's, such as enp1s0", c.Name)
	case c.Driver != "" && !driverPattern.MatchString(c.Driver):
		return fmt.Errorf("card: driver %q: want the kernel's, such as virtio_net", c.Driver)
	case c.Path != "" && !pathPattern.MatchString(c.Path):
		return fmt.Errorf("card: path %q: want udev's, such as pci-0000:00:03.0", c.Path)
	}
	return nil
}

// String names a card by how it was chosen.
func (c Card) String() string {
	switch {
	case c.MAC != "":
		return "mac " + c.MAC
	case c.Name != "":
		return "name " + c.Name
	case c.Driver != "":
		return "driver " + c.Driver
	}
	return "path " + c.Path
}

func (b Bond) check() error {
	if err := checkMemberList("bond", b.Members); err != nil {
		return err
	}
	if !slices.Contains(bondModes, b.Mode) {
		return fmt.Errorf("bond: mode %q: want one of %s", b.Mode, strings.Join(bondModes, ", "))
	}
	for _, o := range []struct {
		field, value  string
		values, modes []string
	}{
		{"primary", b.Primary, b.Members, []string{"active-backup", "balance-tlb"}},
		{"hash", b.Hash, []string{"layer2", "layer2+3", "layer3+4"}, []string{"802.3ad", "balance-xor"}},
		{"lacpRate", b.LACPRate, []string{"slow", "fast"}, []string{"802.3ad"}},
	} {
		switch {
		case o.value == "":
		case !slices.Contains(o.modes, b.Mode):
			return fmt.Errorf("bond: %s is of mode %s, not of %s", o.field, strings.Join(o.modes, " and "), b.Mode)
		case !slices.Contains(o.values, o.value):
			return fmt.Errorf("bond: %s %q: want one of %s", o.field, o.value, strings.Join(o.values, ", "))
		}
	}
	return nil
}

// bondModes are those in which no packet arrives twice or out of order, and that need nothing of the driver.
var bondModes = []string{"active-backup", "802.3ad", "balance-xor", "balance-tlb"}

func checkMemberList(kind string, members []string) error {
	if len(members) == 0 || len(members) > maxMembers {
		return fmt.Errorf("%s: %d members, want 1 to %d", kind, len(members), maxMembers)
	}
	return nil
}

// checkMTU bounds the MTU by what Ethernet cards can; IPv6 needs 1280 (RFC 8200 §5), and IPv4 is not run with less here either.
func (i Interface) checkMTU() error {
	if i.MTU != 0 && (i.MTU < 1280 || i.MTU > 9216) {
		return fmt.Errorf("mtu %d: 1280 to 9216 are possible", i.MTU)
	}
	return nil
}

func (i Interface) checkStatic() error {
	if len(i.Addresses) > maxServers || len(i.Routes) > maxRoutes {
		return fmt.Errorf("at most %d addresses and %d routes are possible", maxServers, maxRoutes)
	}
	for _, a := range i.Addresses {
		if err := checkStaticAddress(a); err != nil {
			return fmt.Errorf("addresses: %w", err)
		}
	}
	for n, r := range i.Routes {
		if err := i.checkRoute(r); err != nil {
			return fmt.Errorf("routes[%d]: %w", n, err)
		}
	}
	return nil
}

// checkStaticAddress refuses what no machine can have as its own.
func checkStaticAddress(text string) error {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return err
	}
	a := p.Addr()
	if !a.IsGlobalUnicast() || a.Is4In6() || p.Bits() == 0 {
		return fmt.Errorf("%s: want a machine's address with the length of its network, such as 192.0.2.21/24", text)
	}
	if hosts := a.BitLen() - p.Bits(); a.Is4() && hosts > 1 && (a == p.Masked().Addr() || !p.Contains(a.Next())) {
		return fmt.Errorf("%s: it is the network's own address, or its broadcast address", text)
	}
	return nil
}

func (i Interface) checkRoute(r Route) error {
	to, err := r.network()
	if err != nil {
		return err
	}
	if r.Metric < 0 || r.Metric > 1<<31-1 {
		return fmt.Errorf("metric %d: 0 to %d are possible", r.Metric, 1<<31-1)
	}
	if r.Gateway == "" {
		if r.To == "" || r.OnLink {
			return errors.New("gateway: missing")
		}
		return nil
	}
	gateway, err := netip.ParseAddr(r.Gateway)
	switch {
	case err != nil || gateway.Zone() != "" || gateway.IsUnspecified() || gateway.IsMulticast() || gateway.IsLoopback() || gateway.Is4In6():
		return fmt.Errorf("gateway: %q is no router's address", r.Gateway)
	case to.IsValid() && to.Addr().Is4() != gateway.Is4():
		return fmt.Errorf("gateway: %s does not lead to %s, of the other family", r.Gateway, r.To)
	case !r.OnLink && !i.reaches(gateway):
		return fmt.Errorf("gateway: %s is in no network of the interface's addresses; if it is reached all the same, say so (onLink)", r.Gateway)
	}
	for _, a := range i.Addresses {
		if p, err := netip.ParsePrefix(a); err == nil && p.Addr() == gateway {
			return fmt.Errorf("gateway: %s is the node's own address", r.Gateway)
		}
	}
	return nil
}

// network returns where a route leads, or nothing of one that leads everywhere.
func (r Route) network() (netip.Prefix, error) {
	if r.To == "" {
		return netip.Prefix{}, nil
	}
	to, err := netip.ParsePrefix(r.To)
	if err != nil {
		return to, fmt.Errorf("to: %w", err)
	}
	if to != to.Masked() || to.Addr().Is4In6() || to.Addr().IsMulticast() || to.Addr().IsLoopback() {
		return to, fmt.Errorf("to: %s: want a network, such as 192.0.2.0/24", r.To)
	}
	if to.Bits() == 0 {
		return to, errors.New("to: leave it out of the route to everything")
	}
	return to, nil
}

// reaches reports whether a router is in one of the interface's networks. Which those are that its network offers is not known before.
func (i Interface) reaches(gateway netip.Addr) bool {
	if gateway.IsLinkLocalUnicast() && gateway.Is6() {
		return true
	}
	if gateway.Is4() && i.DHCP4 != nil || gateway.Is6() && (i.DHCP6 != nil || i.RA != nil) {
		return true
	}
	return slices.ContainsFunc(i.Addresses, func(a string) bool {
		p, err := netip.ParsePrefix(a)
		return err == nil && p.Contains(gateway)
	})
}

func (i Interface) checkOffers() error {
	for _, o := range []struct {
		field                  string
		offer                  *Offer
		use                    []string
		routes, client, vendor bool
	}{
		{"dhcp4", i.DHCP4, []string{"dns", "domains", "mtu", "ntp", "routes"}, true, true, true},
		{"dhcp6", i.DHCP6, []string{"dns", "domains", "ntp"}, false, false, true},
		{"ra", i.RA, []string{"dns", "domains", "mtu", "routes"}, true, false, false},
	} {
		if o.offer == nil {
			continue
		}
		seen := map[string]bool{}
		for _, u := range o.offer.Use {
			if !slices.Contains(o.use, u) || seen[u] {
				return fmt.Errorf("%s: use %q: want some of %s, each once", o.field, u, strings.Join(o.use, ", "))
			}
			seen[u] = true
		}
		switch {
		case o.offer.Metric < 0 || o.offer.Metric > 1<<31-1 || o.offer.Metric > 0 && !(o.routes && o.offer.Uses("routes")):
			return fmt.Errorf("%s: metric %d: want that of the routes that it uses", o.field, o.offer.Metric)
		case o.offer.ClientID != "" && (!o.client || o.offer.ClientID != "mac" && o.offer.ClientID != "duid"):
			return fmt.Errorf("%s: clientID %q: of dhcp4 it is mac or duid, and others have none", o.field, o.offer.ClientID)
		case o.offer.VendorClass != "" && (!o.vendor || !classPattern.MatchString(o.offer.VendorClass)):
			return fmt.Errorf("%s: vendorClass: want of dhcp4 or dhcp6 at most 128 letters, digits and . _ : / -", o.field)
		}
	}
	return nil
}

// Uses reports whether something offered is taken.
func (o Offer) Uses(what string) bool {
	if o.Use == nil {
		return what == "dns" || what == "routes"
	}
	return slices.Contains(o.Use, what)
}

func (i Interface) checkNames() error {
	if len(i.NameServers) > maxServers || len(i.SearchDomains) > maxServers {
		return fmt.Errorf("at most %d name servers and %d search domains are possible", maxServers, maxServers)
	}
	for _, s := range i.NameServers {
		if a, err := netip.ParseAddr(s); err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("nameServers: %q is no server's address", s)
		}
	}
	for _, d := range i.SearchDomains {
		if !hostPattern.MatchString(d) || numberPattern.MatchString(d) {
			return fmt.Errorf("searchDomains: %q is no domain", d)
		}
	}
	return nil
}
