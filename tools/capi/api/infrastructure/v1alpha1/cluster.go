package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// ClusterFinalizer keeps a HullmarkCluster until its network has ended and its folder is removed.
const ClusterFinalizer = "hullmarkcluster.infrastructure.cluster.x-k8s.io"

// HullmarkClusterSpec says where a cluster's machines meet.
type HullmarkClusterSpec struct {
	// controlPlaneEndpoint is where the cluster's machines reach its API server: an address that the node configuration of a control
	// plane states among its own, from 10.0.2.4 to 10.0.2.99, and a port.
	// +required
	ControlPlaneEndpoint Endpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`

	// network is how the network is run. All of it has a default.
	// +optional
	Network Network `json:"network,omitempty,omitzero"`
}

// Endpoint is an address in the cluster's network and a port.
type Endpoint struct {
	// host is an IPv4 address.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=9
	// +kubebuilder:validation:Pattern=`^10\.0\.2\.([4-9]|[1-9][0-9])$`
	Host string `json:"host,omitempty"`

	// port is the API server's.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// Network is how a cluster's network is run.
// +kubebuilder:validation:MinProperties=1
type Network struct {
	// apiServerPort is the port of 127.0.0.1 by which the host reaches the control plane endpoint. Absent: a free one, which the
	// status names.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	APIServerPort int32 `json:"apiServerPort,omitempty"`

	// tools is a tools tree on the host, to run QEMU from. Absent: the host's own QEMU.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^,]*$`
	Tools string `json:"tools,omitempty"`
}

// HullmarkClusterStatus is what the controller has seen and made.
// +kubebuilder:validation:MinProperties=1
type HullmarkClusterStatus struct {
	// conditions are Ready and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what core waits for before it makes machines.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// apiServer is where the host reaches the control plane endpoint, as HOST:PORT.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	APIServer string `json:"apiServer,omitempty"`

	// observedGeneration is the last generation that the controller dealt with.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Initialization is part of Cluster API's contract.
// +kubebuilder:validation:MinProperties=1
type Initialization struct {
	// provisioned is true once the network, or the machine, has run.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// HullmarkCluster is the network of a cluster of virtual machines on one host. For development, CI and tests, not for production.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hullmarkclusters,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster that it belongs to"
// +kubebuilder:printcolumn:name="Endpoint",type="string",JSONPath=".spec.controlPlaneEndpoint.host",description="Where machines reach the API server"
// +kubebuilder:printcolumn:name="From Host",type="string",JSONPath=".status.apiServer",description="Where the host reaches it"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="The network runs"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Nothing is done while paused",priority=10
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].message`,description="What it waits for, or what to do",priority=10
type HullmarkCluster struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.controlPlaneEndpoint == oldSelf.controlPlaneEndpoint && has(self.network) == has(oldSelf.network) && (!has(self.network) || self.network == oldSelf.network)",message="a running network cannot be changed: make another cluster"
	Spec HullmarkClusterSpec `json:"spec,omitempty,omitzero"`
	// status is what is.
	// +optional
	Status HullmarkClusterStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's util/conditions.
func (c *HullmarkCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's util/conditions.
func (c *HullmarkCluster) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// HullmarkClusterList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkClusterList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the clusters.
	Items []HullmarkCluster `json:"items"`
}

// HullmarkClusterTemplate is what ClusterClasses refer to. Each cluster has a network of its own, so all may have one endpoint; a
// port of the host cannot be shared.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hullmarkclustertemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="Endpoint",type="string",JSONPath=".spec.template.spec.controlPlaneEndpoint.host",description="Where machines reach the API server"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
type HullmarkClusterTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	Spec HullmarkClusterTemplateSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkClusterTemplateSpec is what HullmarkClusters are made of.
type HullmarkClusterTemplateSpec struct {
	// template is copied.
	// +required
	Template HullmarkClusterTemplateResource `json:"template,omitempty,omitzero"`
}

// HullmarkClusterTemplateResource is what is copied.
type HullmarkClusterTemplateResource struct {
	// metadata holds labels and annotations for the copies.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is that of the copies.
	// +required
	Spec HullmarkClusterSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkClusterTemplateList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the templates.
	Items []HullmarkClusterTemplate `json:"items"`
}
