// Package v1alpha1 holds the API of Hullmark's bootstrap provider for Cluster API: HullmarkConfig, and the template of it.
//
// Its types follow the contract v1beta2 for a BootstrapConfig (Cluster API book, "Contract rules for BootstrapConfig"). What the API
// server can refuse is said in markers and CEL rules here; what it cannot is refused by the controller, with a condition.
//
// +kubebuilder:object:generate=true
// +groupName=bootstrap.cluster.x-k8s.io
package v1alpha1

//go:generate go tool controller-gen object paths=. output:dir=.
//go:generate go tool controller-gen crd paths=. output:crd:dir=../../../config/crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of all types here. The group is the one that core's roles already cover.
var GroupVersion = schema.GroupVersion{Group: "bootstrap.cluster.x-k8s.io", Version: "v1alpha1"}

// ConfigKind is the kind of a HullmarkConfig.
const ConfigKind = "HullmarkConfig"

// AddToScheme adds the types to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &HullmarkConfig{}, &HullmarkConfigList{}, &HullmarkConfigTemplate{}, &HullmarkConfigTemplateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
