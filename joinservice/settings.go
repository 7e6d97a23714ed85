package joinservice

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hullmark/hullmark"
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
	// Networks are those of the cluster's services and pods, in their shortest form, in which no machine has an address; that
	// of the pods is not known where they have a network of the operator's own.
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
