package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// Load returns a machine's record and its version; see joinservice.Records.
func (r *Machines) Load(ctx context.Context, node hullmark.EKID) (joinservice.Machine, joinservice.Version, error) {
	object, err := r.configMap(ctx, "read the record of machine "+node.String(), MachineObject(node))
	if apierrors.IsNotFound(err) {
		return joinservice.Machine{EKID: node}, "", nil
	}
	if err != nil {
		return joinservice.Machine{}, "", err
	}
	m, err := ParseMachine(object)
	if err != nil {
		return joinservice.Machine{}, "", err
	}
	return m, joinservice.Version(object.ResourceVersion), nil
}

func (r *connection) configMap(ctx context.Context, what, name string) (*corev1.ConfigMap, error) {
	return call(ctx, r, what, func(ctx context.Context) (*corev1.ConfigMap, error) {
		return r.configMaps.get(ctx, name)
	})
}

// Store replaces the record whose version is given; see joinservice.Records.
func (r *Machines) Store(ctx context.Context, m joinservice.Machine, v joinservice.Version) (joinservice.Version, error) {
	object := &corev1.ConfigMap{ObjectMeta: meta(nodeKind, MachineObject(m.EKID))}
	if err := PutMachine(object, m); err != nil {
		return "", err
	}
	stored, err := call(ctx, r.connection, "store the record of machine "+m.EKID.String(), func(ctx context.Context) (*corev1.ConfigMap, error) {
		if v == "" {
			return r.configMaps.create(ctx, object)
		}
		object.ResourceVersion = string(v)
		return r.configMaps.update(ctx, object.Name, object)
	})
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || v != "" && apierrors.IsNotFound(err) {
		return "", joinservice.ErrConflict
	}
	if err != nil {
		return "", err
	}
	return joinservice.Version(stored.ResourceVersion), nil
}

// Claim binds a node's name to one machine; see joinservice.Records. Only Delete frees a name. One that rests since is kept for
// who claims it first, be it its former holder, and is his once that is over (name-rests).
func (r *Machines) Claim(ctx context.Context, name string, node hullmark.EKID) error {
	if !hullmark.ValidNodeName(name) {
		return fmt.Errorf("claim a name for machine %s: %q is no node's name", node, name)
	}
	fixed := true
	object := &corev1.ConfigMap{ObjectMeta: meta(nameKind, NameObject(name)), Immutable: &fixed}
	PutHolder(object, node)
	_, err := call(ctx, r.connection, "claim the name "+name, func(ctx context.Context) (*corev1.ConfigMap, error) {
		return r.configMaps.create(ctx, object)
	})
	if err == nil {
		return r.checkRest(ctx, name)
	}
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	holder, found, err := r.holder(ctx, name)
	switch {
	case err != nil:
		return err
	case !found:
		return &hullmark.Condition{Code: "name-released", Title: "the name " + name + " was given up just now", Next: "wait; if this repeats, look for a second machine with this TPM", Retry: true}
	case holder != node:
		return joinservice.NameTaken(name, holder, node)
	}
	return r.checkRest(ctx, name)
}

// holder returns the machine that claimed a name.
func (r *Machines) holder(ctx context.Context, name string) (node hullmark.EKID, found bool, err error) {
	object, err := r.configMap(ctx, "read who holds the name "+name, NameObject(name))
	if apierrors.IsNotFound(err) {
		return hullmark.EKID{}, false, nil
	}
	if err != nil {
		return hullmark.EKID{}, false, err
	}
	node, err = ParseHolder(object)
	return node, err == nil, err
}

// List returns all machines' records, by identity. Records that cannot be read
// do not hide the others: they are named by the error, which comes beside them.
func (r *Machines) List(ctx context.Context) ([]joinservice.Machine, error) {
	var machines []joinservice.Machine
	var unread []error
	err := r.EachMachine(ctx, func(m joinservice.Machine, err error) {
		if err != nil {
			unread = append(unread, err)
			return
		}
		machines = append(machines, m)
	})
	if err != nil {
		return nil, err
	}
	return machines, errors.Join(unread...)
}

