package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice/keys"
)

// RotateKeyset gives the keyset one more generation, which serves new disks, and signs a policy by which control planes are to hold it. Disks keep the
// generation that they were formatted under. A keeper wraps the new keyset first, reached by access.
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
		if err := c.SetKeeper(ctx, access(*k), url, k.Secret, k.CA); err != nil {
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
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	if policy.Version == 0 {
		return errors.New("the cluster has no policy yet: there is no control plane that could hold other keys (hullmark init makes the first)")
	}
	policy.Version++
	policy.Rotation++
	return c.SetPolicy(policy)
}

// rotationFile says of which rotation the keys are that a control plane holds, in decimal.
func (c *Cluster) rotationFile() (*wire.File, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	return &wire.File{Path: hullmark.RotationFile, Content: strconv.AppendUint(nil, policy.Rotation, 10), Mode: 0o644}, nil
}
