package firstboot

import (
	"context"
	"errors"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// remembering asks the TPM everything once: nothing of what is asked here changes.
type remembering struct {
	transport.TPM
	answers map[string][]byte
}

func (r remembering) Send(command []byte) (answer []byte, err error) {
	if answer, ok := r.answers[string(command)]; ok {
		return answer, nil
	}
	answer, err = r.TPM.Send(command)
	r.answers[string(command)] = answer
	return answer, err
}

// clusterOf is Kubernetes, in which a node may not come to Ready.
type clusterOf struct {
	*agenttest.Cluster
	u *explored
}

// WaitReady returns once the node is Ready.
func (c clusterOf) WaitReady(context.Context, run.Access, string, func(error)) error {
	if c.u.sick == "the node is not Ready" {
		return errors.New(c.u.sick)
	}
	c.u.ready = true
	return nil
}

// systemOf is systemd, of which a check may fail.
type systemOf struct {
	*agenttest.System
	u *explored
}

// Start starts a unit.
func (s systemOf) Start(_ context.Context, unit string) error {
	if unit == healthTarget {
		s.u.also("while the checks run")
		if s.u.sick == "a check fails" {
			return errors.New(s.u.sick)
		}
		s.u.checked = true
	}
	return nil
}
