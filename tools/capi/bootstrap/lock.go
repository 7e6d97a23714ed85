package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lockKey is the key of the lock's ConfigMap; its value is a lockInformation (Cluster API book, "Bootstrap provider", and what the
// kubeadm provider does: both providers in one Cluster keep each other out).
const lockKey = "lock-information"

// lockInformation names the Machine that may initialize the Cluster.
type lockInformation struct {
	MachineName string `json:"machineName"`
}

// errLockInvalid is a lock that names no Machine.
type errLockInvalid struct{ name string }

func (e errLockInvalid) Error() string {
	return fmt.Sprintf("ConfigMap %s: its key %s names no Machine: if no Machine of this Cluster is being initialized, delete the ConfigMap", e.name, lockKey)
}

// initLock is the contract's lock: one control plane Machine of a Cluster at a time gets what it needs to initialize it. It is in
// the API, and read there, never in a cache: each change is in the place of what was read, so of two that take it one fails.
type initLock struct {
	client.Client
	live client.Reader
}

func lockName(c *clusterv1.Cluster) string { return c.Name + "-lock" }

// acquire takes the lock for a Machine and returns whose it is now. A holder that is not there any more loses it: core removes a
// Machine only after its infrastructure, so nothing of it runs by then.
//
// It returns errLockInvalid for a lock that nobody can have made, and an error of the API, of which some mean that another was
// faster; trying again is right for all of these.
func (l initLock) acquire(ctx context.Context, c *clusterv1.Cluster, machine string) (holder string, err error) {
	held, err := l.read(ctx, c)
	if apierrors.IsNotFound(err) {
		return machine, l.Create(ctx, newLock(c, machine))
	}
	if err != nil {
		return "", err
	}
	var info lockInformation
	if err := json.Unmarshal([]byte(held.Data[lockKey]), &info); err != nil || info.MachineName == "" {
		return "", errLockInvalid{held.Name}
	}
	if info.MachineName == machine {
		return machine, nil
	}
	err = l.live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: info.MachineName}, &clusterv1.Machine{})
	if !apierrors.IsNotFound(err) {
		return info.MachineName, err
	}
	held.Data = newLock(c, machine).Data
	return machine, l.Update(ctx, held)
}

// release frees the lock, if it is held by the named Machine, or by any if the name is empty. A lock that is not there is free.
func (l initLock) release(ctx context.Context, c *clusterv1.Cluster, machine string) error {
	held, err := l.read(ctx, c)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	var info lockInformation
	if err := json.Unmarshal([]byte(held.Data[lockKey]), &info); machine != "" && (err != nil || info.MachineName != machine) {
		return nil
	}
	version := held.ResourceVersion
	return client.IgnoreNotFound(l.Delete(ctx, held, client.Preconditions{UID: &held.UID, ResourceVersion: &version}))
}

func (l initLock) read(ctx context.Context, c *clusterv1.Cluster) (*corev1.ConfigMap, error) {
	held := &corev1.ConfigMap{}
	return held, l.live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: lockName(c)}, held)
}

// newLock returns a lock that goes with its Cluster, when that is deleted and when it is moved.
func newLock(c *clusterv1.Cluster, machine string) *corev1.ConfigMap {
	information, _ := json.Marshal(lockInformation{MachineName: machine}) // a string always has a JSON form
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: lockName(c),
			Labels: map[string]string{clusterv1.ClusterNameLabel: c.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: c.Name, UID: c.UID,
			}},
		},
		Data: map[string]string{lockKey: string(information)},
	}
}
