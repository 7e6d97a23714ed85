package joinservice

import (
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
)

// addMaterial adds to M6 what a worker joins with: a new token, in its JoinConfiguration, and where the cluster is.
func (x *release) addMaterial(proceed *wire.Proceed) error {
	member := x.admission.Member
	if member.Role != hullmark.Worker {
		return controlPlaneJoin() // its disk is ready, but its kubeadm never finished
	}
	id, token, err := x.service.Tokens.Issue(x.ctx, Machine{Node: x.claims.Node, Name: member.Name, Role: member.Role})
	x.token = id
	if err != nil {
		return err
	}
	defer token.Wipe()
	documents, discovery, err := kubeadm.JoinDocuments(kubeadm.JoinParams{
		NodeName: member.Name, Endpoint: x.service.Settings.ControlPlaneEndpoint, CA: x.service.KubernetesCA,
		Token: token, Profile: x.service.Settings.Profile,
	})
	if err != nil {
		return fmt.Errorf("join material: %w", err)
	}
	proceed.KubeadmDocuments = documents
	proceed.Files = []*wire.File{{Path: kubeadm.DiscoveryFile, Content: discovery, Mode: 0o644}}
	return nil
}
