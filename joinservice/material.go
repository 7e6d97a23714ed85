package joinservice

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// addMaterial adds to Proceed what a node joins with: a new token, in its JoinConfiguration, where the cluster is, and a
// control plane's files, or what a worker holds the cluster's CA to. What the node confirmed is recorded with the token.
func (o *opened) addMaterial(proceed *wire.Proceed) (err error) {
	member := o.admission.Member
	var own netip.Addr
	if member.Role == hullmark.ControlPlane {
		if own, err = o.makeRoom(); err != nil {
			return err
		}
		if proceed.Files, err = o.controlPlaneFiles(); err != nil {
			return fmt.Errorf("join material: %w", err)
		}
		if err := checkSize(proceed); err != nil {
			return err
		}
	} else if err := o.service.RemoveNode(o.ctx, member.Name); err != nil {
		return err
	} else if err := o.addTrust(proceed); err != nil {
		return err
	}
	token, err := o.service.Tokens.Issue(o.ctx, Machine{EKID: o.claims.EKID, Name: member.Name, Role: member.Role}, o.confirm)
	if err != nil {
		return err
	}
	defer token.Wipe()
	documents, discovery, err := kubeadm.JoinDocuments(kubeadm.JoinParams{
		Template: []byte(o.policy.policy.Pool(member).Join),
		NodeName: member.Name, Endpoint: o.service.Settings.ControlPlaneEndpoint, CA: o.service.KubernetesCA,
		Token: token, AdvertiseAddress: own, Profile: o.service.Settings.Profile, ProviderID: member.ProviderID,
	})
	if err != nil {
		return fmt.Errorf("join material: %w", err)
	}
	proceed.KubeadmDocuments = documents
	proceed.Files = append(proceed.Files, &wire.File{Path: kubeadm.DiscoveryFile, Content: discovery, Mode: 0o644})
	return checkSize(proceed)
}

// bootstrapMargin is how much longer a kubelet's certificate has to last for the node to come back with it.
const bootstrapMargin = 10 * time.Minute

// lacksCertificate reports that a worker's kubelet has no certificate any more by this service's clock, or none that was seen
// issued and is of a CA that is trusted, so that it could renew it. What the node says of it earns it no more than a token for its own
// name and one key. A control plane makes its kubelet another itself, from the authority on its disk.
func (o *opened) lacksCertificate() bool {
	soon := time.Now().Add(bootstrapMargin)
	return o.admission.Member.Role == hullmark.Worker && (o.disk.CertificateEnds.Before(soon) || !o.last.machine.holdsBeyond(soon, authorityIDs(o.service.KubernetesCA)))
}

// authorityIDs names the CAs of a text in PEM.
func authorityIDs(text []byte) (names []string) {
	certificates, err := pemcert.Split(text)
	if err != nil {
		return nil
	}
	for _, der := range certificates {
		if certificate, err := x509.ParseCertificate(der); err == nil {
			names = append(names, AuthorityID(certificate))
		}
	}
	return names
}

// addBootstrap adds to Proceed what the kubelet of a node that comes back asks for a new certificate with. What the node confirmed
// is recorded with the token.
func (o *opened) addBootstrap(proceed *wire.Proceed) error {
	member := o.admission.Member
	token, err := o.service.Tokens.Issue(o.ctx, Machine{EKID: o.claims.EKID, Name: member.Name, Role: member.Role}, o.confirm)
	if err != nil {
		return err
	}
	defer token.Wipe()
	kubeconfig, err := kubeadm.BootstrapKubeconfig(o.service.Settings.ControlPlaneEndpoint, o.service.KubernetesCA, token)
	if err != nil {
		return fmt.Errorf("join material: %w", err)
	}
	proceed.Files = append(proceed.Files, &wire.File{Path: kubeadm.BootstrapFile, Content: kubeconfig, Mode: 0o600})
	return nil
}

