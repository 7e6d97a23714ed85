package joinservice

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/measurements"
)

// Term is one holding of a Lease: an earlier one of the same machine is another.
type Term struct {
	// EKID is the machine that joins.
	EKID hullmark.EKID
	// Number counts the terms.
	Number int32
}

// Lease is the cluster's one place for a control plane that joins. It is free
// again when its holder has not renewed it for a while. An unreachable keeper is
// a *hullmark.Condition with Retry.
type Lease interface {
	// Acquire gives the place to a machine, which may hold it already; while another one
	// does, the error is a *hullmark.Condition of code busy.
	Acquire(ctx context.Context, node hullmark.EKID) (Term, error)
	// Renew keeps the place; ErrConflict says that the term is over.
	Renew(ctx context.Context, t Term) error
	// Release gives the place up at once; ErrConflict says that the term was over.
	Release(ctx context.Context, t Term) error
}

// ControlPlanes lets further control planes join. All fields are needed.
type ControlPlanes struct {
	// Lease is taken for the whole of such an exchange.
	Lease Lease
	// RemoveMember removes from etcd the members in the place of the node that joins under a name, at an address.
	RemoveMember func(ctx context.Context, name string, address netip.Addr) error
	// Files returns what a control plane keeps on its disk, as this one does, but the policy and its documents.
	Files func() ([]*wire.File, error)
	// Rotated returns those of Files that come with a rotation. Rotation is its number, and Keys commits to what it exchanged
	// (measurements.Policy).
	Rotated  func() ([]*wire.File, error)
	Rotation uint64
	Keys     hullmark.KeysDigest
}

// heldLease is the held Lease of one exchange.
type heldLease struct {
	lease Lease
	term  Term
	stop  context.CancelFunc
	done  sync.WaitGroup
	// mutex serialises renewals: of two at once, one would lose to the other and take that for the end of the term.
	mutex sync.Mutex
}

func (p *heldLease) renew(ctx context.Context) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.lease.Renew(ctx, p.term)
}

// takeLease takes the Lease of a control plane that joins, once, and keeps it until giveLeaseBack. ctx bounds the taking alone.
func (p *proved) takeLease(ctx context.Context) error {
	if p.held != nil {
		return nil
	}
	lease := p.service.ControlPlanes.Lease
	term, err := lease.Acquire(ctx, p.claims.EKID)
	if err != nil {
		return err
	}
	renewing, stop := context.WithCancel(p.ctx)
	p.held = &heldLease{lease: lease, term: term, stop: stop}
	p.held.done.Go(func() { p.renewLease(renewing) })
	return nil
}

// renewLease renews the Lease until ctx ends or it is another's.
func (p *proved) renewLease(ctx context.Context) {
	tick := time.NewTicker(p.service.Timeouts.Renew)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := p.held.renew(ctx)
		if ctx.Err() != nil {
			return
		}
		p.warn("the Lease of a control plane that joins is not renewed", err)
		if errors.Is(err, ErrConflict) {
			return
		}
	}
}

// giveLeaseBack ends the renewal. The Lease is free at once, unless the node may go on to join without its verifier: then it is
// once its time is over.
func (p *proved) giveLeaseBack(outcome error) {
	if p.held == nil {
		return
	}
	p.held.stop()
	p.held.done.Wait()
	var reported *NodeError
	if p.proceeded && outcome != nil && !errors.As(outcome, &reported) {
		return
	}
	if err := p.held.lease.Release(p.ctx, p.held.term); !errors.Is(err, ErrConflict) {
		p.warn("the Lease of a control plane that joins is not given up", err)
	}
}

// checkRotation is an error unless this service holds the very keys that the policy commits to. While it lacks some that the
// operator has exchanged, a control plane would be given old ones, and a new disk one of them; any other were never signed,
// whatever number they have.
func (s *Service) checkRotation(policy measurements.Policy) error {
	held, wanted := s.ControlPlanes.Rotation, policy.Rotation
	switch {
	case held < wanted:
		return &hullmark.Condition{
			Code: "keys-outdated", Step: "ATTEST", Title: "this join service lacks keys that the operator has exchanged, and could only give old ones",
			Expected: fmt.Sprintf("rotation %d", wanted), Got: fmt.Sprintf("rotation %d", held), Retry: true,
			Next: "wait for a control plane that has the new keys; the first gets them by hullmark recover",
		}
	case held > wanted || s.ControlPlanes.Keys != policy.Keys:
		return &hullmark.Condition{
			Code: "keys-unsigned", Step: "ATTEST", Title: "this join service holds other keys than those that the signed policy commits to, and gives them to nobody",
			Expected: fmt.Sprintf("rotation %d, digest %s", wanted, policy.Keys), Got: fmt.Sprintf("rotation %d, digest %s", held, s.ControlPlanes.Keys), Retry: true,
			Next: "recover this control plane with the newest cluster file (hullmark recover); if that does not help, find out who wrote to its disk",
		}
	}
	return nil
}

