package bootstrap

import (
	"bytes"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// The keys of the data Secret, and the format that it says ("Contract rules for BootstrapConfig", data secret; the kubeadm provider
// writes a format, too, and infrastructure providers look at it).
const (
	valueKey  = "value"
	formatKey = "format"
	// Format is the format of what the data Secret holds: a node configuration of Hullmark, in JSON.
	Format = "hullmark-node-config"
)

// newSecret returns the data Secret of a config. Nothing in it is secret; the contract wants this kind.
func newSecret(config *v1alpha1.HullmarkConfig, cluster string, text []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: config.Namespace, Name: config.Name,
			Labels:          map[string]string{clusterv1.ClusterNameLabel: cluster},
			OwnerReferences: []metav1.OwnerReference{ownerReference(config)},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{valueKey: text, formatKey: []byte(Format)},
	}
}

func ownerReference(config *v1alpha1.HullmarkConfig) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.ConfigKind, Name: config.Name, UID: config.UID, Controller: ptr.To(true),
	}
}

// isOurs reports whether a Secret of the config's name was made for it.
func isOurs(s *corev1.Secret, config *v1alpha1.HullmarkConfig) bool {
	return isFor(s, config) && s.Type == clusterv1.ClusterSecretType
}

// isFor reports whether an object was made for a config of this name. Its UID may be an earlier one's: an object that is restored
// from a backup gets another.
func isFor(o metav1.Object, config *v1alpha1.HullmarkConfig) bool {
	by := metav1.GetControllerOf(o)
	return by != nil && by.Kind == v1alpha1.ConfigKind && by.Name == config.Name && groupOf(by.APIVersion) == v1alpha1.GroupVersion.Group
}

// repair gives a Secret of ours the labels, the owner and, if text is not nil, the data of want, and reports whether it lacked any.
func repair(s, want *corev1.Secret, text []byte) (changed bool) {
	if text != nil && !maps.EqualFunc(s.Data, want.Data, bytes.Equal) {
		s.Data, changed = want.Data, true
	}
	if name := want.Labels[clusterv1.ClusterNameLabel]; s.Labels[clusterv1.ClusterNameLabel] != name {
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		s.Labels[clusterv1.ClusterNameLabel], changed = name, true
	}
	for i, o := range s.OwnerReferences {
		if ptr.Deref(o.Controller, false) && o.UID != want.OwnerReferences[0].UID {
			s.OwnerReferences[i], changed = want.OwnerReferences[0], true
		}
	}
	return changed
}