// EachMachine calls do with each machine's record, or with why it cannot be read. It keeps none of them.
func (r *Machines) EachMachine(ctx context.Context, do func(joinservice.Machine, error)) error {
	return r.eachConfigMap(ctx, "list the machines' records", r.configMaps, selector("="+nodeKind), func(object *corev1.ConfigMap) { do(ParseMachine(object)) })
}

// Delete forgets a machine: its token, its Node object, its claims of a name and of addresses, its place in a group and, last,
// its record, so that an interrupted removal can be run again. What is gone already is no error, and a name that another
// machine holds by now is left with its Node alone. While somebody may have a certificate for its name, which Delete returns
// the end of, the name rests: no certificate for it makes a Node, and no machine gets it. gone says that nobody can have one,
// whatever is recorded. The caller has made sure that the machine is not running: see NodeReady.
func (r *Machines) Delete(ctx context.Context, m joinservice.Machine, gone bool) (until time.Time, err error) {
	for range attempts {
		kept, version, err := r.Load(ctx, m.EKID)
		if err != nil {
			return time.Time{}, err
		}
		if version != "" {
			m = kept
		}
		if until, err = r.forget(ctx, m, gone); err != nil || version == "" {
			return until, err
		}
		// One that got a certificate approved meanwhile has another record by now.
		if err := r.deleteRecord(ctx, m.EKID, version); !apierrors.IsConflict(err) {
			return until, err
		}
	}
	return time.Time{}, contended(ctx, MachineObject(m.EKID))
}

// deleteRecord deletes the record whose version is given; another one is a conflict.
func (r *Machines) deleteRecord(ctx context.Context, node hullmark.EKID, v joinservice.Version) error {
	only := string(v)
	return r.remove(ctx, "delete the record of machine "+node.String(), func(ctx context.Context, name string) error {
		return r.configMaps.deleteOnly(ctx, name, metav1.Preconditions{ResourceVersion: &only})
	}, MachineObject(node))
}

// forget removes all that is kept of a machine but its record, and returns until when its name rests.
func (r *Machines) forget(ctx context.Context, m joinservice.Machine, gone bool) (until time.Time, err error) {
	if m.Token != "" {
		if err := r.tokens.Revoke(ctx, m.Token); err != nil {
			return time.Time{}, err
		}
	}
	holder, found, err := r.holder(ctx, m.Name)
	if err != nil {
		return time.Time{}, err
	}
	if m.Name != "" && (!found || holder == m.EKID) { // An earlier run may have given it up, for a shorter rest.
		if until, err = r.giveUp(ctx, m, gone); err != nil {
			return time.Time{}, err
		}
	}
	if err := r.releaseAll(ctx, m); err != nil {
		return time.Time{}, err
	}
	return until, r.leaveAll(ctx, m.EKID)
}

// giveUp lets a machine's name rest, if it has to, and deletes its Node and its claim.
func (r *Machines) giveUp(ctx context.Context, m joinservice.Machine, gone bool) (until time.Time, err error) {
	if gone {
		err = r.Free(ctx, m.Name)
	} else {
		until, err = r.rest(ctx, m.Name, Removed{EKID: m.EKID, Until: m.CertificateEnds})
	}
	if err != nil {
		return time.Time{}, err
	}
	if err := r.remove(ctx, "delete the Node "+m.Name, r.nodes.delete, m.Name); err != nil {
		return time.Time{}, err
	}
	return until, r.remove(ctx, "give up the name "+m.Name, r.configMaps.delete, NameObject(m.Name))
}

// remove deletes an object that need not exist.
func (r *connection) remove(ctx context.Context, what string, del func(context.Context, string) error, name string) error {
	_, err := call(ctx, r, what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, del(ctx, name)
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// NodeReady reports whether Kubernetes has a Node of this name and holds it to be Ready.
func (r *Machines) NodeReady(ctx context.Context, name string) (bool, error) {
	node, err := call(ctx, r.connection, "read the Node "+name, func(ctx context.Context) (*corev1.Node, error) {
		return r.nodes.get(ctx, name)
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return isReady(node), nil
}

// isReady reports whether Kubernetes holds a Node to be Ready.
func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
