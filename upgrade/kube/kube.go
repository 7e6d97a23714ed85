// Package kube is a real cluster for package upgrade: Kubernetes' nodes, pods and budgets, machines' records, and the upgrade's own
// objects, by the API.
package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
)

// leaseLasts is what the Lease says for people; package upgrade has the number that counts.
const leaseLasts = 40 * time.Second

// Cluster is a cluster whose API a configuration names. It is safe for concurrent use. A call that the API did not answer returns a
// *hullmark.Condition with Retry.
type Cluster struct {
	api *registry.Upgrades
	// probe asks the API server of a control plane whether it is ready; nil goes by what its kubelet says of it.
	probe func(ctx context.Context, address netip.Addr) error

	mutex sync.Mutex
	// policy is the one that was read last, with its documents.
	policy pushed
}

// pushed is a policy, which nobody has verified.
type pushed struct {
	envelope  []byte
	policy    measurements.Policy
	documents map[hullmark.DocumentID]measurements.Document
}

var _ upgrade.Cluster = (*Cluster)(nil)

// New returns the cluster whose API config names. It asks nothing yet.
func New(config *rest.Config) (*Cluster, error) {
	api, err := registry.NewUpgrades(config)
	return &Cluster{api: api}, err
}

// Request returns what the operator wants.
func (c *Cluster) Request(ctx context.Context) (upgrade.Request, upgrade.Version, error) {
	text, version, err := c.api.Text(ctx, registry.UpgradeRequest)
	if err != nil || version == "" {
		return upgrade.Request{}, "", err
	}
	r, err := upgrade.ParseRequest([]byte(text))
	return r, upgrade.Version(version), err
}

// StoreRequest replaces the request whose version is given. It is the operator's to do.
func (c *Cluster) StoreRequest(ctx context.Context, r upgrade.Request, v upgrade.Version) error {
	text, err := r.Encode()
	if err != nil {
		return err
	}
	_, err = c.api.StoreText(ctx, registry.UpgradeRequest, string(text), joinservice.Version(v))
	return conflict(err)
}

// State returns how far the last upgrade is.
func (c *Cluster) State(ctx context.Context) (upgrade.State, upgrade.Version, error) {
	text, version, err := c.api.Text(ctx, registry.UpgradeState)
	if err != nil || version == "" {
		return upgrade.State{}, "", err
	}
	s, err := upgrade.ParseState([]byte(text))
	return s, upgrade.Version(version), err
}

// StoreState replaces the state.
func (c *Cluster) StoreState(ctx context.Context, s upgrade.State, v upgrade.Version) (upgrade.Version, error) {
	text, err := s.Encode()
	if err != nil {
		return "", err
	}
	stored, err := c.api.StoreText(ctx, registry.UpgradeState, string(text), joinservice.Version(v))
	return upgrade.Version(stored), conflict(err)
}

// Lease returns who is the engine.
func (c *Cluster) Lease(ctx context.Context) (upgrade.Lease, upgrade.Version, error) {
	holder, term, version, err := c.api.Holder(ctx)
	return upgrade.Lease{Holder: holder, Term: uint64(max(term, 0))}, upgrade.Version(version), err
}

// StoreLease replaces that.
func (c *Cluster) StoreLease(ctx context.Context, l upgrade.Lease, v upgrade.Version) (upgrade.Version, error) {
	if l.Term > math.MaxInt32 {
		return "", fmt.Errorf("the Lease has term %d, and the API keeps at most %d", l.Term, math.MaxInt32)
	}
	stored, err := c.api.StoreHolder(ctx, l.Holder, int32(l.Term), leaseLasts, joinservice.Version(v))
	return upgrade.Version(stored), conflict(err)
}

// Cordon keeps pods away from a node.
func (c *Cluster) Cordon(ctx context.Context, n upgrade.Node, id string) error {
	return conflict(c.api.SetCordon(ctx, n.Name, string(n.Version), id))
}

// Uncordon lets pods in again.
func (c *Cluster) Uncordon(ctx context.Context, n upgrade.Node) error {
	return conflict(c.api.SetCordon(ctx, n.Name, string(n.Version), ""))
}

// Evict has a pod end.
func (c *Cluster) Evict(ctx context.Context, p upgrade.Pod) error {
	err := c.api.Evict(ctx, p.Namespace, p.Name, p.UID)
	if errors.Is(err, registry.ErrNoDisruption) {
		return fmt.Errorf("%w: %w", upgrade.ErrBudget, err)
	}
	return err
}

// Direct gives a node its direction.
func (c *Cluster) Direct(ctx context.Context, node hullmark.EKID, d hullmark.UpdateDirection, v upgrade.Version) error {
	return conflict(c.api.Direct(ctx, node, d, joinservice.Version(v)))
}

// conflict makes a records' conflict an upgrade's.
func conflict(err error) error {
	if errors.Is(err, joinservice.ErrConflict) {
		return fmt.Errorf("%w: %w", upgrade.ErrConflict, err)
	}
	return err
}

// readPolicy returns the policy that was pushed last, read anew if it has changed.
func (c *Cluster) readPolicy(ctx context.Context) (pushed, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	envelope, encoded, err := c.api.Newest(ctx, c.policy.envelope)
	if err != nil || envelope == nil {
		return c.policy, err
	}
	next := pushed{envelope: bytes.Clone(envelope), documents: map[hullmark.DocumentID]measurements.Document{}}
	signer, err := measurements.PolicySigner(envelope)
	if err == nil {
		next.policy, err = measurements.OpenPolicy(envelope, signer)
	}
	if err != nil {
		return pushed{}, fmt.Errorf("the policy in the cluster: %w", err)
	}
	for id, text := range encoded {
		if next.documents[id], err = measurements.Parse(text); err != nil {
			return pushed{}, fmt.Errorf("document %s in the cluster: %w", id, err)
		}
	}
	c.policy = next
	return next, nil
}