// AddPool adds to Proceed, last of all, what a member's pool gives its nodes at each boot, and refuses what is too large for a
// message by then. Secrets that its files hold as encrypted text are opened by keys; first is the cluster's first root.
func AddPool(proceed *wire.Proceed, policy measurements.Policy, member measurements.Member, keys DiskKeys, first hullmark.ClusterRoot) error {
	pool := policy.Pool(member)
	for _, f := range pool.Files {
		mode, err := strconv.ParseUint(f.Mode, 8, 9)
		if err != nil {
			return fmt.Errorf("pool %s: %s: mode: %w", pool.Name, f.Path, err)
		}
		content, err := decrypted(f, keys, first)
		if err != nil {
			return fmt.Errorf("pool %s: %w", pool.Name, err)
		}
		proceed.Files = append(proceed.Files, &wire.File{Path: f.Path, Content: content, Mode: uint32(mode)})
	}
	proceed.Hooks = pool.Hooks
	return checkSize(proceed)
}

// decrypted is what a node gets of a pool's file.
func decrypted(f measurements.PlacedFile, keys DiskKeys, first hullmark.ClusterRoot) ([]byte, error) {
	content, err := hullmark.Decrypted(f.Content, func(e hullmark.EncryptedText) (hullmark.Secret, error) { return keys.Decrypt(first, e) })
	if c := (*hullmark.Condition)(nil); err == nil || errors.As(err, &c) {
		return content, err
	}
	return nil, &hullmark.Condition{
		Code: "pool-secret", Step: "EPOCH", Title: fmt.Sprintf("a secret in the pool's file %s cannot be opened: %v", f.Path, err), Retry: true,
		Next: "encrypt it with this cluster's file (hullmark cluster encrypt), render, and sign and push the policy",
	}
}

// CheckSecrets reports an encrypted text of a policy's pools that join services with these keys could not open.
func CheckSecrets(policy measurements.Policy, keys DiskKeys, first hullmark.ClusterRoot) error {
	for _, pool := range policy.Pools {
		for _, f := range pool.Files {
			content, err := decrypted(f, keys, first)
			clear(content)
			if err != nil {
				return fmt.Errorf("pool %s: %w", pool.Name, err)
			}
		}
	}
	return nil
}

// addEndpoint adds to Proceed, for a node that comes back, where the control plane is reached by now. A control plane takes that
// from the policy: its API server is made to serve it in this boot. Others are told what this service's own control plane
// serves since its last.
func (o *opened) addEndpoint(proceed *wire.Proceed) error {
	settings := o.service.Settings
	if o.admission.Member.Role == hullmark.ControlPlane {
		settings = settings.Under(o.policy.policy)
		encoded, err := settings.Encode()
		if err != nil {
			return fmt.Errorf("the endpoint of a node that comes back: %w", err)
		}
		proceed.Names = settings.Names
		proceed.Files = append(proceed.Files, &wire.File{Path: hullmark.SettingsFile, Content: encoded, Mode: 0o644})
		if err := o.addRotated(proceed); err != nil {
			return err
		}
	} else if err := o.addTrust(proceed); err != nil {
		return err
	}
	proceed.Endpoint = settings.ControlPlaneEndpoint
	return nil
}

// addTrust adds to Proceed of a worker, once policies commit to the Kubernetes CA, the signed policy, and for a node that comes back the
// certificates themselves: one that joins has them from the cluster. A service that holds others than the policy commits to brings none,
// and the worker goes on with what it has. That the worker trusts them is recorded only if all control planes hold them: from then on the
// cluster tells its pods of no others, which read them when they start.
func (o *opened) addTrust(proceed *wire.Proceed) error {
	committed := o.policy.policy.KubernetesCA
	if committed == (hullmark.CADigest{}) || hullmark.DigestCA(o.service.KubernetesCA) != committed {
		return nil
	}
	proceed.Files = append(proceed.Files, &wire.File{Path: hullmark.PolicyFile, Content: o.policy.signed.Envelope, Mode: 0o644})
	if o.comesBack() {
		proceed.Files = append(proceed.Files, &wire.File{Path: hullmark.KubernetesCACertificate, Content: o.service.KubernetesCA, Mode: 0o644})
	}
	planes, err := o.service.knownPlanes(o.ctx, o.policy)
	if err == nil && !planes.behind {
		o.trusts = committed
	}
	return err
}
