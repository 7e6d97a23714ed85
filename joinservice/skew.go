package joinservice

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// checkSkew holds a machine's release to those of the control planes' API servers (docs/kubernetes.md, Steps). One more control plane has
// to be of the very release that the others run: kubeadm starts it from images of the release that the cluster has recorded.
func (d *Authorizer) checkSkew(kind hullmark.TicketKind, a Admission) error {
	own := a.Verdict.Versions.Kubernetes
	if err := step.Skew(a.Member.Role, own, d.Servers); err != nil {
		return err
	}
	if kind == hullmark.Join && a.Member.Role == hullmark.ControlPlane {
		return step.Joins(own, d.Servers)
	}
	return nil
}

// planesAge is how old what is known of the control planes' releases may be. Those change by boots.
const planesAge = 10 * time.Second

// planes are what was read of the control planes' releases, for tickets that are asked for at about the same time.
type planes struct {
	of   *verified
	at   time.Time
	seen map[hullmark.EKID]step.Seen
	// behind says that the record of one does not say the policy's rotation.
	behind bool
}

// servers returns the API servers of the control planes other than node, by name: of the members of that role that have a record, as it
// says which release each was admitted with last.
func (s *Service) servers(ctx context.Context, policy *verified, node hullmark.EKID) ([]step.Seen, error) {
	known, err := s.knownPlanes(ctx, policy)
	if err != nil {
		return nil, err
	}
	var servers []step.Seen
	for id, plane := range known.seen {
		if id != node {
			servers = append(servers, plane)
		}
	}
	slices.SortFunc(servers, func(a, b step.Seen) int { return cmp.Compare(a.Node, b.Node) })
	return servers, nil
}

// knownPlanes reads the control planes' records, unless that was just done.
func (s *Service) knownPlanes(ctx context.Context, policy *verified) (*planes, error) {
	known := s.planes.Load()
	if known == nil || known.of != policy || time.Since(known.at) > planesAge {
		var err error
		if known, err = s.readPlanes(ctx, policy); err != nil {
			return nil, err
		}
		s.planes.Store(known)
	}
	return known, nil
}

func (s *Service) readPlanes(ctx context.Context, policy *verified) (*planes, error) {
	read := &planes{of: policy, at: time.Now(), seen: map[hullmark.EKID]step.Seen{}}
	for _, member := range policy.planes {
		m, version, err := s.Records.Load(ctx, member.EKID)
		if err != nil {
			return nil, err
		}
		if version == "" || m.Role != hullmark.ControlPlane {
			continue // It never got a ticket as one.
		}
		kubernetes := m.Kubernetes
		if !kubernetes.Known() {
			kubernetes = policy.versions[m.Document]
		}
		read.seen[member.EKID] = step.Seen{Node: m.Name, Version: kubernetes}
		read.behind = read.behind || m.Rotation < policy.policy.Rotation
	}
	return read, nil
}
