// Package templates holds what "clusterctl generate cluster" makes clusters of.
package templates

import _ "embed"

// ClusterFile is the name of the file of Cluster in the infrastructure provider's release.
const ClusterFile = "cluster-template.yaml"

//go:embed cluster-template.yaml
var cluster []byte

// Cluster returns the template of a cluster of QEMU machines, with clusterctl's variables.
func Cluster() []byte { return cluster }
