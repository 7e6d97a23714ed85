package joinservice

import (
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/hcl"
	"github.com/hullmark/hullmark/attest/verifier/provider"
	"github.com/hullmark/hullmark/measurements"
)

// platforms are the verifiers of what a policy demands of platforms' evidence, by kind.
type platforms map[string]evidence.Platform

// refusedPlatforms are the kinds of evidence that earn no ticket yet, and why.
var refusedPlatforms = map[string]string{
	hullmark.PlatformSNP:  "without a TPM inside the guest there is nothing like PCR 8 and PCR 15: no node config that is measured, and no fuse",
	hullmark.PlatformTDX:  "the image's kernel cannot extend an RTMR from user space: no node config that is measured, and no fuse",
	hullmark.PlatformSVSM: "the image's kernel has no driver of its TPM",
	hullmark.PlatformAWS:  "nothing ties a NitroTPM's document to the TPM that is quoted, and the TPM is the host's; name its endorsement key",
}

// CheckPlatforms reports what keeps a policy's demands of platforms from being met by anybody.
func CheckPlatforms(policy measurements.Policy) error {
	_, err := platformsOf(policy)
	return err
}

// platformsOf prepares the demands that can be read; evidence of the other kinds, which the error names, counts for nothing.
func platformsOf(policy measurements.Policy) (all platforms, err error) {
	all = platforms{}
	for _, p := range policy.Platforms {
		platform, wrong := newPlatform(p)
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("platform %.40q: %w", p.Kind, wrong))
			continue
		}
		all[p.Kind] = platform
	}
	return all, err
}

func newPlatform(p measurements.Platform) (evidence.Platform, error) {
	switch p.Kind {
	case hullmark.PlatformAzureSNP:
		return hcl.ParseSNP(p.Demands)
	case hullmark.PlatformAzureTDX:
		return hcl.ParseTDX(p.Demands)
	case hullmark.PlatformGCP, hullmark.PlatformAzureTL:
		return provider.Parse(p.Kind, p.Demands)
	}
	if why, known := refusedPlatforms[p.Kind]; known {
		return nil, errors.New("it gets no ticket by its evidence: " + why)
	}
	return nil, errors.New("no such platform is known")
}

// of returns what judges evidence of a kind; nil if none does. It does not depend on the machine: what a role has to reach is a class.
func (p platforms) of(_ hullmark.EKID, kind string) evidence.Platform {
	if platform, ok := p[kind]; ok {
		return platform
	}
	return nil
}

// Platforms returns what judges machines' evidence by a policy, for verifier.Demands. Demands that this release cannot read judge
// nothing.
func Platforms(policy measurements.Policy) func(node hullmark.EKID, kind string) evidence.Platform {
	all, _ := platformsOf(policy) // CheckPlatforms has told.
	return all.of
}
