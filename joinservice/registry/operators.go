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

// lookRole is the Role of Manifest that reads what lies in the namespace, and the RoleBinding of it to operators.
const lookRole = "hullmark:look"

// BindOperators lets these users of the API, and no others, read what lies in the namespace: the operators whom the policy lets look.
// Without any, nothing is left of it.
func (r *Policies) BindOperators(ctx context.Context, users []string) error {
	if len(users) == 0 {
		return r.remove(ctx, "unbind the operators", r.roleBindings.delete, lookRole)
	}
	object := &rbacv1.RoleBinding{
		ObjectMeta: meta("operators", lookRole),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: lookRole},
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

// Recovered says in the cluster, by a Kubernetes Event on the machine's record, which operator opened a control plane's disk. boot
// tells one boot from another: of one boot it is said once.
func (r *Policies) Recovered(ctx context.Context, node hullmark.EKID, name, operator, boot string) error {
	sum := sha256.Sum256([]byte(node.String() + "\n" + boot))
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta:     meta("event", "recovered."+hex.EncodeToString(sum[:8])),
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: Namespace, Name: MachineObject(node)},
		Reason:         "ControlPlaneRecovered", Message: fmt.Sprintf("operator %s opened the state disk of %s (hullmark recover)", operator, name), Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: User}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := call(ctx, r.connection, "tell who recovered "+name, func(ctx context.Context) (*corev1.Event, error) {
		return r.events.create(ctx, event)
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
