package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice/keys"
)

// Keeper is what control planes need to have an external keeper open their keyset (docs/keepers.md).
type Keeper struct {
	// Sealed is the keyset as the keeper wrapped it, keys.Access.Seal's document.
	Sealed []byte
	// Generation is the keyset's newest in Sealed.
	Generation uint32
	// Secret is what a control plane shows the keeper; it may be empty.
	Secret hullmark.Secret
	// CA holds, as PEM, the keeper's own authorities; it may be empty.
	CA []byte
}

// keeperDoc is a Keeper as the cluster file holds it.
type keeperDoc struct {
	Sealed     []byte `json:"sealed"`
	Generation uint32 `json:"generation"`
	Secret     []byte `json:"secret,omitempty"`
	CA         []byte `json:"ca,omitempty"`
}

// SetKeeper has the keeper at url wrap the keyset, and counts a rotation: control planes are to hold it in that
// form only. Secret and CA are what they show the keeper and know it by. The error is that of keys.Access.Seal.
func (c *Cluster) SetKeeper(ctx context.Context, access keys.Access, url string, secret hullmark.Secret, ca []byte) error {
	if err := c.wrap(ctx, access, url, secret, ca); err != nil {
		return err
	}
	return c.recount()
}

// DropKeeper has control planes hold the keyset in clear, on their encrypted disks, and counts a rotation.
func (c *Cluster) DropKeeper() error {
	c.Keeper = nil
	return c.recount()
}

// recount counts a rotation, once there is a control plane that may hold something else.
func (c *Cluster) recount() error {
	if len(c.Policy) == 0 {
		return nil
	}
	return c.demandRotation()
}

// wrap has the keeper at url wrap the keyset.
func (c *Cluster) wrap(ctx context.Context, access keys.Access, url string, secret hullmark.Secret, ca []byte) error {
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	sealed, err := access.Seal(ctx, c.Keys, policy.First(c.ID()), url)
	if err != nil {
		return fmt.Errorf("wrap the keyset: %w", err)
	}
	c.Keeper = &Keeper{Sealed: sealed, Generation: c.Keys.Current(), Secret: secret, CA: ca}
	return nil
}

// keysetFiles returns the keyset as a control plane's disk holds it, in clear
// or wrapped, with what opens it. The keeper's files are there, empty, without
// a keeper too, so that none of an earlier one stays.
func (c *Cluster) keysetFiles() ([]*wire.File, error) {
	keeper := c.Keeper
	if keeper == nil {
		inClear, err := c.Keys.Encode()
		if err != nil {
			return nil, err
		}
		defer clear(inClear)
		keeper = &Keeper{Sealed: inClear, Generation: c.Keys.Current()}
	}
	if keeper.Generation != c.Keys.Current() {
		return nil, errors.New("the keyset has a generation that its keeper did not wrap; set the keeper again (hullmark cluster keeper set)")
	}
	return []*wire.File{
		nodeFile(hullmark.KeysetFile, bytes.Clone(keeper.Sealed)),
		nodeFile(hullmark.KeeperSecretFile, bytes.Clone(keeper.Secret.Expose())),
		nodeFile(hullmark.KeeperAuthoritiesFile, keeper.CA),
	}, nil
}

func (k *Keeper) encode() *keeperDoc {
	if k == nil {
		return nil
	}
	return &keeperDoc{Sealed: k.Sealed, Generation: k.Generation, Secret: k.Secret.Expose(), CA: k.CA}
}

func (d *keeperDoc) decode() *Keeper {
	if d == nil {
		return nil
	}
	return &Keeper{Sealed: d.Sealed, Generation: d.Generation, Secret: hullmark.NewSecret(d.Secret), CA: d.CA}
}
