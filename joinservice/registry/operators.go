package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
)

// Roles of Manifest for operators, and the RoleBindings of them: the one reads what lies in the namespace, the other writes the policy and
// its documents there.
const (
	lookRole   = "hullmark:look"
	changeRole = "hullmark:change"
)

// BindOperators lets these users of the API, and no others, read what lies in the namespace, and change the policy there: the operators
// whom the policy lets do either. Of a role that nobody has, nothing is left.
func (r *Policies) BindOperators(ctx context.Context, look, change []string) error {
	if err := r.bind(ctx, changeRole, change); err != nil {
		return err
	}
	return r.bind(ctx, lookRole, look)
}

// bind gives a role to users, and to no others.
func (r *Policies) bind(ctx context.Context, role string, users []string) error {
	if len(users) == 0 {
		return r.remove(ctx, "unbind the operators", r.roleBindings.delete, role)
	}
	object := &rbacv1.RoleBinding{
		ObjectMeta: meta("operators", role),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	}
	for _, user := range slices.Sorted(slices.Values(users)) {
		object.Subjects = append(object.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	_, err := call(ctx, r.connection, "bind the operators", func(ctx context.Context) (*rbacv1.RoleBinding, error) {
		return r.roleBindings.create(ctx, object)
	})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = call(ctx, r.connection, "bind the operators", func(ctx context.Context) (*rbacv1.RoleBinding, error) {
		return r.roleBindings.update(ctx, object.Name, object)
	})
	return err
}

// Changed says in the cluster, by a Kubernetes Event on the policy's object, who signed the policy that is in force: an operator, or
// whoever holds the root key. Of one policy, which digest tells from others of its version, it is said once, by however many replicas.
func (r *Policies) Changed(ctx context.Context, version uint64, digest [sha256.Size]byte, who string) error {
	return r.tell(ctx, "tell who signed the policy", corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: Namespace, Name: policyObject},
		"changed."+hex.EncodeToString(digest[:8]), "PolicyChanged", fmt.Sprintf("policy version %d is in force, signed by %s", version, who))
}

// tell makes an Event once: what of its name is there already says so.
func (r *Policies) tell(ctx context.Context, what string, about corev1.ObjectReference, name, reason, message string) error {
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta: meta("event", name), InvolvedObject: about, Reason: reason, Message: message, Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: User}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := call(ctx, r.connection, what, func(ctx context.Context) (*corev1.Event, error) {
		return r.events.create(ctx, event)
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Recovered says in the cluster, by a Kubernetes Event on the machine's record, which operator opened a control plane's disk. boot
// tells one boot from another: of one boot it is said once.
func (r *Policies) Recovered(ctx context.Context, node hullmark.EKID, name, operator, boot string) error {
	sum := sha256.Sum256([]byte(node.String() + "\n" + boot))
	return r.tell(ctx, "tell who recovered "+name, corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: Namespace, Name: MachineObject(node)},
		"recovered."+hex.EncodeToString(sum[:8]), "ControlPlaneRecovered", fmt.Sprintf("operator %s opened the state disk of %s (hullmark recover)", operator, name))
}
