package measurements

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
)

// Limits of what a policy demands of platforms.
const (
	maxPlatforms = 16
	// MaxPlatformDemands bounds the demands on one kind of platform, in bytes.
	MaxPlatformDemands = 256 << 10
)

// LeastTrust is the least class of trust that a policy demands. The zero value demands none.
type LeastTrust struct {
	// ControlPlane and Worker are the least classes of the two roles; empty demands none. Control planes hold the key of every
	// disk, so a worker's cannot be above theirs.
	ControlPlane hullmark.TrustClass `json:"controlPlane,omitempty"`
	Worker       hullmark.TrustClass `json:"worker,omitempty"`
	// Generation is the first of the keys that no machine of a lesser class was ever given: disks of an earlier one are refused,
	// and new ones are not made with it.
	Generation uint32 `json:"generation,omitempty"`
}

// Platform says what the evidence of one kind of platform has to show.
type Platform struct {
	// Kind is the kind of evidence, such as hullmark.PlatformAzureSNP.
	Kind string `json:"kind"`
	// Demands are those of the kind's own verifier, which reads them. Here they are bytes: what a register has to be is for this
	// package to know, what a processor's maker signs is not.
	Demands json.RawMessage `json:"demands"`
}

// Least returns the least classes that a machine in a role has to be of when it boots a document, each of them.
func (p Policy) Least(role hullmark.Role, document DocumentID) []hullmark.TrustClass {
	var least []hullmark.TrustClass
	switch {
	case role == hullmark.ControlPlane && p.Trust.ControlPlane != "":
		least = append(least, p.Trust.ControlPlane)
	case role == hullmark.Worker && p.Trust.Worker != "":
		least = append(least, p.Trust.Worker)
	}
	i := slices.IndexFunc(p.Documents, func(a Accepted) bool { return a.Document == document })
	if i >= 0 && p.Documents[i].Trust != "" {
		least = append(least, p.Documents[i].Trust)
	}
	return least
}

// PlatformDemands returns what the policy demands of evidence of that kind, and whether it accepts any.
func (p Policy) PlatformDemands(kind string) (json.RawMessage, bool) {
	i := slices.IndexFunc(p.Platforms, func(platform Platform) bool { return platform.Kind == kind })
	if i < 0 {
		return nil, false
	}
	return p.Platforms[i].Demands, true
}

func (p Policy) checkTrust() error {
	for what, class := range map[string]hullmark.TrustClass{"controlPlane": p.Trust.ControlPlane, "worker": p.Trust.Worker} {
		if class != "" && !class.Valid() {
			return fmt.Errorf("trust: %s: class %.40q is unknown", what, class)
		}
	}
	if w := p.Trust.Worker; w != "" && w != hullmark.TrustTPM && !p.Trust.ControlPlane.AtLeast(w) {
		return fmt.Errorf("trust: workers have to be %s, and control planes, which hold the keys of workers' disks, need not: demand as much of them", w)
	}
	if p.Trust.Generation > 0 && p.Trust.ControlPlane == "" {
		return errors.New("trust: generation: without a class of control planes")
	}
	for _, a := range p.Documents {
		if a.Trust != "" && !a.Trust.Valid() {
			return fmt.Errorf("document %v: class %.40q is unknown", a.Document, a.Trust)
		}
	}
	return p.checkPlatforms()
}

func (p Policy) checkPlatforms() error {
	if len(p.Platforms) > maxPlatforms {
		return fmt.Errorf("platforms: %d, want at most %d", len(p.Platforms), maxPlatforms)
	}
	for i, platform := range p.Platforms {
		same := func(other Platform) bool { return other.Kind == platform.Kind }
		if platform.Kind == "" || slices.ContainsFunc(p.Platforms[:i], same) {
			return fmt.Errorf("platforms: kind %.40q is empty or there twice", platform.Kind)
		}
		if len(platform.Demands) == 0 || len(platform.Demands) > MaxPlatformDemands {
			return fmt.Errorf("platforms: %.40q: demands of %d bytes, want 1 to %d", platform.Kind, len(platform.Demands), MaxPlatformDemands)
		}
	}
	return nil
}
