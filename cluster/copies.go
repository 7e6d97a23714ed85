package cluster

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// ErrOlderCopy says that another copy of the file was used since.
var ErrOlderCopy = errors.New("another copy of this cluster file was used since")

// Revision is one state of a cluster file, for people who have several copies.
type Revision struct {
	// Number counts the file's changes; 0 of one that was not changed since they are counted.
	Number uint64
	// Time is that of the last one, by the operator's clock, in seconds.
	Time time.Time
}

// String is what ParseRevision reads; it is empty while Number is 0.
func (r Revision) String() string {
	if r.Number == 0 {
		return ""
	}
	return fmt.Sprintf("revision %d of %s", r.Number, r.Time.Format(time.RFC3339))
}

var revisionPattern = regexp.MustCompile(`^revision ([1-9][0-9]{0,18}) of (\S{1,40})$`)

// ParseRevision reads what String writes, and nothing else: others may have written it.
func ParseRevision(text string) (Revision, error) {
	found := revisionPattern.FindStringSubmatch(text)
	if found == nil {
		return Revision{}, errors.New("this is no revision of a cluster file")
	}
	number, err := strconv.ParseUint(found[1], 10, 64)
	if err != nil {
		return Revision{}, err
	}
	at, err := time.Parse(time.RFC3339, found[2])
	if r := (Revision{number, at.UTC()}); err == nil && r.String() == text {
		return r, nil
	}
	return Revision{}, errors.New("this is no revision of a cluster file")
}

// count notes a change of the file. One that was lent is not counted: its borrower may be of an earlier release, and gives it back.
func (c *Cluster) count(now time.Time) {
	if c.Lease == nil {
		c.Revision = Revision{c.Revision.Number + 1, now.UTC().Truncate(time.Second)}
	}
}

// maxStamps bounds the stamps that a file keeps, the newest: those of a year or so.
const maxStamps = 64

// stamp tells one signed policy from another of the same version.
type stamp struct {
	Version uint64 `json:"version"`
	// Digest is the SHA-256 of the policy as it is signed.
	Digest []byte `json:"digest"`
}

// stampOf is that of a signed policy, whose signature it does not check.
func stampOf(envelope []byte) (stamp, error) {
	signed, err := hullmark.ParseSigned(envelope, len(envelope))
	if err != nil {
		return stamp{}, err
	}
	policy, err := measurements.ParsePolicy(signed.Policy)
	digest := sha256.Sum256(signed.Policy)
	return stamp{policy.Version, digest[:]}, err
}

// stamps are those of the policies that the file has signed, with the one that it holds and the one that follows.
func (c *Cluster) stamps(next []byte) ([]stamp, error) {
	all := slices.Clone(c.signed)
	for _, envelope := range [][]byte{c.Policy, next} {
		if len(envelope) == 0 {
			continue
		}
		s, err := stampOf(envelope)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].Version < s.Version {
			all = append(all, s)
		}
	}
	return all[max(0, len(all)-maxStamps):], nil
}

// checkStamps holds what was read from a file to what stamps makes.
func (c *Cluster) checkStamps() error {
	for i, s := range c.signed {
		if len(s.Digest) != sha256.Size || s.Version == 0 || i > 0 && s.Version <= c.signed[i-1].Version {
			return errors.New("signed: want ascending versions, each with a SHA-256")
		}
	}
	if len(c.signed) > maxStamps {
		return fmt.Errorf("signed: %d, want at most %d", len(c.signed), maxStamps)
	}
	return nil
}

// hasSigned reports whether a policy is one of this file's, or older than those that it remembers.
func (c *Cluster) hasSigned(s stamp) (bool, error) {
	known, err := c.stamps(nil)
	if err != nil || len(known) == 0 || s.Version < known[0].Version {
		return true, err
	}
	return slices.ContainsFunc(known, func(k stamp) bool { return k.Version == s.Version && bytes.Equal(k.Digest, s.Digest) }), nil
}

// Changes returns who changed the policy that the cluster has, if it is an operator's change of the one that this file holds, and a later
// one: TakeChanges takes it up before anything else is signed. It is empty if there is nothing to take up.
func (c *Cluster) Changes(inForce []byte) (by string, err error) {
	theirs, err := hullmark.ParseSigned(inForce, len(inForce))
	if err != nil || theirs.Changed == nil || len(c.Policy) == 0 {
		return "", nil // CheckCopy judges it.
	}
	policy, err := measurements.OpenPolicy(inForce, c.ID())
	if err != nil {
		return "", nil
	}
	last, err := c.OpenPolicy()
	if err != nil {
		return "", err
	}
	ours, err := hullmark.ParseSigned(c.Policy, len(c.Policy))
	if err != nil {
		return "", err
	}
	if !theirs.FollowsSame(ours) || policy.Version <= last.Version {
		return "", nil
	}
	changer, _ := theirs.Changer()
	return changer.Name, nil
}

