package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

const (
	// ControlPlaneFinalizer keeps a HullmarkControlPlane until its Machines are gone.
	ControlPlaneFinalizer = "hullmarkcontrolplane.controlplane.cluster.x-k8s.io"
	// EtcdHookAnnotation keeps core from ending a Machine's infrastructure before its member of etcd is removed.
	EtcdHookAnnotation = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/hullmark-etcd"
	// RemediationForAnnotation is on a Machine that takes the place of an unhealthy one, and on a control plane whose Machine was
	// deleted for that and has no successor yet. Its value is a LastRemediation in JSON.
	RemediationForAnnotation = "controlplane.cluster.x-k8s.io/hullmark-remediation-for"
)

// HullmarkControlPlaneSpec says what a control plane is to be.
// +kubebuilder:validation:XValidation:rule="!has(self.config) || !has(self.config.network) || !has(self.replicas) || self.replicas == 1",message="config.network is for one machine: several would have one address. Use DHCP"
// +kubebuilder:validation:XValidation:rule="!has(self.rollout) || !has(self.rollout.strategy) || !has(self.rollout.strategy.rollingUpdate) || self.rollout.strategy.rollingUpdate.maxSurge != 0 || self.replicas >= 3",message="maxSurge 0 removes a machine first, which needs three replicas"
type HullmarkControlPlaneSpec struct {
	// replicas is how many machines it has: an odd number, as each has a member of etcd.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	// +kubebuilder:validation:XValidation:rule="self % 2 == 1",message="replicas is odd: an even number of etcd's members survives no more losses than one less"
	Replicas *int32 `json:"replicas,omitempty"`

	// version is the Kubernetes version, such as v1.36.3. It has to be that of the image that the machines boot: an image has one.
	// Once the cluster has begun it goes up by one minor release at a time.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v?(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,4})(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`
	Version string `json:"version,omitempty"`

	// machineTemplate says what its Machines are made of.
	// +required
	MachineTemplate HullmarkControlPlaneMachineTemplate `json:"machineTemplate,omitempty,omitzero"`

	// config is the HullmarkConfig of each machine: the node configuration. Its network is for a control plane of one machine, which is
	// then never replaced while it runs. Its clusterRoot is that of the file that is lent; another one later is for a cluster whose root
	// was exchanged.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.clusterRoot)",message="name the cluster root that \"hullmark cluster new\" prints",reason="FieldValueRequired",fieldPath=".clusterRoot"
	Config bootstrapv1.HullmarkConfigSpec `json:"config,omitempty,omitzero"`

	// kubernetes says what the cluster is begun with. It cannot be changed afterwards.
	// +optional
	Kubernetes KubernetesSpec `json:"kubernetes,omitempty,omitzero"`

	// rollout says how machines are replaced.
	// +optional
	Rollout RolloutSpec `json:"rollout,omitempty,omitzero"`

	// remediation says how unhealthy machines are replaced.
	// +optional
	Remediation RemediationSpec `json:"remediation,omitempty,omitzero"`
}

// PodNetwork is what brings the cluster's pod network.
// +kubebuilder:validation:Enum=flannel;wireguard;kube-proxy;none
type PodNetwork string

// The pod networks.
const (
	// FlannelNetwork is flannel with VXLAN: nodes in one segment, unencrypted.
	FlannelNetwork PodNetwork = "flannel"
	// WireGuardNetwork is flannel, encrypted between nodes.
	WireGuardNetwork PodNetwork = "wireguard"
	// KubeProxyNetwork is one that manifests bring, beside kube-proxy.
	KubeProxyNetwork PodNetwork = "kube-proxy"
	// NoNetwork is one that manifests bring, with what takes the place of kube-proxy.
	NoNetwork PodNetwork = "none"
)

// KubernetesSpec is what "hullmark init" has flags for. The Cluster's spec.clusterNetwork says the rest.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.network) || self.network != 'none' || has(self.manifests)",message="network none: a node without a pod network never becomes Ready; name its manifests"
type KubernetesSpec struct {
	// network is the pod network, with kube-proxy. Absent: flannel.
	// +optional
	Network PodNetwork `json:"network,omitempty"`

	// profile is slow for machines without hardware acceleration.
	// +optional
	// +kubebuilder:validation:Enum=slow
	Profile string `json:"profile,omitempty"`

	// workloads lets ordinary pods run on the first machine.
	// +optional
	Workloads *bool `json:"workloads,omitempty"`

	// manifests are ConfigMaps of the control plane's namespace, whose values are YAML that is applied once the first API server runs:
	// in this order, and of each ConfigMap by its keys.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Manifests []ManifestReference `json:"manifests,omitempty"`
}

