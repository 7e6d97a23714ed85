package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// HullmarkConfigTemplateSpec is what HullmarkConfigs are made of, one for each machine of a set.
type HullmarkConfigTemplateSpec struct {
	// template is copied.
	// +required
	Template HullmarkConfigTemplateResource `json:"template,omitempty,omitzero"`
}

// HullmarkConfigTemplateResource is what is copied.
// +kubebuilder:validation:XValidation:rule="!has(self.spec.network)",message="a template has no network: all its machines would have one address. Use DHCP, or a HullmarkConfig for each Machine"
type HullmarkConfigTemplateResource struct {
	// metadata holds labels and annotations for the copies.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is that of the copies.
	// +required
	Spec HullmarkConfigSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkConfigTemplate is what MachineSets, MachineDeployments and ClusterClasses refer to.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hullmarkconfigtemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=bootstrap-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="ClusterClass",type="string",JSONPath=`.metadata.ownerReferences[?(@.kind=="ClusterClass")].name`,description="ClusterClass that it belongs to"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=`.metadata.ownerReferences[?(@.kind=="Cluster")].name`,description="Cluster that it belongs to"
// +kubebuilder:printcolumn:name="Pool",type="string",JSONPath=".spec.template.spec.pool",description="Pool of the signed policy"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
type HullmarkConfigTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	Spec HullmarkConfigTemplateSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkConfigTemplateList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkConfigTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the templates.
	Items []HullmarkConfigTemplate `json:"items"`
}
