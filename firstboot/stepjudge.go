package firstboot

import (
	"context"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// stepJudge judges another release's Kubernetes before it is staged or tried: what it refuses would fail in its first boot, or after it.
type stepJudge struct{ *Agent }

// forward refuses a release to which this one does not lead, or that would not work beside the other nodes. A node that is not Ready is
// judged by itself alone: nobody can be asked which versions run beside it.
func (j stepJudge) forward(ctx context.Context, r release) error {
	s := step.Step{Role: hullmark.Worker, From: step.Release{Versions: j.Versions}, To: r.step()}
	keys, err := j.kept.opened()
	if err != nil {
		return err
	}
	if keys.controlPlane {
		s.Role = hullmark.ControlPlane
	}
	if err := s.Judge(); err != nil || !j.Versions.Kubernetes.Known() || !j.wasReady() {
		return err
	}
	if s.Servers, s.Kubelets, err = j.others(ctx, s.Role); err != nil {
		return err
	}
	return s.Judge()
}

// others are the API servers and kubelets of other nodes. A worker may not ask for them: it goes by the release that is recorded once all
// control planes behave as it.
func (j stepJudge) others(ctx context.Context, role hullmark.Role) (servers, kubelets []step.Seen, err error) {
	access := accessAs(role, j.readState)
	if role != hullmark.ControlPlane {
		stored, err := j.Cluster.Stored(ctx, access)
		if err != nil {
			return nil, nil, err
		}
		recorded, err := kubeadm.ClusterVersion(stored.ClusterConfiguration)
		return []step.Seen{{Node: "the control planes", Version: recorded}}, nil, err
	}
	m, err := readMark(j.Agent)
	if err != nil {
		return nil, nil, err
	}
	planes, err := j.Cluster.Planes(ctx, access)
	if err != nil {
		return nil, nil, err
	}
	all, err := j.Cluster.Kubelets(ctx, access)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range planes {
		if p.Node != m.Name {
			servers = append(servers, step.Seen{Node: p.Node, Version: p.Version})
		}
	}
	for _, k := range all {
		if k.Node != m.Name {
			kubelets = append(kubelets, k)
		}
	}
	return servers, kubelets, nil
}

// back refuses to go back, for good, to a release that would not understand what has moved since. It is not asked on trial: nothing has.
func (j stepJudge) back(r release) error {
	wrote, err := written(j).kubeletRelease()
	if err != nil {
		return err
	}
	return step.Back(step.Release{Versions: j.Versions}, r.step(), true, step.Moved{KubeletConfig: wrote})
}
