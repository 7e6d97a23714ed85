// Package v1alpha1 holds the API of Hullmark's control plane provider for Cluster API: HullmarkControlPlane, and the template of it.
//
// Its types follow the contract v1beta2 for a ControlPlane (Cluster API book, "Contract rules for ControlPlane"). What the API server can
// refuse is said in markers and CEL rules here; what it cannot is refused by the controller, with a condition.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.cluster.x-k8s.io
package v1alpha1

//go:generate go tool controller-gen object paths=. output:dir=.
//go:generate go tool controller-gen crd paths=. output:crd:dir=../../../config/crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of all types here. The group is the one that core's roles already cover.
var GroupVersion = schema.GroupVersion{Group: "controlplane.cluster.x-k8s.io", Version: "v1alpha1"}

// ControlPlaneKind is the kind of a HullmarkControlPlane.
const ControlPlaneKind = "HullmarkControlPlane"

// AddToScheme adds the types to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &HullmarkControlPlane{}, &HullmarkControlPlaneList{}, &HullmarkControlPlaneTemplate{}, &HullmarkControlPlaneTemplateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
