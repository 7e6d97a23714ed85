package joinservice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// MaxSettings is the largest encoded Settings, in bytes.
const MaxSettings = 32 << 10

// Settings are what a cluster's join services have to know of it beside keys
// and policy. They hold no secret.
type Settings struct {
	// ControlPlaneEndpoint is the HOST:PORT at which nodes reach the API server.
	ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
	// Names are what a policy's endpoint says beside it (measurements.Endpoint).
	Names []string `json:"names,omitempty"`
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
	if len(encoded) > MaxSettings {
		return s, fmt.Errorf("%d bytes, want at most %d", len(encoded), MaxSettings)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return s, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return s, errors.New("data after the end of the document")
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
	if s.Profile != kubeadm.Normal && s.Profile != kubeadm.Slow {
		return fmt.Errorf("profile %q: want slow or none", s.Profile)
	}
	return nil
}
