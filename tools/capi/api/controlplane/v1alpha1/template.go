package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// HullmarkControlPlaneTemplateSpec is what HullmarkControlPlanes are made of, one for each Cluster of a ClusterClass.
type HullmarkControlPlaneTemplateSpec struct {
	// template is copied.
	// +required
	Template HullmarkControlPlaneTemplateResource `json:"template,omitempty,omitzero"`
}

// HullmarkControlPlaneTemplateResource is what is copied.
type HullmarkControlPlaneTemplateResource struct {
	// metadata holds labels and annotations for the copies.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is that of the copies. The Cluster's topology says replicas and version, its ClusterClass the infrastructure.
	// +required
	Spec HullmarkControlPlaneTemplateResourceSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkControlPlaneTemplateResourceSpec is a HullmarkControlPlaneSpec without what a topology says.
type HullmarkControlPlaneTemplateResourceSpec struct {
	// machineTemplate says what Machines are made of.
	// +optional
	MachineTemplate HullmarkControlPlaneTemplateMachineTemplate `json:"machineTemplate,omitempty,omitzero"`

	// config is the HullmarkConfig of each machine. A ClusterClass's patch puts the cluster root in that each Cluster has.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.network)",message="a control plane's config has no network: all its machines would have one address. Use DHCP"
	Config bootstrapv1.HullmarkConfigSpec `json:"config,omitempty,omitzero"`

	// kubernetes says what clusters are begun with.
	// +optional
	Kubernetes KubernetesSpec `json:"kubernetes,omitempty,omitzero"`

	// rollout says how machines are replaced.
	// +optional
	Rollout RolloutSpec `json:"rollout,omitempty,omitzero"`

	// remediation says how unhealthy machines are replaced.
	// +optional
	Remediation RemediationSpec `json:"remediation,omitempty,omitzero"`
}

// HullmarkControlPlaneTemplateMachineTemplate is what Machines are made of, but for the infrastructure.
// +kubebuilder:validation:MinProperties=1
type HullmarkControlPlaneTemplateMachineTemplate struct {
	// metadata holds labels and annotations of the Machines.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is that of the Machines.
	// +optional
	Spec HullmarkControlPlaneTemplateMachineTemplateSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkControlPlaneTemplateMachineTemplateSpec is what the Machines' specs are made of, but for the infrastructure.
// +kubebuilder:validation:MinProperties=1
type HullmarkControlPlaneTemplateMachineTemplateSpec struct {
	// deletion has the timeouts of a Machine's deletion.
	// +optional
	Deletion MachineDeletionSpec `json:"deletion,omitempty,omitzero"`
}

// HullmarkControlPlaneTemplate is what ClusterClasses refer to.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hullmarkcontrolplanetemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=control-plane-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="ClusterClass",type="string",JSONPath=`.metadata.ownerReferences[?(@.kind=="ClusterClass")].name`,description="ClusterClass that it belongs to"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
type HullmarkControlPlaneTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	Spec HullmarkControlPlaneTemplateSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkControlPlaneTemplateList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkControlPlaneTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the templates.
	Items []HullmarkControlPlaneTemplate `json:"items"`
}
