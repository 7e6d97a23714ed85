package hullmark

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// checkMembers holds each interface to what it is made of: interfaces that are there, of such a kind, each used once, and no loop.
func (c NodeConfig) checkMembers(named map[string]Interface) error {
	user := map[string]string{}
	for _, i := range c.Interfaces {
		if i.VLAN != nil {
			continue // others may be on the same interface
		}
		for _, m := range i.members() {
			member, known := named[m]
			switch {
			case !known:
				return fmt.Errorf("%s: member %.20q is no interface of this configuration", i.Name, m)
			case user[m] != "":
				return fmt.Errorf("%s: member %s is in %s already", i.Name, m, user[m])
			case i.Bond != nil && member.Card == nil, member.Bridge != nil:
				return fmt.Errorf("%s: member %s: a bond is made of cards, a bridge of cards, bonds and VLANs", i.Name, m)
			case member.addressed() || len(member.Routes) > 0 || len(member.NameServers) > 0 || len(member.SearchDomains) > 0 || member.Node:
				return fmt.Errorf("%s: member %s has addresses, routes or name servers of its own: give them to %s", i.Name, m, i.Name)
			case i.Bond != nil && member.MTU != 0:
				return fmt.Errorf("%s: member %s has an mtu of its own: give it to %s", i.Name, m, i.Name)
			case i.Bridge != nil && i.MTU > cmp.Or(member.MTU, 1500):
				return fmt.Errorf("%s: mtu %d is more than the %d of member %s", i.Name, i.MTU, cmp.Or(member.MTU, 1500), m)
			}
			user[m] = i.Name
		}
	}
	for _, i := range c.Interfaces {
		if i.VLAN != nil && user[i.VLAN.Link] != "" && named[user[i.VLAN.Link]].Bond != nil {
			return fmt.Errorf("%s: vlan on %s, which is a member of %s: put it on that", i.Name, i.VLAN.Link, user[i.VLAN.Link])
		}
		if loops(i, named, len(named)) {
			return fmt.Errorf("%s is made of itself", i.Name)
		}
	}
	return nil
}

// loops reports whether a way down from an interface is longer than there are interfaces.
func loops(i Interface, named map[string]Interface, left int) bool {
	if left < 0 {
		return true
	}
	return slices.ContainsFunc(i.members(), func(m string) bool { return loops(named[m], named, left-1) })
}

// checkVLANs holds each VLAN to what it is on.
func (c NodeConfig) checkVLANs(named map[string]Interface) error {
	type tag struct {
		on string
		id int
	}
	seen := map[tag]string{}
	for _, i := range c.Interfaces {
		if i.VLAN == nil {
			continue
		}
		on, known := named[i.VLAN.Link]
		at := tag{i.VLAN.Link, i.VLAN.ID}
		switch {
		case !known || on.VLAN != nil:
			return fmt.Errorf("%s: vlan: link %.20q: want the name of a card, a bond or a bridge", i.Name, i.VLAN.Link)
		case seen[at] != "":
			return fmt.Errorf("%s: vlan: id %d on %s is %s already", i.Name, at.id, at.on, seen[at])
		case i.MTU > cmp.Or(on.MTU, 1500):
			return fmt.Errorf("%s: mtu %d is more than the %d of %s, which carries it", i.Name, i.MTU, cmp.Or(on.MTU, 1500), on.Name)
		}
		seen[at] = i.Name
	}
	return nil
}

// checkTwice refuses addresses and cards that are given twice.
func (c NodeConfig) checkTwice(map[string]Interface) error {
	at := map[netip.Addr]string{}
	by := map[Card]string{}
	for _, i := range c.Interfaces {
		for _, text := range i.Addresses {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return err
			}
			if at[p.Addr()] != "" {
				return fmt.Errorf("%s: %s is given to %s already", i.Name, p.Addr(), at[p.Addr()])
			}
			at[p.Addr()] = i.Name
		}
		if i.Card != nil && by[*i.Card] != "" {
			return fmt.Errorf("%s: the card with %s is %s already", i.Name, i.Card, by[*i.Card])
		}
		if i.Card != nil {
			by[*i.Card] = i.Name
		}
	}
	return nil
}

// way is where a route leads, and how much it is wanted.
type way struct {
	to     netip.Prefix
	metric int
}

// offeredMetric is that of routes which a network offers, and kernelMetric6 that of an IPv6 route that says none.
const (
	offeredMetric = 1024
	kernelMetric6 = 1024
)

// checkDefaultRoutes refuses two routes to the same network that no metric orders: which is taken would be left to chance.
func (c NodeConfig) checkDefaultRoutes(map[string]Interface) error {
	seen := map[way]string{}
	for _, i := range c.Interfaces {
		for _, w := range i.ways() {
			if seen[w] != "" {
				to := w.to.String()
				if w.to.Bits() == 0 {
					to = "everything (" + to + ")"
				}
				return fmt.Errorf("%s: a route to %s has the same metric as one of %s: give them others, or do not use offered routes", i.Name, to, seen[w])
			}
			seen[w] = i.Name
		}
	}
	return nil
}

// ways are the routes of an interface, with those to everything that its network may offer.
func (i Interface) ways() (all []way) {
	everywhere4, everywhere6 := netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	for _, r := range i.Routes {
		to, err := r.network()
		if err != nil {
			continue // checkRoute refused it
		}
		if gateway, err := netip.ParseAddr(r.Gateway); err == nil && r.To == "" {
			to = everywhere6
			if gateway.Is4() {
				to = everywhere4
			}
		}
		metric := r.Metric
		if metric == 0 && to.Addr().Is6() {
			metric = kernelMetric6
		}
		all = append(all, way{to, metric})
	}
	if i.DHCP4 != nil && i.DHCP4.Uses("routes") {
		all = append(all, way{everywhere4, cmp.Or(i.DHCP4.Metric, offeredMetric)})
	}
	if i.RA != nil && i.RA.Uses("routes") {
		all = append(all, way{everywhere6, cmp.Or(i.RA.Metric, offeredMetric)})
	}
	return all
}

// checkNode wants to know by which addresses the node goes.
func (c NodeConfig) checkNode(map[string]Interface) error {
	var marked, addressed []string
	for _, i := range c.Interfaces {
		if i.addressed() {
			addressed = append(addressed, i.Name)
		}
		if i.Node {
			marked = append(marked, i.Name)
		}
		if i.Node && !i.addressed() {
			return fmt.Errorf("%s: node: it gets no addresses", i.Name)
		}
	}
	switch {
	case len(addressed) == 0:
		return errors.New("none gets addresses: give one addresses, dhcp4, dhcp6 or ra")
	case len(marked) > 1:
		return fmt.Errorf("%s and %s are both marked as the node's: want one", marked[0], marked[1])
	case len(marked) == 0 && len(addressed) > 1:
		return fmt.Errorf("%s and %s get addresses: mark the one whose addresses are the node's own (node)", addressed[0], addressed[1])
	}
	return nil
}
