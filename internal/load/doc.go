// Package load tests the join service under load: replicas of the real program
// and a real Kubernetes API, and machines that are fakes of nodes, each with a
// TPM emulator of its own, that join at once while something goes wrong.
package load