// ManifestReference names a ConfigMap.
type ManifestReference struct {
	// name is the ConfigMap's.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// HullmarkControlPlaneMachineTemplate is what Machines are made of.
type HullmarkControlPlaneMachineTemplate struct {
	// metadata holds labels and annotations of the Machines. A change of it replaces no machine.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is that of the Machines.
	// +required
	Spec HullmarkControlPlaneMachineTemplateSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkControlPlaneMachineTemplateSpec is what the Machines' specs are made of.
type HullmarkControlPlaneMachineTemplateSpec struct {
	// infrastructureRef is the template of the infrastructure provider. Another one replaces all machines. The controller may do more
	// than its author with kinds of Cluster API that are no infrastructure.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.apiGroup == 'infrastructure.cluster.x-k8s.io' || self.apiGroup.endsWith('.infrastructure.cluster.x-k8s.io') || (self.apiGroup != 'cluster.x-k8s.io' && !self.apiGroup.endsWith('.cluster.x-k8s.io'))",message="name a template of an infrastructure provider: its group is infrastructure.cluster.x-k8s.io, or one of the provider's own"
	InfrastructureRef clusterv1.ContractVersionedObjectReference `json:"infrastructureRef,omitempty,omitzero"`

	// readinessGates are further conditions that count for a Machine's Ready.
	// +optional
	// +listType=map
	// +listMapKey=conditionType
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	ReadinessGates []clusterv1.MachineReadinessGate `json:"readinessGates,omitempty"`

	// deletion has the timeouts of a Machine's deletion.
	// +optional
	Deletion MachineDeletionSpec `json:"deletion,omitempty,omitzero"`

	// taints are the taints of Nodes that core keeps.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Taints []clusterv1.MachineTaint `json:"taints,omitempty"`
}

// MachineDeletionSpec has the timeouts of a Machine's deletion.
// +kubebuilder:validation:MinProperties=1
type MachineDeletionSpec struct {
	// nodeDrainTimeoutSeconds is how long a Node may take to drain; 0 and absent: without limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeDrainTimeoutSeconds *int32 `json:"nodeDrainTimeoutSeconds,omitempty"`

	// nodeVolumeDetachTimeoutSeconds is how long volumes may take to detach; 0 and absent: without limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeVolumeDetachTimeoutSeconds *int32 `json:"nodeVolumeDetachTimeoutSeconds,omitempty"`

	// nodeDeletionTimeoutSeconds is how long core tries to delete the Node; 0: without limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeDeletionTimeoutSeconds *int32 `json:"nodeDeletionTimeoutSeconds,omitempty"`
}

// RolloutType is how machines come to what the spec says.
// +kubebuilder:validation:Enum=RollingUpdate;InPlace
type RolloutType string

// The types of a rollout.
const (
	// RollingUpdate replaces machines one at a time.
	RollingUpdate RolloutType = "RollingUpdate"
	// InPlace keeps machines when only version or infrastructure template change: "hullmark upgrade apply" brings the release to them.
	InPlace RolloutType = "InPlace"
)

// RolloutSpec says how machines are replaced.
// +kubebuilder:validation:MinProperties=1
type RolloutSpec struct {
	// after has machines replaced that were made before this time, once it has passed.
	// +optional
	After metav1.Time `json:"after,omitempty,omitzero"`

	// strategy is how.
	// +optional
	Strategy RolloutStrategy `json:"strategy,omitempty,omitzero"`
}

// RolloutStrategy is how machines come to what the spec says.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || self.type == 'RollingUpdate'",message="rollingUpdate is for the type RollingUpdate"
type RolloutStrategy struct {
	// type is RollingUpdate or InPlace. Absent with the whole strategy: RollingUpdate.
	// +required
	Type RolloutType `json:"type,omitempty"`

	// rollingUpdate is for the type RollingUpdate.
	// +optional
	RollingUpdate RollingUpdateSpec `json:"rollingUpdate,omitempty,omitzero"`
}

// RollingUpdateSpec is for the type RollingUpdate.
// +kubebuilder:validation:MinProperties=1
type RollingUpdateSpec struct {
	// maxSurge is how many machines there may be beyond replicas: 1 (if absent), or 0, which removes one first and needs three.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	MaxSurge *int32 `json:"maxSurge,omitempty"`
}

// RemediationSpec says how machines are replaced that a MachineHealthCheck found unhealthy.
// +kubebuilder:validation:MinProperties=1
type RemediationSpec struct {
	// maxRetry is how often a machine is replaced that was made in the place of an unhealthy one, and became unhealthy itself within
	// minHealthyPeriodSeconds. Absent: without limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRetry *int32 `json:"maxRetry,omitempty"`

	// retryPeriodSeconds is how long is waited before such a replacement. Absent: not at all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RetryPeriodSeconds *int32 `json:"retryPeriodSeconds,omitempty"`

	// minHealthyPeriodSeconds is after how long a machine's failure is one of its own. Absent: an hour.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinHealthyPeriodSeconds *int32 `json:"minHealthyPeriodSeconds,omitempty"`

	// rebootTimeoutSeconds is how long a machine whose Node was Ready, or that got a ticket, may take to be back: a reboot is not a
	// death. Absent: twenty minutes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RebootTimeoutSeconds *int32 `json:"rebootTimeoutSeconds,omitempty"`
}

// HullmarkControlPlaneStatus is what the controller has seen and made.
// +kubebuilder:validation:MinProperties=1
type HullmarkControlPlaneStatus struct {
	// conditions are Available, Initialized, Begun, KubeconfigAvailable, EtcdClusterHealthy, MachinesReady, MachinesUpToDate, RollingOut,
	// ScalingUp, ScalingDown, Remediating, Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what core waits for before other machines are begun.
	// +optional
	Initialization HullmarkControlPlaneInitialization `json:"initialization,omitempty,omitzero"`

	// selector selects its Machines by labels, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Selector string `json:"selector,omitempty"`

	// replicas is how many Machines there are.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// readyReplicas is of how many Machines Ready is true.
	// +optional
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`

	// availableReplicas is of how many Machines Available is true.
	// +optional
	AvailableReplicas *int32 `json:"availableReplicas,omitempty"`

	// upToDateReplicas is of how many Machines UpToDate is true.
	// +optional
	UpToDateReplicas *int32 `json:"upToDateReplicas,omitempty"`

	// versions are the Kubernetes versions of the Machines, the oldest first.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Versions []clusterv1.StatusVersion `json:"versions,omitempty"`

	// version is the oldest of versions, for what reads no list.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`

	// first is the Machine on which the cluster is begun, or was.
	// +optional
	First FirstMachine `json:"first,omitempty,omitzero"`

	// lastRemediation is the last replacement of an unhealthy Machine.
	// +optional
	LastRemediation LastRemediation `json:"lastRemediation,omitempty,omitzero"`

	// observedGeneration is the last generation that the controller dealt with.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// HullmarkControlPlaneInitialization is part of Cluster API's contract.
// +kubebuilder:validation:MinProperties=1
type HullmarkControlPlaneInitialization struct {
	// controlPlaneInitialized is true once the first machine is Ready.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// FirstMachine is the machine on which a cluster is begun.
type FirstMachine struct {
	// machine is the Machine's name, and its Node's.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`

	// ekID is its identity, as the infrastructure reported it.
	// +optional
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	EKID string `json:"ekID,omitempty"`

	// progress is the last that was heard of its first boot.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Progress string `json:"progress,omitempty"`
}

// LastRemediation is the last replacement of an unhealthy Machine.
type LastRemediation struct {
	// machine is the Machine that was deleted.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`

	// time is when.
	// +required
	Time metav1.Time `json:"time,omitempty,omitzero"`

	// retryCount counts the replacements of replacements.
	// +required
	// +kubebuilder:validation:Minimum=0
	RetryCount *int32 `json:"retryCount,omitempty"`
}

// HullmarkControlPlane is a set of Machines that run a cluster's API servers and its etcd.
//
// Its rules are here, and not beside the fields, for they look at the status, too: what may be changed depends on whether the cluster has
// begun. versions are compared without what follows a hyphen or a plus, by plain strings: the CEL of Kubernetes 1.33 knows no semver.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="(has(self.spec.kubernetes) ? has(oldSelf.spec.kubernetes) && self.spec.kubernetes == oldSelf.spec.kubernetes : !has(oldSelf.spec.kubernetes)) || !has(self.status) || !has(self.status.initialization) || !has(self.status.initialization.controlPlaneInitialized) || !self.status.initialization.controlPlaneInitialized",fieldPath=".spec.kubernetes",message="the cluster was begun with the earlier kubernetes, and another one would change nothing: leave it as it was, and change the cluster itself (hullmark addons apply, kubectl)"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.config.clusterRoot) && has(oldSelf.spec.config.clusterRoot) && self.spec.config.clusterRoot == oldSelf.spec.config.clusterRoot) || !has(self.status) || !has(self.status.first) || (has(self.status.initialization) && has(self.status.initialization.controlPlaneInitialized) && self.status.initialization.controlPlaneInitialized)",fieldPath=".spec.config.clusterRoot",message="the first machine was made for the earlier clusterRoot, and obeys no other: delete the control plane, and make it anew"
// +kubebuilder:validation:XValidation:rule="self.spec.version == oldSelf.spec.version || !has(self.status) || !has(self.status.initialization) || !has(self.status.initialization.controlPlaneInitialized) || !self.status.initialization.controlPlaneInitialized || int(self.spec.version.split('.')[0].find('[0-9]+')) * 10000000000 + int(self.spec.version.split('.')[1]) * 100000 + int(self.spec.version.split('.')[2].find('^[0-9]+')) >= int((has(self.status.version) ? self.status.version : oldSelf.spec.version).split('.')[0].find('[0-9]+')) * 10000000000 + int((has(self.status.version) ? self.status.version : oldSelf.spec.version).split('.')[1]) * 100000 + int((has(self.status.version) ? self.status.version : oldSelf.spec.version).split('.')[2].find('^[0-9]+'))",fieldPath=".spec.version",message="version is below status.version, which all machines have reached: a cluster does not go back. Name that version, or a later one"
// +kubebuilder:validation:XValidation:rule="self.spec.version == oldSelf.spec.version || !has(self.status) || !has(self.status.initialization) || !has(self.status.initialization.controlPlaneInitialized) || !self.status.initialization.controlPlaneInitialized || self.spec.version.split('.')[0].find('[0-9]+') == (has(self.status.version) ? self.status.version : oldSelf.spec.version).split('.')[0].find('[0-9]+') && int(self.spec.version.split('.')[1]) <= int((has(self.status.version) ? self.status.version : oldSelf.spec.version).split('.')[1]) + 1",fieldPath=".spec.version",message="version skips a minor release: name one of the minor release after status.version, and the next when all machines have that"
// +kubebuilder:resource:path=hullmarkcontrolplanes,shortName=hmcp,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=control-plane-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster that it belongs to"
// +kubebuilder:printcolumn:name="Initialized",type="string",JSONPath=`.status.conditions[?(@.type=="Initialized")].status`,description="The first machine is Ready"
// +kubebuilder:printcolumn:name="Available",type="string",JSONPath=`.status.conditions[?(@.type=="Available")].status`,description="The API answers"
// +kubebuilder:printcolumn:name="Desired",type="integer",JSONPath=".spec.replicas",description="Machines that are wanted"
// +kubebuilder:printcolumn:name="Current",type="integer",JSONPath=".status.replicas",description="Machines that there are"
// +kubebuilder:printcolumn:name="Ready",type="integer",JSONPath=".status.readyReplicas",description="Machines that are Ready"
// +kubebuilder:printcolumn:name="Up-to-date",type="integer",JSONPath=".status.upToDateReplicas",description="Machines that are what the spec says"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".spec.version",description="Kubernetes version"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Begun")].reason`,description="How the cluster was begun, or what that waits for"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Nothing is done while paused",priority=10
// +kubebuilder:printcolumn:name="Scaling Up",type="string",JSONPath=`.status.conditions[?(@.type=="ScalingUp")].reason`,description="Whether another machine comes, or what that waits for",priority=10
// +kubebuilder:printcolumn:name="Rolling Out",type="string",JSONPath=`.status.conditions[?(@.type=="RollingOut")].reason`,description="Whether machines are replaced, or what that waits for",priority=10
// +kubebuilder:printcolumn:name="Remediating",type="string",JSONPath=`.status.conditions[?(@.type=="Remediating")].reason`,description="Whether an unhealthy machine is replaced, or why not",priority=10
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=`.status.conditions[?(@.type=="Begun")].message`,description="What it waits for, or what to do",priority=10
type HullmarkControlPlane struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	Spec HullmarkControlPlaneSpec `json:"spec,omitempty,omitzero"`
	// status is what is.
	// +optional
	Status HullmarkControlPlaneStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's util/conditions.
func (c *HullmarkControlPlane) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's util/conditions.
func (c *HullmarkControlPlane) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// HullmarkControlPlaneList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the control planes.
	Items []HullmarkControlPlane `json:"items"`
}
