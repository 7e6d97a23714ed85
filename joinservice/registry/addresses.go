package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// ClaimAddress binds an address to one machine; see joinservice.Records.
func (r *Machines) ClaimAddress(ctx context.Context, address netip.Addr, node hullmark.EKID) error {
	what := "claim the address " + address.String()
	object := &corev1.ConfigMap{ObjectMeta: meta(addressKind, AddressObject(address))}
	PutHolder(object, node)
	for range attempts {
		there, err := r.configMap(ctx, what, object.Name)
		if apierrors.IsNotFound(err) {
			_, err = call(ctx, r.connection, what, func(ctx context.Context) (*corev1.ConfigMap, error) { return r.configMaps.create(ctx, object) })
			if !apierrors.IsAlreadyExists(err) {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		holder, err := ParseHolder(there)
		if err != nil || holder == node {
			return err
		}
		if yields, err := r.yields(ctx, address, holder, node); err != nil {
			return err
		} else if !yields {
			return joinservice.AddressTaken(address, holder, node)
		}
		PutHolder(there, node)
		_, err = call(ctx, r.connection, what, func(ctx context.Context) (*corev1.ConfigMap, error) {
			return r.configMaps.update(ctx, there.Name, there)
		})
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return &hullmark.Condition{
		Code: joinservice.CodeContended, Title: what + ": others changed the claim again and again", Retry: true, Next: "wait; if this stays, look for machines that share the address",
	}
}

// yields reports whether a machine's claim of an address is another's to take. A claim of nobody's, without a record, is what a worker has.
func (r *Machines) yields(ctx context.Context, address netip.Addr, holder, node hullmark.EKID) (bool, error) {
	from, _, err := r.Load(ctx, holder)
	if err != nil {
		return false, fmt.Errorf("who holds the address %s: %w", address, err)
	}
	to, _, err := r.Load(ctx, node)
	if err != nil {
		return false, fmt.Errorf("who asks for the address %s: %w", address, err)
	}
	state, err := r.state(ctx, holder)
	if err != nil {
		return false, err
	}
	return joinservice.ClaimYields(from.Role, to.Role, r.absent.asked(holder, state)), nil
}

// ReleaseAddress gives a machine's claim up; see joinservice.Records.
func (r *Machines) ReleaseAddress(ctx context.Context, address netip.Addr, node hullmark.EKID) error {
	what := "give up the address " + address.String()
	there, err := r.configMap(ctx, what, AddressObject(address))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if holder, err := ParseHolder(there); err != nil || holder != node {
		return err
	}
	_, err = call(ctx, r.connection, what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.configMaps.deleteOnly(ctx, there.Name, metav1.Preconditions{UID: &there.UID, ResourceVersion: &there.ResourceVersion})
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It is another's by now.
	}
	return err
}

// releaseAll gives up what a machine's record has.
func (r *Machines) releaseAll(ctx context.Context, m joinservice.Machine) error {
	var failed []error
	for _, a := range m.Addresses {
		failed = append(failed, r.ReleaseAddress(ctx, a, m.EKID))
	}
	return errors.Join(failed...)
}
