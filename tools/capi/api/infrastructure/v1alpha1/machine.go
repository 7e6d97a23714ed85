package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// MachineFinalizer keeps a HullmarkMachine until its processes have ended and its folder is removed.
const MachineFinalizer = "hullmarkmachine.infrastructure.cluster.x-k8s.io"

// HullmarkMachineSpec says what a virtual machine is.
type HullmarkMachineSpec struct {
	// providerID is hullmark-qemu://NAMESPACE/NAME. The controller sets it when the machine runs.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^hullmark-qemu://[^/]+/[^/]+$`
	ProviderID string `json:"providerID,omitempty"`

	// image is the path, on the controller's host, of the finished disk image that the machine's own disk is installed from. A template
	// may leave it to a patch of its ClusterClass; nothing else may.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	Image string `json:"image,omitempty"`

	// machine is the hardware, in the words of a machine file (hullmark.machine/v1). What is left out is as "hullmark vm" has it.
	// +optional
	Machine Hardware `json:"machine,omitempty,omitzero"`
}

// Hardware is what a machine file says of one. All paths are on the controller's host.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.secureBoot) || !self.secureBoot || has(self.variables)",message="secureBoot needs variables: they decide whose keys are enrolled"
type Hardware struct {
	// tools is a tools tree with QEMU, swtpm and firmware. Absent: the host's own.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^,]*$`
	Tools string `json:"tools,omitempty"`

	// firmware is OVMF's code file.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	Firmware string `json:"firmware,omitempty"`

	// variables is OVMF's variables file, which the machine starts from.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	Variables string `json:"variables,omitempty"`

	// secureBoot asks for firmware with Secure Boot.
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`

	// tpm is the TPM's interface.
	// +optional
	// +kubebuilder:validation:Enum=crb;tis
	TPM string `json:"tpm,omitempty"`

	// cpus is the number of virtual CPUs.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	CPUs int32 `json:"cpus,omitempty"`

	// memoryMiB is the memory in MiB.
	// +optional
	// +kubebuilder:validation:Minimum=128
	// +kubebuilder:validation:Maximum=1048576
	MemoryMiB int32 `json:"memoryMiB,omitempty"`

	// stateDisk is the size of the state disk, such as 10G. Its file is sparse.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]+[KMGT]?$`
	StateDisk string `json:"stateDisk,omitempty"`

	// smbios are OEM strings that the host gives to the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=4096
	SMBIOS []string `json:"smbios,omitempty"`

	// nicROM leaves the network card's option ROM in place, which is measured into PCR 2.
	// +optional
	NICROM *bool `json:"nicROM,omitempty"`
}

// HullmarkMachineStatus is what the controller has seen and made.
// +kubebuilder:validation:MinProperties=1
type HullmarkMachineStatus struct {
	// conditions are Ready and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what core waits for before it looks for a Node.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// addresses are the machine's in the cluster's network: those that its node configuration states, or else the one that it was
	// given there, once it answers for it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Addresses []clusterv1.MachineAddress `json:"addresses,omitempty"`

	// ekID is the machine's identity: the SHA-256 digest of its TPM's endorsement key, as a signed policy names a member.
	// +optional
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	EKID string `json:"ekID,omitempty"`

	// ekCertificateAuthority is the certificate, PEM, of the CA that signed the endorsement key's. It is of this machine alone, and
	// proves nothing about any other.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	EKCertificateAuthority string `json:"ekCertificateAuthority,omitempty"`

	// agentAddress is where an operator on the host reaches the agent of the node, as HOST:PORT.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	AgentAddress string `json:"agentAddress,omitempty"`

	// console is the path, on the host, of the log of what the guest wrote on its serial line.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Console string `json:"console,omitempty"`

	// observedGeneration is the last generation that the controller dealt with.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// HullmarkMachine is a virtual machine on the controller's host. For development, CI and tests, not for production.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hullmarkmachines,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster that it belongs to"
// +kubebuilder:printcolumn:name="Address",type="string",JSONPath=".status.addresses[0].address",description="Its address in the cluster's network"
// +kubebuilder:printcolumn:name="Agent",type="string",JSONPath=".status.agentAddress",description="Where the host reaches its agent"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="The machine runs"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
// +kubebuilder:printcolumn:name="EK",type="string",JSONPath=".status.ekID",description="Identity of its TPM",priority=10
// +kubebuilder:printcolumn:name="ProviderID",type="string",JSONPath=".spec.providerID",description="Name that its Node has to have",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Nothing is done while paused",priority=10
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].message`,description="What it waits for, or what to do",priority=10
type HullmarkMachine struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.image)",message="name the disk image by its path on the controller's host",reason="FieldValueRequired",fieldPath=".image"
	// +kubebuilder:validation:XValidation:rule="has(self.image) && has(oldSelf.image) && self.image == oldSelf.image && has(self.machine) == has(oldSelf.machine) && (!has(self.machine) || self.machine == oldSelf.machine)",message="a machine's image and hardware cannot be changed: make another machine"
	// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)",message="providerID is set once, by the controller"
	Spec HullmarkMachineSpec `json:"spec,omitempty,omitzero"`
	// status is what is.
	// +optional
	Status HullmarkMachineStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's util/conditions.
func (m *HullmarkMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's util/conditions.
func (m *HullmarkMachine) SetConditions(conditions []metav1.Condition) {
	m.Status.Conditions = conditions
}

// HullmarkMachineList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkMachineList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the machines.
	Items []HullmarkMachine `json:"items"`
}

// HullmarkMachineTemplate is what MachineSets, MachineDeployments, control planes and ClusterClasses refer to.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hullmarkmachinetemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-hullmark"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="CPUs",type="integer",JSONPath=".spec.template.spec.machine.cpus",description="Virtual CPUs"
// +kubebuilder:printcolumn:name="Memory",type="integer",JSONPath=".spec.template.spec.machine.memoryMiB",description="Memory in MiB"
// +kubebuilder:printcolumn:name="Image",type="string",JSONPath=".spec.template.spec.image",description="Disk image on the host"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since it was made"
type HullmarkMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is wanted.
	// +required
	Spec HullmarkMachineTemplateSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkMachineTemplateSpec is what HullmarkMachines are made of, one for each machine of a set.
type HullmarkMachineTemplateSpec struct {
	// template is copied.
	// +required
	Template HullmarkMachineTemplateResource `json:"template,omitempty,omitzero"`
}

// HullmarkMachineTemplateResource is what is copied.
// +kubebuilder:validation:XValidation:rule="!has(self.spec.providerID)",message="a template has no providerID: each machine has its own"
type HullmarkMachineTemplateResource struct {
	// metadata holds labels and annotations for the copies.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is that of the copies.
	// +required
	Spec HullmarkMachineSpec `json:"spec,omitempty,omitzero"`
}

// HullmarkMachineTemplateList is a list of them.
//
// +kubebuilder:object:root=true
type HullmarkMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the templates.
	Items []HullmarkMachineTemplate `json:"items"`
}
