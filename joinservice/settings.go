package joinservice

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// MaxNetworks is how many networks settings have at most.
const MaxNetworks = 8

// MaxSettings is the largest encoded Settings, in bytes.
const MaxSettings = 32 << 10

// Settings are what a cluster's join services have to know of it beside keys
// and policy. They hold no secret.
type Settings struct {
	// ControlPlaneEndpoint is the HOST:PORT at which nodes reach the API server.
	ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
	// Names are what a policy's endpoint says beside it (measurements.Endpoint).
	Names []string `json:"names,omitempty"`
	// Networks are those of the cluster's services, the primary family's first, and then of its pods, in their shortest form, in
	// which no machine has an address; that of the pods is not known where they have a network of the operator's own.
	Networks []netip.Prefix `json:"networks"`
	// Profile is that of the cluster's kubeadm documents.
	Profile kubeadm.Profile `json:"profile"`
}

// Under returns the settings as a policy has changed them.
func (s Settings) Under(policy measurements.Policy) Settings {
	if e := policy.Endpoint; e != nil {
		s.ControlPlaneEndpoint, s.Names = e.Address, e.Names
	}
	return s
}

// families are those of the cluster's services, the primary one first: their networks are the first, and at most one is of each.
func (s Settings) families() []Family {
	var all []Family
	for _, n := range s.Networks[:min(2, len(s.Networks))] {
		if f := FamilyOf(n.Addr()); !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// NodeAddresses returns, of a machine's addresses, those that its kubelet names: the first of each family of the cluster's
// services, the primary family's first. A family that the machine has none of is missing.
func (s Settings) NodeAddresses(own []netip.Addr) (addresses []netip.Addr, missing Family) {
	for _, f := range s.families() {
		at := slices.IndexFunc(own, func(a netip.Addr) bool { return a.IsGlobalUnicast() && FamilyOf(a) == f })
		switch {
		case at >= 0:
			addresses = append(addresses, own[at].Unmap())
		case missing == "":
			missing = f
		}
	}
	return addresses, missing
}

// Tell names in Proceed the addresses of a machine's that its kubelet is to name, unless one finds them by itself: it takes one
// alone, IPv4 where there is any.
func (s Settings) Tell(proceed *wire.Proceed, addresses []netip.Addr) {
	if f := s.families(); len(f) > 1 || len(f) == 1 && f[0] == IPv6 {
		proceed.SetNodeAddresses(addresses)
	}
}

// Local is this machine's own loopback address on a control plane, at which kubeadm has its member of etcd listen.
func (s Settings) Local() netip.Addr {
	if f := s.families(); len(f) > 0 && f[0] == IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Encode returns the form that ParseSettings reads.
func (s Settings) Encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	return json.Marshal(s)
}

// ParseSettings strictly reads what Encode writes.
func ParseSettings(encoded []byte) (Settings, error) {
	s, err := parseSettings(encoded)
	if err != nil {
		return Settings{}, fmt.Errorf("read settings: %w", err)
	}
	return s, nil
}

func parseSettings(encoded []byte) (Settings, error) {
	var s Settings
	if err := hullmark.DecodeStrict(encoded, MaxSettings, &s); err != nil {
		return s, err
	}
	return s, s.check()
}

func (s Settings) check() error {
	if !hullmark.ValidEndpoint(s.ControlPlaneEndpoint) {
		return fmt.Errorf("controlPlaneEndpoint %q: want HOST:PORT, with a port from 1 to 65535", s.ControlPlaneEndpoint)
	}
	if len(s.Names) > measurements.MaxNames || slices.ContainsFunc(s.Names, func(n string) bool { return !hullmark.ValidServerName(n) }) {
		return fmt.Errorf("names: want at most %d, each a DNS name or an IP address", measurements.MaxNames)
	}
	if len(s.Networks) == 0 || len(s.Networks) > MaxNetworks || slices.ContainsFunc(s.Networks, func(n netip.Prefix) bool { return !n.IsValid() || n.Masked() != n || n.Addr().Is4In6() }) {
		return fmt.Errorf("networks %v: want that of the services and those of the pods, such as 10.96.0.0/12, at most %d; settings without are of another release", s.Networks, MaxNetworks)
	}
	if s.Profile != kubeadm.Normal && s.Profile != kubeadm.Slow {
		return fmt.Errorf("profile %q: want slow or none", s.Profile)
	}
	return nil
}
