package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

const (
	// UpgradeUser is the common name of the upgrade engine's client certificate, which Manifest gives its permissions.
	UpgradeUser = "hullmark:upgrade"
	// UpgradeRequest and UpgradeState name the ConfigMaps of what the operator wants, and of how far the engine is. Each holds one text.
	UpgradeRequest, UpgradeState = "upgrade", "upgrade.state"
	// CordonedBy is the annotation of a Node that an upgrade has cordoned: the upgrade's ID.
	CordonedBy = "hullmark/upgrade"
	// upgradeLease is the Lease of the engine that acts.
	upgradeLease = "upgrade"
	// upgradeKind is of the ConfigMaps, and upgradeKey the key of their text.
	upgradeKind, upgradeKey = "upgrade", "upgrade"
)

// Upgrades are what an upgrade reads of a cluster and changes in it, as objects of the API. A change of something that is not as it was
// read is joinservice.ErrConflict.
type Upgrades struct {
	*Policies
	pods    objects[*corev1.Pod, *corev1.PodList]
	budgets objects[*policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudgetList]
}

// NewUpgrades returns a client for the API that config names, as New does.
func NewUpgrades(config *rest.Config) (*Upgrades, error) {
	r, err := New(config)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := policyv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	budgets, err := client(config, scheme, "/apis", policyv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	codec := runtime.NewParameterCodec(scheme)
	return &Upgrades{
		Policies: r.Policies,
		pods:     objects[*corev1.Pod, *corev1.PodList]{r.nodes.client, r.nodes.codec, "pods", metav1.NamespaceAll, fresh[corev1.Pod], fresh[corev1.PodList]},
		budgets: objects[*policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudgetList]{
			budgets, codec, "poddisruptionbudgets", metav1.NamespaceAll, fresh[policyv1.PodDisruptionBudget], fresh[policyv1.PodDisruptionBudgetList],
		},
	}, nil
}

// Text returns the text of UpgradeRequest or UpgradeState, of the zero version if there is none.
func (u *Upgrades) Text(ctx context.Context, name string) (string, joinservice.Version, error) {
	object, err := u.configMap(ctx, "read the ConfigMap "+name, name)
	if apierrors.IsNotFound(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	text, ok := object.Data[upgradeKey]
	if !ok || len(object.Data) != 1 || len(object.BinaryData) != 0 {
		return "", "", fmt.Errorf("ConfigMap %s/%s: want the one key %s; mend or delete the object", Namespace, name, upgradeKey)
	}
	return text, joinservice.Version(object.ResourceVersion), nil
}

// StoreText replaces the text whose version is given, and returns the new one's.
func (u *Upgrades) StoreText(ctx context.Context, name, text string, v joinservice.Version) (joinservice.Version, error) {
	return u.storeConfigMap(ctx, &corev1.ConfigMap{ObjectMeta: meta(upgradeKind, name), Data: map[string]string{upgradeKey: text}}, v)
}

// storeConfigMap replaces an object in a version.
func (u *Upgrades) storeConfigMap(ctx context.Context, object *corev1.ConfigMap, v joinservice.Version) (joinservice.Version, error) {
	stored, err := call(ctx, u.connection, "store the ConfigMap "+object.Name, func(ctx context.Context) (*corev1.ConfigMap, error) {
		if v == "" {
			return u.configMaps.create(ctx, object)
		}
		object.ResourceVersion = string(v)
		return u.configMaps.update(ctx, object.Name, object)
	})
	if err := conflict(err); err != nil {
		return "", err
	}
	return joinservice.Version(stored.ResourceVersion), nil
}

// conflict makes of an error that says that something is not as it was read joinservice.ErrConflict.
func conflict(err error) error {
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return joinservice.ErrConflict
	}
	return err
}

// Direct gives a node its direction in the place of the one whose version is given; the zero direction is none.
func (u *Upgrades) Direct(ctx context.Context, node hullmark.EKID, d hullmark.UpdateDirection, v joinservice.Version) error {
	object := &corev1.ConfigMap{}
	if err := PutDirection(object, node, d); err != nil {
		return err
	}
	_, err := u.storeConfigMap(ctx, object, v)
	return err
}

// Holder returns who holds the Lease of the engine that acts, and of which term.
func (u *Upgrades) Holder(ctx context.Context) (holder string, term int32, v joinservice.Version, err error) {
	lease, err := u.upgradeLease(ctx)
	if apierrors.IsNotFound(err) {
		return "", 0, "", nil
	}
	if err != nil {
		return "", 0, "", err
	}
	holder, term = held(lease)
	return holder, term, joinservice.Version(lease.ResourceVersion), nil
}

func (u *Upgrades) upgradeLease(ctx context.Context) (*coordinationv1.Lease, error) {
	return call(ctx, u.connection, "read which engine upgrades the cluster", func(ctx context.Context) (*coordinationv1.Lease, error) {
		return u.leases.get(ctx, upgradeLease)
	})
}

// StoreHolder replaces the Lease whose version is given. lasts is for people: who waits for its end goes by his own clock.
func (u *Upgrades) StoreHolder(ctx context.Context, holder string, term int32, lasts time.Duration, v joinservice.Version) (joinservice.Version, error) {
	now, seconds := metav1.NowMicro(), int32(lasts/time.Second)
	lease := &coordinationv1.Lease{ObjectMeta: meta("lease", upgradeLease)}
	lease.ResourceVersion = string(v)
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseTransitions: &term, LeaseDurationSeconds: &seconds, RenewTime: &now}
	stored, err := call(ctx, u.connection, "record which engine upgrades the cluster", func(ctx context.Context) (*coordinationv1.Lease, error) {
		if v == "" {
			return u.leases.create(ctx, lease)
		}
		return u.leases.update(ctx, upgradeLease, lease)
	})
	if err := conflict(err); err != nil {
		return "", err
	}
	return joinservice.Version(stored.ResourceVersion), nil
}

