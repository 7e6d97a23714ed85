package v1alpha1

// Types of conditions. Ready says the same as DataSecretAvailable, there is nothing else to be ready; Paused is core's.
const (
	// ReadyCondition is mirrored by core into the Machine, as BootstrapConfigReady.
	ReadyCondition = "Ready"
	// DataSecretAvailableCondition says that the Secret with the node configuration is there, as the spec wants it.
	DataSecretAvailableCondition = "DataSecretAvailable"
	// VouchedCondition says that the Machine's worker has a voucher of the Cluster's enroller. The control plane's manager sets it; it is
	// absent of control planes, and where machines have rules of their own.
	VouchedCondition = "Vouched"
)

// Reasons of Vouched, beside WaitingForControlPlaneReason.
const (
	// VouchedReason is that of a status of True.
	VouchedReason = "Vouched"
	// WaitingForEnrollerReason: the Secret with the enroller's key is not there.
	WaitingForEnrollerReason = "WaitingForEnroller"
	// WaitingForIdentityReason: the infrastructure reports no identity yet, or none that is one.
	WaitingForIdentityReason = "WaitingForIdentity"
	// ClusterUnreachableReason: the cluster's API server does not take vouchers.
	ClusterUnreachableReason = "ClusterUnreachable"
	// EnrollerInvalidReason: the enroller's Secret holds no key that is sealed to the manager.
	EnrollerInvalidReason = "EnrollerInvalid"
	// IdentityTakenReason: another Machine has the identity or the provider ID.
	IdentityTakenReason = "IdentityTaken"
	// IdentityChangedReason: the infrastructure reports another identity than the one that was vouched for.
	IdentityChangedReason = "IdentityChanged"
	// NotVouchedReason: no voucher can say this; the message names the field.
	NotVouchedReason = "NotVouched"
)

// Reasons of Ready and DataSecretAvailable. Those that begin with WaitingFor pass by themselves; the others need a person.
const (
	// AvailableReason is that of a status of True.
	AvailableReason = "Available"
	// WaitingForOwnerReason: no Machine or MachinePool has taken the config yet.
	WaitingForOwnerReason = "WaitingForOwner"
	// WaitingForClusterReason: the owner's Cluster is not there.
	WaitingForClusterReason = "WaitingForCluster"
	// WaitingForInfrastructureReason: the Cluster's infrastructure is not provisioned.
	WaitingForInfrastructureReason = "WaitingForClusterInfrastructure"
	// WaitingForControlPlaneReason: the first control plane has not been initialized.
	WaitingForControlPlaneReason = "WaitingForControlPlaneInitialized"
	// WaitingForInitLockReason: another control plane Machine is being initialized.
	WaitingForInitLockReason = "WaitingForInitLock"
	// WaitingForEndpointReason: nothing says where join services are.
	WaitingForEndpointReason = "WaitingForControlPlaneEndpoint"
	// DeletingReason: owner or Cluster is being deleted, no Secret is made any more.
	DeletingReason = "Deleting"
	// FieldRefusedReason: the message names the field of the spec that is refused, and why.
	FieldRefusedReason = "FieldRefused"
	// SecretNameTakenReason: a Secret of the config's name is somebody else's; it is left as it is.
	SecretNameTakenReason = "SecretNameTaken"
	// DraftNameTakenReason: a ConfigMap of the name of the pool's draft is somebody else's; it is left as it is.
	DraftNameTakenReason = "DraftNameTaken"
	// SecretInvalidReason: the data Secret holds no node configuration; somebody changed it.
	SecretInvalidReason = "SecretInvalid"
	// InitLockInvalidReason: the lock's ConfigMap names no Machine.
	InitLockInvalidReason = "InitLockInvalid"
)
