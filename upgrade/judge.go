package upgrade

import (
	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm/step"
	"github.com/hullmark/hullmark/measurements"
)

// ByVersions is the Judge of Kubernetes' versions: it refuses what kubeadm/step does, as every node does for itself. A refusal that
// passes once other nodes have gone on has Retry.
func ByVersions(m Move) error {
	s := step.Step{Role: m.Role, From: releaseOf(m.From), To: releaseOf(m.To)}
	for _, other := range m.Others {
		if other.Role == hullmark.ControlPlane {
			s.Servers = append(s.Servers, step.Seen{Node: other.Name, Version: other.Document.Image.Kubernetes})
		}
		version, err := hullmark.ParseVersion(other.Kubelet)
		if err != nil {
			version = hullmark.Version{} // step says of a version that is not known what to do.
		}
		s.Kubelets = append(s.Kubelets, step.Seen{Node: other.Name, Version: version})
	}
	return s.Judge()
}

// releaseOf is what counts of a document.
func releaseOf(d measurements.Document) step.Release {
	return step.Release{Image: d.Image.ID, Versions: d.Image.Versions, SVN: d.SVN}
}
