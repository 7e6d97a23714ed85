package v1alpha1

// ReadyCondition is mirrored by core into the Cluster and the Machine, as InfrastructureReady. Paused is core's.
const ReadyCondition = "Ready"

// Reasons of Ready, of both kinds. Those that begin with WaitingFor, and Starting and Deleting, pass by themselves.
const (
	// RunningReason is that of a status of True: the machine's, or the network's, processes run.
	RunningReason = "Running"
	// StartingReason: the processes have been started and do not serve yet.
	StartingReason = "Starting"
	// StartFailedReason: nothing ran; the message says what it takes. It is tried again.
	StartFailedReason = "StartFailed"
	// WaitingForClusterReason: no Cluster, or no Machine, has taken the object yet.
	WaitingForClusterReason = "WaitingForCluster"
	// DeletingReason: the message says what is waited for.
	DeletingReason = "Deleting"
)

// Reasons of a machine's Ready alone.
const (
	// WaitingForInfrastructureReason: the Cluster's infrastructure is not provisioned.
	WaitingForInfrastructureReason = "WaitingForClusterInfrastructure"
	// WaitingForBootstrapDataReason: the Machine names no data Secret yet, or one that is not there.
	WaitingForBootstrapDataReason = "WaitingForBootstrapData"
	// UserDataRefusedReason: the data Secret holds no node configuration. Nothing was started.
	UserDataRefusedReason = "UserDataRefused"
	// NetworkFullReason: the cluster's network has no room for another machine.
	NetworkFullReason = "NetworkFull"
	// FolderTakenReason: a folder of this machine's name belongs to another object, which is gone.
	FolderTakenReason = "FolderTaken"
	// NetworkLostReason: the network ended under the running machine, which cannot be plugged in again: replace it.
	NetworkLostReason = "NetworkLost"
	// PoweredOffReason: the guest switched itself off. The machine is not started again.
	PoweredOffReason = "PoweredOff"
	// FailedReason: the machine ended otherwise. It is not started again; the message names the console's log.
	FailedReason = "Failed"
)
