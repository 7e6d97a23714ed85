package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// claimPatience is how long a machine's Node is not Ready before its claims of addresses yield: by then Kubernetes gives its pods to others, too.
const claimPatience = 5 * time.Minute

// absences are since when this process has seen machines' Nodes not Ready, by its own clock. What others wrote about times is compared with itself alone.
type absences struct {
	duration time.Duration
	now      func() time.Time

	mutex sync.Mutex
	of    map[hullmark.NodeID]*watched
}

// long reports whether a machine's Node was seen in one state for as long as a claim lasts. A state is empty as long as the Node is Ready.
func (a *absences) long(node hullmark.NodeID, state string) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if state == "" {
		delete(a.of, node)
		return false
	}
	if a.of == nil {
		a.of = map[hullmark.NodeID]*watched{}
	}
	if a.of[node] == nil {
		a.of[node] = &watched{duration: a.duration, now: a.now}
	}
	return a.of[node].expired(state)
}

// ClaimAddress binds an address to one machine; see joinservice.Records.
func (r *Registry) ClaimAddress(ctx context.Context, address netip.Addr, node hullmark.NodeID) error {
	what := "claim the address " + address.String()
	object := &corev1.ConfigMap{ObjectMeta: meta(addressKind, AddressObject(address))}
	PutHolder(object, node)
	for range attempts {
		there, err := r.configMap(ctx, what, object.Name)
		if apierrors.IsNotFound(err) {
			_, err = call(ctx, r, what, func(ctx context.Context) (*corev1.ConfigMap, error) { return r.configMaps.create(ctx, object) })
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
		if yields, err := r.yields(ctx, holder, address); err != nil {
			return err
		} else if !yields {
			return joinservice.AddressTaken(address, holder, node)
		}
		PutHolder(there, node)
		_, err = call(ctx, r, what, func(ctx context.Context) (*corev1.ConfigMap, error) {
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

// yields reports whether a machine's claims are another's to take: its Node has not been Ready for a while.
func (r *Registry) yields(ctx context.Context, holder hullmark.NodeID, address netip.Addr) (bool, error) {
	m, version, err := r.Load(ctx, holder)
	if err != nil {
		return false, fmt.Errorf("who holds the address %s: %w", address, err)
	}
	state := "no record"
	if version != "" {
		if state, err = r.absence(ctx, m.Name); err != nil {
			return false, err
		}
	}
	return r.absent.long(holder, state), nil
}

// absence describes the state of a Node that is not Ready, so that it is another once the Node was Ready in between; empty if it is Ready.
func (r *Registry) absence(ctx context.Context, name string) (string, error) {
	node, err := call(ctx, r, "read the Node "+name, func(ctx context.Context) (*corev1.Node, error) {
		return r.nodes.get(ctx, name)
	})
	switch {
	case apierrors.IsNotFound(err):
		return "no Node", nil
	case err != nil:
		return "", err
	case isReady(node):
		return "", nil
	}
	state := "Node " + string(node.UID)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			state += fmt.Sprintf(" %s since %d", c.Status, c.LastTransitionTime.UnixNano())
		}
	}
	return state, nil
}

// ReleaseAddress gives a machine's claim up; see joinservice.Records.
func (r *Registry) ReleaseAddress(ctx context.Context, address netip.Addr, node hullmark.NodeID) error {
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
	_, err = call(ctx, r, what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.configMaps.deleteOnly(ctx, there.Name, metav1.Preconditions{UID: &there.UID, ResourceVersion: &there.ResourceVersion})
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It is another's by now.
	}
	return err
}

// releaseAll gives up what a machine's record has.
func (r *Registry) releaseAll(ctx context.Context, m joinservice.Machine) error {
	var failed []error
	for _, a := range m.Addresses {
		failed = append(failed, r.ReleaseAddress(ctx, a, m.Node))
	}
	return errors.Join(failed...)
}
