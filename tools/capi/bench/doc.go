// Package bench compares the bootstrap provider with the kubeadm provider of Cluster API, each a process of its own, on the same rig: a
// real API server and etcd, core's own manager, and an infrastructure provider that makes nothing. It has no test: nothing fails for
// being slow.
package bench
