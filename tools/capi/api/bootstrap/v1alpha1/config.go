package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
)

// HullmarkConfigSpec says what the node configuration of a Machine, or of all machines of a MachinePool, is made of. All of it is
// public: it goes into user data, which hosts and cloud administrators read.
type HullmarkConfigSpec struct {
	// clusterRoot names the only cluster whose operator and join service the machine obeys: 64 hexadecimal digits, as
	// "hullmark cluster new" prints them. A template may leave it to a patch of its ClusterClass; nothing else may.
	// +optional
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="!self.matches('^0+$')",message="a cluster root of zeros is none: take it from \"hullmark cluster new\""
	ClusterRoot string `json:"clusterRoot,omitempty"`

	// pool is the pool of the signed policy that the machine is to be admitted to. It is not part of the node configuration: what a
	// machine may be is decided by who proves it, not by what its host hands it.
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`

	// joinEndpoints are join services as HOST:PORT, tried in any order. Absent: port 7444 of the host of the Cluster's control plane
	// endpoint.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=260
	// +kubebuilder:validation:items:Pattern=`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$`
	JoinEndpoints []string `json:"joinEndpoints,omitempty"`

	// timeServers are NTP servers by name or address.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=254
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9:]([A-Za-z0-9.:-]*[A-Za-z0-9:])?$`
	TimeServers []string `json:"timeServers,omitempty"`

	// stateDisk selects the machine's state disk.
	// +required
	StateDisk StateDisk `json:"stateDisk,omitempty,omitzero"`

	// network is what one machine has instead of DHCP and router advertisements. It is refused in a template and for a MachinePool:
	// two machines would have one address.
	// +optional
	Network Network `json:"network,omitempty,omitzero"`

	// kubeadm is a KubeadmConfigSpec, for people who come from the kubeadm provider. Each field is honoured, or refused with a
	// condition that names it; docs/cluster-api-kubeadm.md has the table.
	// +optional
	Kubeadm *kubeadmv1.KubeadmConfigSpec `json:"kubeadm,omitempty"`
}

// StateDisk names one block device. Exactly one field is set.
// +kubebuilder:validation:XValidation:rule="has(self.serial) != has(self.path)",message="set exactly one of serial and path"
type StateDisk struct {
	// serial is the device's serial number as the virtio, NVMe or SCSI layer reports it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]+$`
	Serial string `json:"serial,omitempty"`

	// path is a device path below /dev.
	// +optional
	// +kubebuilder:validation:MaxLength=133
	// +kubebuilder:validation:Pattern=`^/dev/[A-Za-z0-9/_:.-]+$`
	Path string `json:"path,omitempty"`
}

// Network is the static network of a machine's only network card.
type Network struct {
	// addresses are static addresses in CIDR notation.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isCIDR(a))",message="each address is in CIDR notation, such as 192.0.2.11/24"
	Addresses []string `json:"addresses,omitempty"`

	// gateway is the default route.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="the gateway is an IP address"
	Gateway string `json:"gateway,omitempty"`

	// nameServers are addresses of DNS servers. CoreDNS does not start on a node that knows none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(s, isIP(s))",message="each name server is an IP address"
	NameServers []string `json:"nameServers,omitempty"`
}

// HullmarkConfigStatus is what the controller has seen and made.
// +kubebuilder:validation:MinProperties=1
type HullmarkConfigStatus struct {
	// conditions are Ready, DataSecretAvailable and Paused, and Vouched of workers.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what core waits for before it makes a machine.
	// +optional
	Initialization HullmarkConfigInitialization `json:"initialization,omitempty,omitzero"`

	// dataSecretName is the Secret that holds the node configuration. It is always the name of the HullmarkConfig.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DataSecretName string `json:"dataSecretName,omitempty"`

	// observedGeneration is the last generation that the controller dealt with.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// HullmarkConfigInitialization is part of Cluster API's contract.
// +kubebuilder:validation:MinProperties=1
type HullmarkConfigInitialization struct {
	// dataSecretCreated is true when the data Secret is there.
	// +optional
	DataSecretCreated *bool `json:"dataSecretCreated,omitempty"`
}

// HullmarkConfig is what a Machine or a MachinePool refers to as its bootstrap configuration.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hullmarkconfigs,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=bootstrap-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster that it belongs to"
// +kubebuilder:printcolumn:name="Pool",type="string",JSONPath=".spec.pool",description="Pool of the signed policy"
// +kubebuilder:printcolumn:name="Secret",type="string",JSONPath=".status.dataSecretName",description="Secret that holds the node configuration"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="The node configuration is there"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Vouched",type="string",JSONPath=`.status.conditions[?(@.type=="Vouched")].reason`,description="Whether the enroller vouched for its worker, or why not; empty of control planes"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Nothing is done while paused",priority=10
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].message`,description="What it waits for, or what to do",priority=10
type HullmarkConfig struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.clusterRoot)",message="name the cluster root that \"hullmark cluster new\" prints",reason="FieldValueRequired",fieldPath=".clusterRoot"
	Spec HullmarkConfigSpec `json:"spec,omitempty,omitzero"`
	// status is what is.
	// +optional
	Status HullmarkConfigStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's util/conditions.
func (c *HullmarkConfig) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's util/conditions.
func (c *HullmarkConfig) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// HullmarkConfigList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkConfigList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the configs.
	Items []HullmarkConfig `json:"items"`
}
