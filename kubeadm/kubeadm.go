// Package kubeadm holds what kubeadm reads and writes: the documents of an init or a join, what is taken of an operator's own,
// the files that it leaves on a machine, and what of them is renewed or restored. It is pure; package run runs the real
// kubeadm.
package kubeadm

import "regexp"

// MaxDocuments is the largest stream of kubeadm documents or of addon manifests that is taken, in bytes.
const MaxDocuments = 4 << 20

// Phase is one thing that kubeadm says it does.
type Phase struct {
	// Name is kubeadm's phase, such as certs, or addons.
	Name string
	// Text is what it does, without secrets.
	Text string
}

// wholeToken is all of a bootstrap token (k8s.io/cluster-bootstrap, BootstrapTokenPattern).
var wholeToken = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
