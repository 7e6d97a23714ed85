package joinservice

import (
	"errors"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/measurements"
)

// diskClaim is what a Ready node says of its disk: by its key it shows that it opened it.
type diskClaim interface {
	GetGeneration() uint32
	GetOwner() []byte
	GetUuid() []byte
}

// epochKey derives the epoch key of the disk that a claim names. It asks no record.
func (s *Service) epochKey(c diskClaim) (hullmark.Secret, error) {
	authorizer := s.authorizer(s.Policy.inForce.Load())
	disk, err := authorizer.Keys.DiskKey(c.GetGeneration(), authorizer.Policy.First(authorizer.Root), hullmark.EKID(c.GetOwner()), hullmark.UUID(c.GetUuid()))
	if err != nil {
		var unreachable *hullmark.Condition
		if errors.As(err, &unreachable) {
			return hullmark.Secret{}, err
		}
		return hullmark.Secret{}, errors.Join(err, refused()) // No such generation here.
	}
	defer disk.Wipe()
	return attest.EpochKey(disk)
}

// isMember reports whether the policy in force admits the machine of the record, and the disk of that owner for it.
func (s *Service) isMember(m *Machine, owner hullmark.EKID) bool {
	handedOver := func() bool {
		return slices.Contains(s.Policy.Policy().Rebinds, measurements.Rebind{Old: owner, New: m.EKID})
	}
	return (owner == m.EKID || handedOver()) && s.Policy.Admits(*m) == nil
}

// busy refuses an unauthenticated peer beyond those that there is room for.
func busy(step string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "busy", Step: step, Title: "the join service has as many exchanges under way as it takes", Retry: true,
		Next: "wait: the node tries again by itself",
	}
}
