package step

import (
	"fmt"

	"github.com/hullmark/hullmark"
)

// kubeletSkew is how many minor releases a kubelet may be older than an API server, and serverSkew how many API servers may lie apart
// (Kubernetes' version skew policy).
const (
	kubeletSkew = 3
	serverSkew  = 1
)

// Skew refuses a node's version among those of the API servers of the other control planes: a worker's kubelet is not newer than the
// oldest of them, and at most three minor releases older than the newest; a control plane is at most one minor release from each. Where
// none is known, nothing is said.
func Skew(role hullmark.Role, own hullmark.Version, servers []Seen) error {
	for _, s := range servers {
		if own.Known() != s.Version.Known() {
			return skew("it is not known whether the node's release and "+s.Node+"'s work together: one of them does not say its version", s.Version.String(), own,
				"bring both to releases whose documents say their versions, or remove "+s.Node+" (hullmark node remove)")
		}
		if !own.Known() {
			continue
		}
		older := behind(own, s.Version)
		switch {
		case role == hullmark.ControlPlane && (older > serverSkew || older < -serverSkew):
			return skew("control planes may lie one minor release of Kubernetes apart, and "+s.Node+" is further away", around(s.Version), own,
				"bring the control planes forward one minor release at a time; remove one that is gone (hullmark node remove "+s.Node+")")
		case role != hullmark.ControlPlane && older < 0:
			return skew("the node's kubelet is newer than the API server of "+s.Node, kubeletRange(s.Version), own,
				"bring "+s.Node+" to this release first; remove it if it is gone (hullmark node remove "+s.Node+")")
		case role != hullmark.ControlPlane && older > kubeletSkew:
			return skew("the node's kubelet is too old for the API server of "+s.Node, kubeletRange(s.Version), own,
				"start the node from a later release")
		}
	}
	return nil
}

// Joins refuses one more control plane of another release than the others run: kubeadm join starts it from images of the release that the
// cluster has recorded, and a node has those of its own release alone.
func Joins(own hullmark.Version, servers []Seen) error {
	for _, s := range servers {
		if own.Known() && s.Version.Known() && own != s.Version {
			return skew("one more control plane joins with the release that the others run, and "+s.Node+" runs another", s.Version.String(), own,
				"start the machine from that release; or wait until "+s.Node+" runs this one, or remove it (hullmark node remove "+s.Node+")")
		}
	}
	return nil
}

// skew is the condition of versions that do not work with each other. It passes when the others have changed.
func skew(title, expected string, got hullmark.Version, next string) *hullmark.Condition {
	return &hullmark.Condition{Code: CodeSkew, Step: "ATTEST", Title: title, Expected: expected, Got: got.String(), Next: next, Retry: true}
}

// CodeSkew is the code of the condition of versions that do not work with each other.
const CodeSkew = "version-skew"

// kubeletRange says which kubelets work with an API server.
func kubeletRange(server hullmark.Version) string {
	return fmt.Sprintf("%d.%d to %s", server.Major, server.Minor-kubeletSkew, server.Line())
}

// around says which API servers work beside one.
func around(server hullmark.Version) string {
	return fmt.Sprintf("%d.%d to %d.%d", server.Major, server.Minor-serverSkew, server.Major, server.Minor+serverSkew)
}