// TakeChanges puts what an operator changed (Changes) in the place of the policy that the file holds, with its documents.
func (c *Cluster) TakeChanges(inForce []byte, documents map[measurements.DocumentID][]byte) (err error) {
	if c.signed, err = c.stamps(inForce); err != nil {
		return err
	}
	return c.hold(inForce, documents)
}

// CheckCopy refuses to go on with a file of which another copy was used since: ErrOlderCopy. inForce is the policy that the cluster has,
// in its signed form; what counts of it is signed. noted is what whoever brought it said of his copy, which people are told if it is a
// Revision. A policy that no root of this cluster signed is replaced like any other. If the newest copy is lost, a policy may follow what
// that one signed (checkGoesOn). A file that was lent signs none, and is no copy of the newest.
func (c *Cluster) CheckCopy(inForce []byte, noted string, newestLost bool) error {
	if c.Lease != nil {
		return nil
	}
	signer, err := measurements.PolicySigner(inForce)
	if err != nil {
		return nil
	}
	policy, err := measurements.OpenPolicy(inForce, signer)
	if err != nil {
		return nil
	}
	roots, err := c.Roots()
	if err != nil {
		return err
	}
	if !slices.Contains(roots, signer) {
		return c.checkSuperseded(policy, signer)
	}
	last, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	s, err := stampOf(inForce)
	if err != nil {
		return err
	}
	switch own, err := c.hasSigned(s); {
	case err != nil:
		return err
	case own && policy.Version <= last.Version:
		return nil
	case newestLost:
		return checkGoesOn(last, policy, noted)
	case policy.Version > last.Version:
		return fmt.Errorf("%w: the cluster has policy version %d%s, and %s has version %d; next: %s", ErrOlderCopy, policy.Version, broughtBy(noted), c.thisCopy(), last.Version, useNewest)
	}
	if changer, ok := measurements.PolicyChanger(inForce); ok {
		return fmt.Errorf("%w: the cluster has policy version %d, which operator %s changed, and %s changed the one before, too; "+
			"next: make that change here as well, if it is to stay, and push with --newest-lost", ErrOlderCopy, policy.Version, changer.Name, c.thisCopy())
	}
	return fmt.Errorf("%w: the cluster has a policy version %d%s that %s did not sign; next: %s", ErrOlderCopy, policy.Version, broughtBy(noted), c.thisCopy(), useNewest)
}

// checkGoesOn refuses a copy whose policy cannot follow the one in force, which a copy signed that is lost: its version has to be higher,
// and it must not take back what a policy never takes back (measurements.Policy): whom and what the lost copy shut out would be let in
// again, of one rotation there would be two sets of keys, and workers would stay with the Kubernetes CA that the lost copy brought them.
func checkGoesOn(policy, inForce measurements.Policy, noted string) error {
	var want string
	switch {
	case policy.Version <= inForce.Version:
		want = "a higher one"
	case policy.MinimumSVN < inForce.MinimumSVN:
		want = fmt.Sprintf("minimumSVN %d or more", inForce.MinimumSVN)
	case policy.OperatorsFrom < inForce.OperatorsFrom:
		want = fmt.Sprintf("operatorsFrom %d or more", inForce.OperatorsFrom)
	case policy.Keys != inForce.Keys && policy.Rotation <= inForce.Rotation:
		want = fmt.Sprintf("rotation %d or more", inForce.Rotation+1)
	case policy.KubernetesCA == (hullmark.CADigest{}) && inForce.KubernetesCA != (hullmark.CADigest{}):
		want = "any kubernetesCA, in whose place the digest of its own is signed"
	default:
		return nil
	}
	return fmt.Errorf("%w: the cluster has policy version %d%s; next: give the policy of this copy %s (hullmark policy show -o json, hullmark policy sign)", ErrOlderCopy, inForce.Version, broughtBy(noted), want)
}

// useNewest is what to do with an older copy.
const useNewest = "use the newest copy, and make there what was changed in this one; if it is lost, hullmark policy push --newest-lost goes on with this one"

// checkSuperseded refuses a file whose root has handed over to the one that signs by now: join services take nothing of the earlier one.
func (c *Cluster) checkSuperseded(policy measurements.Policy, signer hullmark.ClusterRoot) error {
	if roots, err := joinservice.RootsOf(policy, signer); err != nil || !slices.Contains(roots, c.ID()) {
		return nil
	}
	return fmt.Errorf("%w: the cluster's root is %s by now, and this is a copy from before it was exchanged; next: use the newest one", ErrOlderCopy, signer)
}

// thisCopy names the file that was opened.
func (c *Cluster) thisCopy() string {
	if c.Revision.Number == 0 {
		return "this copy"
	}
	return "this copy, " + c.Revision.String() + ","
}

// broughtBy says which copy brought a policy, if that is known.
func broughtBy(noted string) string {
	r, err := ParseRevision(noted)
	if err != nil {
		return ""
	}
	return ", brought by " + r.String()
}
