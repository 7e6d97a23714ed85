package network

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark"
)

// File is a file below /run/systemd/network.
type File struct{ Name, Content string }

// imageFile is the image's own file for every card, in whose place one of its name below /run comes (systemd.network(5)).
const imageFile = "50-hullmark.network"

// Files are the files that make the plan so; none if the configuration leaves the network to the image.
func (p Plan) Files() []File {
	if len(p.config.Addresses) > 0 {
		return []File{{"10-hullmark.network", p.static()}}
	}
	if len(p.config.Interfaces) == 0 {
		return nil
	}
	files := []File{{imageFile, unnamed()}}
	for _, i := range p.config.Interfaces {
		files = append(files, File{"10-hullmark-" + i.Name + ".network", p.network(i)})
		if i.Card == nil {
			files = append(files, File{"10-hullmark-" + i.Name + ".netdev", p.device(i)})
		}
	}
	return files
}

// settings is a file of systemd, whose values are without line breaks: parsing and the choice of cards have made sure of that.
type settings struct{ strings.Builder }

func (s *settings) section(name string) {
	if s.Len() > 0 {
		s.WriteString("\n")
	}
	s.WriteString("[" + name + "]\n")
}

// set writes a setting, unless it has no value.
func (s *settings) set(name, value string) {
	if value != "" {
		s.WriteString(name + "=" + value + "\n")
	}
}

func (s *settings) number(name string, value int) {
	if value != 0 {
		s.set(name, strconv.Itoa(value))
	}
}

func (s *settings) answer(name string, yes bool) {
	if yes {
		s.set(name, "yes")
	} else {
		s.set(name, "no")
	}
}

// static is what a configuration without interfaces says of the only card.
func (p Plan) static() string {
	var s settings
	s.section("Match")
	s.set("Name", p.cards[only].Name)
	s.section("Network")
	for _, address := range p.config.Addresses {
		s.set("Address", address)
	}
	s.set("Gateway", p.config.Gateway)
	for _, server := range p.config.NameServers {
		s.set("DNS", server)
	}
	return s.String()
}

// unnamed is for cards that the configuration does not name: they get no address. It does not switch them off: some are parts of others.
func unnamed() string {
	var s settings
	s.section("Match")
	s.set("Type", "ether")
	s.set("Kind", "!*")
	s.section("Link")
	s.set("ActivationPolicy", "manual")
	s.section("Network")
	s.set("DHCP", "no")
	s.set("IPv6AcceptRA", "no")
	s.set("LinkLocalAddressing", "no")
	return s.String()
}

// network is the .network file of an interface.
func (p Plan) network(i hullmark.Interface) string {
	var s settings
	s.section("Match")
	s.set("Name", p.system(i))
	if i.MTU != 0 {
		s.section("Link")
		s.number("MTUBytes", i.MTU)
	}
	s.section("Network")
	p.stack(&s, i)
	s.set("DHCP", dhcp(i))
	s.answer("IPv6AcceptRA", i.RA != nil)
	if hasIPv6(i) {
		s.set("LinkLocalAddressing", "ipv6")
	} else {
		s.set("LinkLocalAddressing", "no")
	}
	s.set("LLMNR", "no")
	s.set("MulticastDNS", "no")
	if i.Dynamic() {
		s.set("KeepConfiguration", "dynamic-on-stop")
	}
	for _, address := range i.Addresses {
		s.set("Address", address)
	}
	for _, server := range i.NameServers {
		s.set("DNS", server)
	}
	s.set("Domains", strings.Join(i.SearchDomains, " "))
	for _, r := range i.Routes {
		route(&s, r)
	}
	offers(&s, i)
	return s.String()
}

// stack says what an interface is a member of, and which VLANs are on it.
func (p Plan) stack(s *settings, i hullmark.Interface) {
	for _, other := range p.config.Interfaces {
		switch {
		case other.Bond != nil && slices.Contains(other.Bond.Members, i.Name):
			s.set("Bond", other.Name)
			if other.Bond.Primary == i.Name {
				s.set("PrimarySlave", "yes")
			}
		case other.Bridge != nil && slices.Contains(other.Bridge.Members, i.Name):
			s.set("Bridge", other.Name)
		case other.VLAN != nil && other.VLAN.Link == i.Name:
			s.set("VLAN", other.Name)
		}
	}
}

func dhcp(i hullmark.Interface) string {
	switch {
	case i.DHCP4 != nil && i.DHCP6 != nil:
		return "yes"
	case i.DHCP4 != nil:
		return "ipv4"
	case i.DHCP6 != nil:
		return "ipv6"
	}
	return "no"
}

// hasIPv6 reports whether an interface needs a link-local address of IPv6.
func hasIPv6(i hullmark.Interface) bool {
	isIPv6 := func(text string) bool { return strings.Contains(text, ":") }
	return i.DHCP6 != nil || i.RA != nil || slices.ContainsFunc(i.Addresses, isIPv6) || slices.ContainsFunc(i.NameServers, isIPv6) ||
		slices.ContainsFunc(i.Routes, func(r hullmark.Route) bool { return isIPv6(r.To) || isIPv6(r.Gateway) })
}

