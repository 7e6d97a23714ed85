package joinservice

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/measurements"
)

// class is the one that a machine's evidence earned.
func class(claims attest.Claims) hullmark.TrustClass {
	return cmp.Or(claims.Platform.Trust, hullmark.TrustTPM)
}

// trust is the class of the machine that was given the disk's key first.
func (r *Record) trust() hullmark.TrustClass { return cmp.Or(r.Trust, hullmark.TrustTPM) }

// checkTrust refuses a machine whose evidence is of a lesser class than the policy demands of its role and release.
func (d *Authorizer) checkTrust(claims attest.Claims, member measurements.Member, document measurements.DocumentID) error {
	for _, least := range d.Policy.Least(member.Role, document) {
		if !class(claims).AtLeast(least) {
			return &hullmark.Condition{
				Code: "trust-too-low", Step: "ATTEST", Title: "the machine's evidence is of a lesser class than the policy demands of its role and release",
				Expected: string(least), Got: fmt.Sprintf("%s, of platform %s", class(claims), cmp.Or(claims.Platform.Platform, hullmark.PlatformTPM)),
				Next: "boot it on a platform of that class whose demands the policy names (platforms), or demand less (hullmark policy sign)",
			}
		}
	}
	return nil
}

// keepTrust returns the class of a disk from the ticket on that is about to be recorded. record is what was known before, or nil. A
// machine gets no key that one of a higher class made a disk with, and none of a disk that the policy's classes would not allow.
func (d *Authorizer) keepTrust(claims attest.Claims, member measurements.Member, document measurements.DocumentID, record *Record) (hullmark.TrustClass, error) {
	known := record != nil && record.Disk == claims.Disk.UUID
	trust := class(claims)
	switch {
	case claims.Disk.State == hullmark.DiskReady && known && !trust.AtLeast(record.trust()):
		return "", &hullmark.Condition{
			Code: "trust-lowered", Step: "ATTEST", Title: "the state disk was set up by a machine whose evidence was of a higher class",
			Expected: string(record.trust()), Got: string(trust),
			Next: "boot the machine on the platform that it had; to go on with less, give it an empty disk",
		}
	case known: // Its key was given out before, perhaps to a lesser machine.
		trust = lesser(trust, record.trust())
	}
	for _, least := range d.Policy.Least(member.Role, document) {
		if !trust.AtLeast(least) {
			return "", diskTrustTooLow(string(least), string(trust))
		}
	}
	return trust, nil
}

// lesser returns what two classes have in common.
func lesser(a, b hullmark.TrustClass) hullmark.TrustClass {
	switch {
	case a.AtLeast(b):
		return b
	case b.AtLeast(a):
		return a
	}
	return hullmark.TrustTPM
}

// checkGeneration refuses a disk whose key is of a generation that machines of a lesser class were given.
func (d *Authorizer) checkGeneration(claims attest.Claims) error {
	first, generation := d.Policy.Trust.Generation, d.Keys.Current()
	if claims.Disk.State == hullmark.DiskReady {
		generation = claims.Disk.Generation
	}
	if generation >= first {
		return nil
	}
	if claims.Disk.State == hullmark.DiskReady {
		return diskTrustTooLow(fmt.Sprintf("keys of generation %d or later", first), fmt.Sprintf("generation %d", generation))
	}
	return &hullmark.Condition{
		Code: "trust-keys-old", Step: "ATTEST", Title: "machines of a lesser class than the policy demands were given the keys that new disks would have",
		Expected: fmt.Sprintf("generation %d", first), Got: fmt.Sprintf("generation %d", generation), Next: "replace the keys first (hullmark cluster rotate keyset)",
	}
}

// diskTrustTooLow is the condition of a disk whose key a lesser machine had.
func diskTrustTooLow(expected, got string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "disk-trust-too-low", Step: "ATTEST", Title: "a machine of a lesser class than the policy demands by now was given the key of this state disk",
		Expected: expected, Got: got, Next: "give the machine an empty disk (hullmark node reset), so that it gets a new key",
	}
}

// checkDemands refuses a machine whose platform was judged by other demands than those in force by now.
func (p *proved) checkDemands() error {
	same := func(a, b measurements.Platform) bool { return a.Kind == b.Kind && bytes.Equal(a.Demands, b.Demands) }
	if slices.EqualFunc(p.demanded, p.policy.policy.Platforms, same) {
		return nil
	}
	return &hullmark.Condition{
		Code: "platforms-changed", Step: "ATTEST", Title: "what the policy demands of platforms was changed while the machine was judged", Retry: true,
		Next: "wait: the node tries again by itself",
	}
}