// MachinesAndDirections lists the objects that hold machines' records, and nodes' directions.
func (u *Upgrades) MachinesAndDirections(ctx context.Context) (machines, directions []corev1.ConfigMap, err error) {
	list, err := call(ctx, u.connection, "list the machines' records", func(ctx context.Context) (*corev1.ConfigMapList, error) {
		return u.configMaps.list(ctx, metav1.ListOptions{LabelSelector: selector(" in (" + nodeKind + "," + directionKind + ")")})
	})
	if err != nil {
		return nil, nil, err
	}
	for _, object := range list.Items {
		if strings.HasPrefix(object.Name, MachineObjects) {
			machines = append(machines, object)
		} else {
			directions = append(directions, object)
		}
	}
	return machines, directions, nil
}

// Nodes lists Kubernetes' nodes.
func (u *Upgrades) Nodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := call(ctx, u.connection, "list the nodes", func(ctx context.Context) (*corev1.NodeList, error) {
		return u.nodes.list(ctx, metav1.ListOptions{})
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Pods lists the pods that are bound to a node, or all of them.
func (u *Upgrades) Pods(ctx context.Context, node string) ([]corev1.Pod, error) {
	var options metav1.ListOptions
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	list, err := call(ctx, u.connection, "list the pods of "+node, func(ctx context.Context) (*corev1.PodList, error) {
		return u.pods.list(ctx, options)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Budgets lists all PodDisruptionBudgets.
func (u *Upgrades) Budgets(ctx context.Context) ([]policyv1.PodDisruptionBudget, error) {
	list, err := call(ctx, u.connection, "list the PodDisruptionBudgets", func(ctx context.Context) (*policyv1.PodDisruptionBudgetList, error) {
		return u.budgets.list(ctx, metav1.ListOptions{})
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// SetCordon keeps pods away from the Node that has this version still, or lets them in again, and notes by which upgrade; empty removes
// the note.
func (u *Upgrades) SetCordon(ctx context.Context, name, version, by string) error {
	var note any // null removes it
	if by != "" {
		note = by
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": version, "annotations": map[string]any{CordonedBy: note}},
		"spec":     map[string]any{"unschedulable": by != ""},
	})
	if err != nil {
		return err
	}
	_, err = call(ctx, u.connection, "cordon or uncordon the Node "+name, func(ctx context.Context) (*corev1.Node, error) {
		return u.nodes.patch(ctx, name, patch)
	})
	return conflict(err)
}

// ErrNoDisruption says that a pod may not be evicted now.
var ErrNoDisruption = errors.New("no disruption is allowed now")

// Evict ends a pod as its budgets allow it, if it is the one of this UID still; one that is gone is no error.
func (u *Upgrades) Evict(ctx context.Context, namespace, name, uid string) error {
	only := types.UID(uid)
	eviction := &policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &only}},
	}
	body, err := json.Marshal(eviction)
	if err != nil {
		return err
	}
	what := "evict the pod " + namespace + "/" + name
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	err = u.pods.client.Post().Namespace(namespace).Resource("pods").Name(name).SubResource("eviction").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case apierrors.IsTooManyRequests(err):
		return fmt.Errorf("%s: %w", what, ErrNoDisruption)
	}
	return u.explain(what, err)
}
