// Package v1alpha1 holds the API of Hullmark's QEMU infrastructure provider for Cluster API: clusters whose network, and machines that
// are virtual ones, on the host that the controller runs on. It is for development, CI and tests, not for production: one host, software
// TPMs, and a console that anybody who reads the host's files can read.
//
// Its types follow the contract v1beta2 for InfraCluster and InfraMachine (Cluster API book, "Contract rules"). What the API server
// can refuse is said in markers and CEL rules here; what it cannot is refused by the controller, with a condition.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1alpha1

//go:generate go tool controller-gen object paths=. output:dir=.
//go:generate go tool controller-gen crd paths=. output:crd:dir=../../../infrastructure/crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of all types here. The group is the one that core's roles already cover.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1"}

// The kinds that a Cluster and a Machine refer to.
const (
	ClusterKind = "HullmarkCluster"
	MachineKind = "HullmarkMachine"
)

// AddToScheme adds the types to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(
		GroupVersion,
		&HullmarkCluster{}, &HullmarkClusterList{}, &HullmarkClusterTemplate{}, &HullmarkClusterTemplateList{},
		&HullmarkMachine{}, &HullmarkMachineList{}, &HullmarkMachineTemplate{}, &HullmarkMachineTemplateList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
