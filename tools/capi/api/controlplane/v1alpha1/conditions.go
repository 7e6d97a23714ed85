package v1alpha1

import clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

// Types of conditions. Those that core or the kubeadm provider have, too, say the same.
const (
	// AvailableCondition says that the API answers, and is mirrored by core into the Cluster.
	AvailableCondition = clusterv1.AvailableCondition
	// InitializedCondition says that the first machine was Ready, once.
	InitializedCondition = "Initialized"
	// BegunCondition says how the cluster is begun: what that waits for, or what has to be done. Its reasons are below.
	BegunCondition = "Begun"
	// KubeconfigAvailableCondition says that the Secret CLUSTER-kubeconfig holds a certificate that is good.
	KubeconfigAvailableCondition = "KubeconfigAvailable"
	// EtcdClusterHealthyCondition says that each member of etcd answers, and belongs to a Machine.
	EtcdClusterHealthyCondition = "EtcdClusterHealthy"
	// EtcdMemberHealthyCondition, of a Machine, says that its member of etcd votes and answers.
	EtcdMemberHealthyCondition = "EtcdMemberHealthy"
)

// Reasons of Begun. Those that begin with WaitingFor pass by themselves, but for WaitingForClusterFile, for which a person has to lend it.
const (
	// BegunReason is that of a status of True: the cluster runs.
	BegunReason = "Begun"
	// BeginningReason: the first machine is given what it needs, and starts Kubernetes.
	BeginningReason = "Beginning"
	// WaitingForClusterReason: no Cluster refers to it yet.
	WaitingForClusterReason = "WaitingForCluster"
	// WaitingForInfrastructureReason: the Cluster's infrastructure is not provisioned.
	WaitingForInfrastructureReason = "WaitingForClusterInfrastructure"
	// WaitingForEndpointReason: the Cluster has no control plane endpoint yet.
	WaitingForEndpointReason = "WaitingForControlPlaneEndpoint"
	// WaitingForMachineReason: the first Machine's infrastructure has not reported an identity and an address yet.
	WaitingForMachineReason = "WaitingForMachineIdentity"
	// WaitingForClusterFileReason: nobody has lent the cluster file for this machine.
	WaitingForClusterFileReason = "WaitingForClusterFile"
	// ClusterFileInvalidReason: the Secret CLUSTER-lent cannot be opened, or is another cluster's.
	ClusterFileInvalidReason = "ClusterFileInvalid"
	// VersionMismatchReason: spec.version is not that of the image.
	VersionMismatchReason = "VersionMismatch"
	// SpecRefusedReason: the message names what cannot be right.
	SpecRefusedReason = "SpecRefused"
	// BeginFailedReason: the first machine was refused, or failed: the message says why, and what to do.
	BeginFailedReason = "BeginFailed"
	// BeginRetryingReason: it failed by a cause that passes; it is tried again.
	BeginRetryingReason = "BeginRetrying"
	// BeginInterruptedReason: the first machine has what it needs, and nobody knows how far it is.
	BeginInterruptedReason = "BeginInterrupted"
	// DeletingReason: the control plane, or its Cluster, is being deleted.
	DeletingReason = "Deleting"
)

// Reasons of ScalingUp and ScalingDown beside core's: what a step waits for.
const (
	// WaitingForRuleReason: no rule of the signed policy admits the newest Machine yet.
	WaitingForRuleReason = "WaitingForRule"
	// WaitingForHealthReason: a step waits until all other Machines are healthy.
	WaitingForHealthReason = "WaitingForHealth"
	// WaitingForQuorumReason: a member of etcd cannot be removed without a risk for the quorum.
	WaitingForQuorumReason = "WaitingForQuorum"
)

// Reasons of Remediating beside core's.
const (
	// RebootingReason: an unhealthy Machine was there a moment ago, and may only be restarting.
	RebootingReason = "Rebooting"
	// NotRemediatedReason: a Machine is unhealthy and is not replaced; the message says why.
	NotRemediatedReason = "NotRemediated"
)

// Reasons of RollingOut beside core's.
const (
	// WaitingForUpgradeReason: a person has to bring the release to the machines, in place.
	WaitingForUpgradeReason = "WaitingForUpgrade"
)
