// Package step judges steps from one release's Kubernetes to another's: whether a node may go forward, among which versions it may
// run, whether it may go back, and which APIs and flags of a cluster the next release no longer has (docs/kubernetes.md, Steps).
//
// It is pure: whoever asks brings what documents, API servers and programs say. Every refusal is a *hullmark.Condition.
package step

import (
	"fmt"

	"github.com/hullmark/hullmark"
)

// name is the step in conditions: before a release is staged no node does anything yet.
const name = "UPDATE"

// Release is what a document says of a release, as far as a step depends on it.
type Release struct {
	// Image is IMAGE_ID: releases of another image do not follow on these.
	Image string
	hullmark.Versions
	// SVN is the security version.
	SVN uint32
}

// Seen is a program of a node: its API server, or its kubelet.
type Seen struct {
	// Node is the node's name.
	Node    string
	Version hullmark.Version
}

// Step is one that a node is to take.
type Step struct {
	Role     hullmark.Role
	From, To Release
	// Servers are the API servers of other control planes, and Kubelets those of other nodes.
	Servers, Kubelets []Seen
}

// Judge refuses a step that could not be taken, or not taken back as long as it is on trial: one to a release that says no version, over
// more than one minor release or to an earlier one, to another minor release of etcd, or one that would leave versions in the cluster
// that do not work with each other.
func (s Step) Judge() error {
	if !s.From.Kubernetes.Known() && !s.To.Kubernetes.Known() && s.From.Image == s.To.Image {
		return nil // Neither has Kubernetes, or both are from before images said so.
	}
	if err := s.judgeKubernetes(); err != nil {
		return err
	}
	if s.Role != hullmark.ControlPlane {
		return Skew(s.Role, s.To.Kubernetes, s.Servers)
	}
	if err := s.judgeEtcd(); err != nil {
		return err
	}
	if err := Skew(s.Role, s.To.Kubernetes, s.Servers); err != nil {
		return err
	}
	return s.judgeKubelets()
}

// judgeKubernetes looks at the node's own step (Kubernetes' version skew policy, Supported component upgrade order).
func (s Step) judgeKubernetes() error {
	from, to := s.From.Kubernetes, s.To.Kubernetes
	if !from.Known() || !to.Known() {
		return unknown("Kubernetes", from, to)
	}
	switch behind := behind(from, to); {
	case behind > 1:
		return &hullmark.Condition{
			Code: codeKubernetes, Step: name, Title: "the release is more than one minor release of Kubernetes ahead", Expected: fmt.Sprintf("%d.%d at most", from.Major, from.Minor+1), Got: to.String(),
			Next: "take a release of the next minor release first, on all control planes",
		}
	case behind < 0:
		return &hullmark.Condition{
			Code: codeKubernetes, Step: name, Title: "the release is of an earlier minor release of Kubernetes", Expected: from.Line() + " or later", Got: to.String(),
			Next: "go back to the slot that ran before, as long as the new one is on trial; otherwise restore a backup of that time",
		}
	}
	return nil
}

// codeKubernetes is of a step that Kubernetes does not take.
const codeKubernetes = "kubernetes-step"

// judgeEtcd refuses another minor release of etcd: as soon as that has started, its data is no earlier one's any more.
func (s Step) judgeEtcd() error {
	from, to := s.From.Etcd, s.To.Etcd
	switch {
	case !from.Known() || !to.Known():
		return unknown("etcd", from, to)
	case from.SameLine(to):
		return nil
	}
	return &hullmark.Condition{
		Code: "etcd-step", Step: name, Title: "the release has etcd of another minor release, from which no slot goes back", Expected: from.Line(), Got: to.String(),
		Next: "take a release with the same minor release of etcd",
	}
}

// judgeKubelets looks at the kubelets that would speak to the node's API server.
func (s Step) judgeKubelets() error {
	for _, k := range s.Kubelets {
		if !k.Version.Known() {
			return unknown("the kubelet of "+k.Node, k.Version, s.To.Kubernetes)
		}
		if older := behind(k.Version, s.To.Kubernetes); older < 0 || older > kubeletSkew {
			return skew("the kubelet of "+k.Node+" would not work with this release's API server", kubeletRange(s.To.Kubernetes), k.Version,
				"bring "+k.Node+" to a release of that range first (control planes come before workers), or remove it (hullmark node remove)")
		}
	}
	return nil
}

// behind returns by how many minor releases v is older than other; it is negative where v is newer. Major releases lie far apart.
func behind(v, other hullmark.Version) int {
	const far = 1 << 20
	return (other.Major-v.Major)*far + other.Minor - v.Minor
}

// unknown is the condition of a release, or a node, of which nobody can say what it steps from or to.
func unknown(what string, from, to hullmark.Version) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "version-unknown", Step: name, Title: what + ": a version is not known, so nothing can be said of the step", Expected: "two versions", Got: fmt.Sprintf("%v and %v", from, to),
		Next: "take a release whose document says its versions (hullmark verify); one that says none is replaced by another disk",
	}
}
