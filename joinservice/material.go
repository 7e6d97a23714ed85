package joinservice

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
)

// addMaterial adds to M6 what a node joins with: a new token, in its JoinConfiguration, where the cluster is, and a control plane's files.
// What the node confirmed is recorded with the token.
func (x *release) addMaterial(proceed *wire.Proceed) (err error) {
	member := x.admission.Member
	var own netip.Addr
	if member.Role == hullmark.ControlPlane {
		if own, err = x.makeRoom(); err != nil {
			return err
		}
		if proceed.Files, err = x.service.controlPlaneFiles(); err != nil {
			return fmt.Errorf("join material: %w", err)
		}
		if err := checkSize(proceed); err != nil {
			return err
		}
	}
	token, err := x.service.Tokens.Issue(x.ctx, Machine{Node: x.claims.Node, Name: member.Name, Role: member.Role}, x.confirm)
	if err != nil {
		return err
	}
	defer token.Wipe()
	documents, discovery, err := kubeadm.JoinDocuments(kubeadm.JoinParams{
		NodeName: member.Name, Endpoint: x.service.Settings.ControlPlaneEndpoint, CA: x.service.KubernetesCA,
		Token: token, AdvertiseAddress: own, Profile: x.service.Settings.Profile,
	})
	if err != nil {
		return fmt.Errorf("join material: %w", err)
	}
	proceed.KubeadmDocuments, proceed.Time = documents, time.Now().Unix()
	proceed.Files = append(proceed.Files, &wire.File{Path: kubeadm.DiscoveryFile, Content: discovery, Mode: 0o644})
	return checkSize(proceed)
}