func route(s *settings, r hullmark.Route) {
	s.section("Route")
	to := r.To
	if to == "" {
		to = "0.0.0.0/0"
		if gateway, err := netip.ParseAddr(r.Gateway); err == nil && gateway.Is6() {
			to = "::/0"
		}
	}
	s.set("Destination", to)
	s.set("Gateway", r.Gateway)
	if r.OnLink {
		s.set("GatewayOnLink", "yes")
	}
	s.number("Metric", r.Metric)
}

// offers are the settings of what the network offers. An image has no machine ID of its own (machine-id(5)), so that what a server
// knows the machine by is made of its card's address.
func offers(s *settings, i hullmark.Interface) {
	if o := i.DHCP4; o != nil {
		s.section("DHCPv4")
		if o.ClientID == "duid" {
			s.set("ClientIdentifier", "duid")
			s.set("DUIDType", "link-layer")
		} else {
			s.set("ClientIdentifier", "mac")
		}
		s.set("VendorClassIdentifier", o.VendorClass)
		s.set("SendHostname", "no")
		s.set("UseHostname", "no")
		s.set("UseTimezone", "no")
		used(s, *o, "dns", "domains", "mtu", "ntp", "routes")
	}
	if o := i.DHCP6; o != nil {
		s.section("DHCPv6")
		s.set("DUIDType", "link-layer")
		s.set("VendorClass", o.VendorClass)
		s.set("SendHostname", "no")
		s.set("UseHostname", "no")
		s.set("WithoutRA", "solicit")
		used(s, *o, "dns", "domains", "ntp")
	}
	if o := i.RA; o != nil {
		s.section("IPv6AcceptRA")
		if i.DHCP6 != nil {
			s.set("DHCPv6Client", "always")
		} else {
			s.set("DHCPv6Client", "no")
		}
		s.set("UseRedirect", "no")
		s.answer("UseGateway", o.Uses("routes"))
		s.answer("UseRoutePrefix", o.Uses("routes"))
		used(s, *o, "dns", "domains", "mtu")
		s.number("RouteMetric", o.Metric)
	}
}

// used says of all that can be offered whether it is taken.
func used(s *settings, o hullmark.Offer, all ...string) {
	for _, what := range all {
		switch what {
		case "dns":
			s.answer("UseDNS", o.Uses(what))
		case "domains":
			s.answer("UseDomains", o.Uses(what))
		case "mtu":
			s.answer("UseMTU", o.Uses(what))
		case "ntp":
			s.answer("UseNTP", o.Uses(what))
		case "routes":
			s.answer("UseRoutes", o.Uses(what))
			s.number("RouteMetric", o.Metric)
		}
	}
}

// device is the .netdev file of an interface that is made of others. A bond and a bridge have the address of their first card, not one
// that a machine ID decides, or which member comes first.
func (p Plan) device(i hullmark.Interface) string {
	var s settings
	s.section("NetDev")
	s.set("Name", i.Name)
	switch {
	case i.Bond != nil:
		s.set("Kind", "bond")
		s.set("MACAddress", p.mac(i.Name))
		s.section("Bond")
		s.set("Mode", i.Bond.Mode)
		s.set("MIIMonitorSec", "100ms")
		s.set("TransmitHashPolicy", i.Bond.Hash)
		s.set("LACPTransmitRate", i.Bond.LACPRate)
	case i.VLAN != nil:
		s.set("Kind", "vlan")
		s.section("VLAN")
		s.number("Id", i.VLAN.ID)
	case i.Bridge != nil:
		s.set("Kind", "bridge")
		s.set("MACAddress", p.mac(i.Name))
		s.section("Bridge")
		s.answer("STP", i.Bridge.STP)
	}
	return s.String()
}

// mac is the address of the first card that an interface is made of. Parsing has made sure that none is made of itself.
func (p Plan) mac(name string) string {
	at := slices.IndexFunc(p.config.Interfaces, func(i hullmark.Interface) bool { return i.Name == name })
	switch i := p.config.Interfaces[at]; {
	case i.Bond != nil:
		return p.mac(i.Bond.Members[0])
	case i.VLAN != nil:
		return p.mac(i.VLAN.Link)
	case i.Bridge != nil:
		return p.mac(i.Bridge.Members[0])
	}
	return p.cards[name].MAC
}

// Timesync is the drop-in of systemd-timesyncd for a configuration's time servers, or nothing.
func Timesync(config hullmark.NodeConfig) string {
	if len(config.TimeServers) == 0 {
		return ""
	}
	return "[Time]\nNTP=" + strings.Join(config.TimeServers, " ") + "\n"
}

// Environment is the environment of units that a configuration's proxy is for (systemd.exec(5), EnvironmentFile=), or nothing.
func Environment(config hullmark.NodeConfig) string {
	if config.Proxy == nil {
		return ""
	}
	var s settings
	s.set("HTTP_PROXY", config.Proxy.HTTP)
	s.set("HTTPS_PROXY", config.Proxy.HTTPS)
	s.set("NO_PROXY", strings.Join(config.Proxy.Except, ","))
	return s.String()
}
