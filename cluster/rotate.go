package cluster

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// RotateKeyset gives the keyset one more generation, which serves new disks, and signs a policy by which control planes are to
// hold it. Disks keep the generation that they were formatted under. A keeper wraps the new keyset first, reached by access.
func (c *Cluster) RotateKeyset(ctx context.Context, access func(Keeper) keys.Access) error {
	next, err := c.Keys.Next(rand.Reader)
	if err != nil {
		return fmt.Errorf("rotate the keyset: %w", err)
	}
	c.Keys = next
	if k := c.Keeper; k != nil {
		url, err := keys.KeeperURL(k.Sealed)
		if err != nil {
			return fmt.Errorf("rotate the keyset: %w", err)
		}
		if err := c.wrap(ctx, access(*k), url, k.Secret, k.CA); err != nil {
			return fmt.Errorf("rotate the keyset: %w", err)
		}
	}
	return c.demandRotation()
}

// RotateOnlineCA exchanges the authority of join services' certificates, and signs a policy by which control planes are to hold it.
func (c *Cluster) RotateOnlineCA() error {
	if err := c.makeOnline(); err != nil {
		return fmt.Errorf("rotate the online CA: %w", err)
	}
	return c.demandRotation()
}

func (c *Cluster) demandRotation() error {
	policy, err := c.nextRotation()
	if err != nil {
		return err
	}
	return c.SetPolicy(policy)
}

// nextRotation returns the policy by which control planes are to hold other keys, which get another blind.
func (c *Cluster) nextRotation() (measurements.Policy, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return policy, err
	}
	if policy.Version == 0 {
		return policy, errors.New("the cluster has no policy yet: there is no control plane that could hold other keys (hullmark init makes the first)")
	}
	if c.Lease != nil {
		return policy, ErrLent
	}
	policy.Version++
	policy.Rotation++
	c.Blind, err = hullmark.NewBlind(rand.Reader)
	return policy, err
}

// RotateRoot gives the cluster another root, to which the present one hands over, with an online CA and a policy of its own.
// The present root's key is gone then; nodes whose configuration names it obey the new one until ForgetRoot. What is bound to
// the cluster's first root stays as it is.
func (c *Cluster) RotateRoot() error { return c.rotateRoot((*Cluster).makeRoot) }

// RotateRootTo is RotateRoot to a root whose key is elsewhere. It has to be another than all that nodes obey; else nothing is signed.
func (c *Cluster) RotateRootTo(next RemoteRoot) error {
	return c.rotateRoot(func(c *Cluster) error {
		if err := c.checkNext(next); err != nil {
			return err
		}
		return c.takeRoot(next)
	})
}

// checkNext refuses to hand over to a root that nodes obey already.
func (c *Cluster) checkNext(next RemoteRoot) error {
	key, err := newRemoteKey(next.Public)
	if err != nil {
		return err
	}
	spki, err := x509.MarshalPKIXPublicKey(key.public)
	if err != nil {
		return err
	}
	obeyed, err := c.Roots()
	if err != nil {
		return err
	}
	if root := hullmark.ClusterRootOf(spki); slices.Contains(obeyed, root) {
		return fmt.Errorf("%s is the present root, or one before it that nodes still obey; next: name another key", root)
	}
	return nil
}

func (c *Cluster) rotateRoot(makeRoot func(*Cluster) error) error {
	policy, err := c.nextRotation()
	if err != nil {
		return err
	}
	if len(policy.CrossCertificates) >= 2*hullmark.MaxCrossCertificates {
		return fmt.Errorf("rotate the root: %d roots before the present one are still obeyed, and no more may be; next: give up the oldest (hullmark cluster forget-root)", hullmark.MaxCrossCertificates)
	}
	earlier := c.Root.Certificate
	earlierKey, err := c.rootKey()
	if err != nil {
		return err
	}
	if err := makeRoot(c); err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	crossCertificate, err := channel.NewCrossCertificate(earlier, earlierKey, c.Root.Certificate.PublicKey)
	if err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	policy.FirstRoot = policy.First(hullmark.ClusterRootOf(earlier.RawSubjectPublicKeyInfo))
	policy.CrossCertificates = slices.Concat([][]byte{crossCertificate.Raw, earlier.Raw}, policy.CrossCertificates)
	if policy.Keys, err = c.keysDigest(policy.Rotation); err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	return c.setPolicy(policy, false)
}

// OldestRoot returns the oldest root that nodes' configurations may name; it is the present one if no other may be.
func (c *Cluster) OldestRoot() (hullmark.ClusterRoot, error) {
	roots, err := c.Roots()
	if err != nil {
		return hullmark.ClusterRoot{}, err
	}
	return roots[len(roots)-1], nil
}

// Roots returns the roots that nodes' configurations may name, the present one first.
func (c *Cluster) Roots() ([]hullmark.ClusterRoot, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	return joinservice.RootsOf(policy, c.ID())
}

// ForgetRoot gives the oldest root up that is not the present one: nodes whose configuration names it are refused from now on,
// and obey nobody.
func (c *Cluster) ForgetRoot() error {
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	if len(policy.CrossCertificates) == 0 {
		return errors.New("no root but the present one is obeyed")
	}
	policy.Version++
	policy.CrossCertificates = policy.CrossCertificates[:len(policy.CrossCertificates)-2]
	return c.setPolicy(policy, false)
}

// addRotation appends what says of which rotation the keys are.
func (c *Cluster) addRotation(files []*wire.File) ([]*wire.File, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	rotation := hullmark.KeyRotation{Number: policy.Rotation, Blind: c.Blind}
	return append(files, nodeFile(hullmark.RotationFile, rotation.Encode())), nil
}

// keysDigest commits to what control planes hold by a policy of that rotation.
func (c *Cluster) keysDigest(rotation uint64) (hullmark.KeysDigest, error) {
	files, err := c.keyFiles()
	if err != nil {
		return hullmark.KeysDigest{}, err
	}
	defer wire.WipeFiles(files)
	return hullmark.DigestKeys(hullmark.KeyRotation{Number: rotation, Blind: c.Blind}, wire.ContentOf(files)), nil
}