// addRotated adds to Proceed the keys of the policy's rotation, with the policy itself, which is of the same root as they are, for a
// control plane that comes back. A service that can read no record may not know the newest policy either.
func (o *opened) addRotated(proceed *wire.Proceed) error {
	if o.unchecked() || o.policy.policy.Rotation == 0 {
		return nil
	}
	files, err := o.service.ControlPlanes.Rotated()
	if err != nil {
		return fmt.Errorf("the keys of a control plane that comes back: %w", err)
	}
	proceed.Files = append(append(proceed.Files, files...), o.policy.files()...)
	return nil
}

// makeRoom removes what an earlier machine left in the place of this control plane, and returns the address at which it is to serve.
func (o *opened) makeRoom() (netip.Addr, error) {
	name := o.admission.Member.Name
	addresses, missing := o.service.Settings.NodeAddresses(o.addresses.granted)
	if missing != "" {
		return netip.Addr{}, o.addressMissing(missing)
	}
	own := addresses[0]
	if err := o.takeLease(o.ctx); err != nil {
		return netip.Addr{}, err
	}
	if err := o.service.ControlPlanes.RemoveMember(o.ctx, name, own); err != nil {
		return netip.Addr{}, o.kept(err)
	}
	if err := o.service.RemoveNode(o.ctx, name); err != nil {
		return netip.Addr{}, err
	}
	// What was removed took its time: whoever has the place by now goes first.
	if err := o.held.renew(o.ctx); errors.Is(err, ErrConflict) {
		return netip.Addr{}, &hullmark.Condition{
			Code: "busy", Step: "EPOCH", Title: "another control plane joins by now", Retry: true, Next: "wait: the node tries again by itself",
		}
	} else if err != nil {
		return netip.Addr{}, err
	}
	return own, nil
}

// addressMissing is the condition of a machine without an address of a family that the cluster's networks have. An address by
// router advertisement or DHCP may be some moments late.
func (o *opened) addressMissing(family Family) *hullmark.Condition {
	for _, r := range o.addresses.refused {
		if FamilyOf(r.Address) == family {
			return r.Condition
		}
	}
	return &hullmark.Condition{
		Code: "address-missing", Step: "EPOCH", Title: fmt.Sprintf("the node named no %s address at which the cluster's other nodes could reach it", family),
		Got: fmt.Sprint(o.disk.Addresses), Next: "give the machine one, by DHCP, router advertisement or in its node config; it tries again by itself", Retry: len(o.service.Settings.families()) > 1,
	}
}

// controlPlaneFiles returns what a control plane gets: this one's own files, with the policy of the exchange.
func (o *opened) controlPlaneFiles() ([]*wire.File, error) {
	files, err := o.service.ControlPlanes.Files()
	if err != nil {
		return nil, err
	}
	return append(files, o.policy.files()...), nil
}

// files returns a policy as a control plane keeps it.
func (e *verified) files() []*wire.File {
	files := []*wire.File{{Path: hullmark.PolicyFile, Content: e.signed.Envelope, Mode: 0o644}}
	for id, document := range e.signed.Documents {
		files = append(files, &wire.File{Path: hullmark.DocumentsFolder + "/" + id.String() + ".json", Content: document, Mode: 0o644})
	}
	return files
}

// checkSize refuses what the node would refuse to read.
func checkSize(proceed *wire.Proceed) error {
	message := &wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: proceed}}
	err := wire.CheckFromVerifier(message)
	if size := proto.Size(message); err == nil && size > wire.MaxFromVerifier {
		err = fmt.Errorf("%d bytes, at most %d are allowed", size, wire.MaxFromVerifier)
	}
	if err == nil {
		return nil
	}
	return &hullmark.Condition{
		Code: "material-too-large", Step: "EPOCH", Title: "what the node needs to join does not fit into a message: " + err.Error(),
		Next: "remove documents of old releases from the policy, or files from the node's pool",
	}
}
