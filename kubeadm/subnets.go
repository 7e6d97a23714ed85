package kubeadm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Subnets are the networks of a cluster's pods, or of its services: one, or one of each family, the primary one first.
type Subnets []netip.Prefix

// ParseSubnets reads them as kubeadm writes them: networks in CIDR notation, joined by a comma.
func ParseSubnets(text string) (Subnets, error) {
	var s Subnets
	for part := range strings.SplitSeq(text, ",") {
		network, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, err
		}
		s = append(s, network)
	}
	return s, s.check()
}

// MustParseSubnets is ParseSubnets for constants: it panics where that fails.
func MustParseSubnets(text string) Subnets {
	s, err := ParseSubnets(text)
	if err != nil {
		panic(err)
	}
	return s
}

func (s Subnets) check() error {
	foreign := slices.ContainsFunc(s, func(n netip.Prefix) bool { return !n.IsValid() || n.Addr().Is4In6() })
	if len(s) == 0 || len(s) > 2 || foreign || len(s) == 2 && s[0].Addr().Is4() == s[1].Addr().Is4() {
		return fmt.Errorf("%q: want a network, or one of each family, such as 10.0.0.0/16,fd00:10::/56", s.String())
	}
	return nil
}

// String writes them as ParseSubnets reads them.
func (s Subnets) String() string {
	var all []string
	for _, network := range s {
		all = append(all, network.String())
	}
	return strings.Join(all, ",")
}

// Contains returns the network that an address is of, if one of them is.
func (s Subnets) Contains(a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(s, func(n netip.Prefix) bool { return n.Contains(a.Unmap()) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return s[i], true
}

// of returns the network of a family, or nothing.
func (s Subnets) of(is4 bool) string {
	for _, network := range s {
		if network.Addr().Is4() == is4 {
			return network.String()
		}
	}
	return ""
}

// checkNetworks refuses networks of which no cluster is made, or that each other's packets would be lost in.
func (p Params) checkNetworks() error {
	if err := p.ServiceSubnet.check(); err != nil {
		return fmt.Errorf("kubeadm documents: service subnet %w", err)
	}
	if err := p.PodSubnet.check(); err != nil {
		return fmt.Errorf("kubeadm documents: pod subnet %w", err)
	}
	alike := func(a, b netip.Prefix) bool { return a.Addr().Is4() == b.Addr().Is4() }
	if !slices.EqualFunc(p.ServiceSubnet, p.PodSubnet, alike) {
		return fmt.Errorf("kubeadm documents: service subnet %s and pod subnet %s: want networks of the same families in the same order, the primary one first", p.ServiceSubnet, p.PodSubnet)
	}
	for _, services := range p.ServiceSubnet {
		if pods, overlap := overlapping(p.PodSubnet, services); overlap {
			return fmt.Errorf("kubeadm documents: service subnet %s overlaps pod subnet %s: choose two apart", services, pods)
		}
	}
	return nil
}

func overlapping(s Subnets, with netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(s, with.Overlaps)
	if i < 0 {
		return netip.Prefix{}, false
	}
	return s[i], true
}

// CheckNodeAddress refuses an address for a node that pods or services have, or whose packets would not leave the machine.
func (p Params) CheckNodeAddress(a netip.Addr) error {
	for what, subnets := range map[string]Subnets{"pods": p.PodSubnet, "services": p.ServiceSubnet} {
		if network, inside := subnets.Contains(a); inside {
			return fmt.Errorf("address %s: it is of the %s' network %s: choose networks apart from those of the machines", a, what, network)
		}
	}
	return nil
}

// What kubeadm and the controller manager take where nothing else is said (cmd/kubeadm/app/apis/kubeadm/validation,
// ValidatePodSubnetNodeMask and ValidateServiceSubnetSize): a node's pods have a /24 or a /64 of their network, which has at most
// 2^16 of those, and services have 10 to 2^20 addresses.
const (
	nodeMask4, nodeMask6 = 24, 64
	maxNodeBits          = 16
	minServiceBits       = 4
	maxServiceBits       = 20
)

// CheckSizes refuses networks that Kubernetes cannot divide in the way that it does unless it is told otherwise (flags
// node-cidr-mask-size-ipv4 and -ipv6 of the controller manager).
func (p Params) CheckSizes() error {
	for _, network := range p.PodSubnet {
		mask := nodeMask6
		if network.Addr().Is4() {
			mask = nodeMask4
		}
		if network.Bits() > mask || mask-network.Bits() > maxNodeBits {
			return fmt.Errorf("pod subnet %s: each node's pods have a /%d of it: want one from /%d to /%d, or documents of your own with another node-cidr-mask-size",
				network, mask, mask-maxNodeBits, mask)
		}
	}
	for _, network := range p.ServiceSubnet {
		if size := network.Addr().BitLen(); size-network.Bits() > maxServiceBits || size-network.Bits() < minServiceBits {
			return fmt.Errorf("service subnet %s: want one from /%d to /%d", network, size-maxServiceBits, size-minServiceBits)
		}
	}
	return nil
}
