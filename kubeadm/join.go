package kubeadm

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

// DiscoveryFile is the kubeconfig that tells kubeadm join where the cluster is and which CA its API server's certificate has to
// come from. It names no user and holds no secret.
const DiscoveryFile = "/etc/kubernetes/discovery.conf"

// pkiDir is where kubeadm keeps authorities, keys and certificates.
const pkiDir = "/etc/kubernetes/pki"

// JoinRemains are the files and folders that a kubeadm join that did not end may leave, on a worker or a control plane: the
// kubeconfigs, the authorities and certificates, the static pods, etcd's data, the kubelet's settings, and the keys and
// certificates that it asked for under a token that is no longer valid. Removed, the disk is as before the join; what the
// container runtime keeps harms nothing. Most of them make the next join refuse (k8s.io/kubernetes cmd/kubeadm/app/preflight,
// JoinNodeChecks and InitNodeChecks); data of a member that etcd has forgotten would keep the next one from starting, and an
// admin.conf would be used in the place of the token.
func JoinRemains() []string {
	return append([]string{
		"/etc/kubernetes/kubelet.conf", BootstrapFile, DiscoveryFile, "/etc/kubernetes/admin.conf",
		"/etc/kubernetes/super-admin.conf", "/etc/kubernetes/controller-manager.conf", "/etc/kubernetes/scheduler.conf",
		"/etc/kubernetes/tmp", pkiDir, EtcdData,
		"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/instance-config.yaml", FlagsFile, kubeletPKI,
	}, StaticPods()...)
}

// StaticPodsDir is where a kubelet finds static pods.
const StaticPodsDir = kubernetesDir + "manifests"

// StaticPods are the manifests that kubeadm writes on a control plane.
func StaticPods() []string {
	return []string{
		StaticPodsDir + "/etcd.yaml", apiServerManifest,
		StaticPodsDir + "/kube-controller-manager.yaml", StaticPodsDir + "/kube-scheduler.yaml",
	}
}

// ControlPlaneFiles are what has to be there before kubeadm makes a machine one more control plane: the authorities and the
// service accounts' keys, which all control planes share (cmd/kubeadm/app/phases/certs, SharedCertificateExists), and the
// kubelets' CA, which kubeadm does not know.
func ControlPlaneFiles() []string {
	var files []string
	for _, f := range hullmark.NodeFiles() {
		if f.Shared && strings.HasPrefix(f.Path, pkiDir+"/") {
			files = append(files, f.Path)
		}
	}
	return files
}

// JoinWrites reports whether kubeadm join writes a file itself, and so must not find it. Authorities and keys are brought to a
// control plane alone.
func JoinWrites(name string, controlPlane bool) bool {
	if name == DiscoveryFile || controlPlane && strings.HasPrefix(name, pkiDir+"/") {
		return false
	}
	return slices.ContainsFunc(JoinRemains(), func(remains string) bool { return name == remains || strings.HasPrefix(name, remains+"/") })
}

// JoinParams are what a node needs to join.
type JoinParams struct {
	// NodeName is the node's name, a DNS label.
	NodeName string
	// Endpoint is the control plane's host:port.
	Endpoint string
	// CA has the certificates of the cluster's Kubernetes CA in PEM.
	CA []byte
	// Token is the bootstrap token ("id.secret") with which the kubelet asks for its first certificate.
	Token hullmark.Secret
	// AdvertiseAddress makes the node a control plane: it is the address that its API server and its member of etcd tell
	// others. A worker has none.
	AdvertiseAddress netip.Addr
	// Profile is Normal or Slow.
	Profile Profile
	// ProviderID is what the machine's infrastructure calls it, which its kubelet registers the node with; empty means none.
	ProviderID string
	// Template is a JoinConfiguration in YAML, of which all but the fields above is kept; empty means Hullmark's own for the profile.
	Template []byte
}

func (p JoinParams) check() error {
	if !hullmark.ValidNodeName(p.NodeName) {
		return fmt.Errorf("join documents: node name %.80q: want a DNS label", p.NodeName)
	}
	if host, port, err := net.SplitHostPort(p.Endpoint); err != nil || host == "" || port == "" {
		return fmt.Errorf("join documents: endpoint %.80q: want host:port", p.Endpoint)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(p.CA) {
		return errors.New("join documents: CA: no certificate in PEM")
	}
	if !wholeToken.Match(p.Token.Expose()) {
		return errors.New("join documents: token: want 6 and 16 lower-case letters or digits, joined by a dot")
	}
	if p.AdvertiseAddress.IsValid() && !p.AdvertiseAddress.IsGlobalUnicast() {
		return fmt.Errorf("join documents: advertise address %s: want one at which other machines reach the node", p.AdvertiseAddress)
	}
	if p.Profile != Normal && p.Profile != Slow {
		return fmt.Errorf("join documents: profile %q: want slow or none", p.Profile)
	}
	if p.ProviderID != "" && !hullmark.ValidProviderID(p.ProviderID) {
		return fmt.Errorf("join documents: provider ID %.80q: want SCHEME://…", p.ProviderID)
	}
	return nil
}

// JoinDocuments writes what kubeadm join reads: a JoinConfiguration (kubeadm.k8s.io/v1beta4), and the content of DiscoveryFile,
// which it names. The first holds the token: it belongs into memory and RAM disks only. Everything else a joining node takes
// from the cluster; a control plane finds ControlPlaneFiles in place, so it is given no key to download them.
func JoinDocuments(p JoinParams) (documents, discoveryFile []byte, err error) {
	if err := p.check(); err != nil {
		return nil, nil, err
	}
	if len(p.Template) > 0 {
		documents, err = p.fill()
	} else {
		documents, err = stream(joinOf(p))
	}
	if err != nil {
		return nil, nil, err
	}
	discoveryFile, err = discoveryOf(p)
	return documents, discoveryFile, err
}

// fill writes into the template what one node alone has.
func (p JoinParams) fill() ([]byte, error) {
	var c map[string]any
	if err := yaml.UnmarshalStrict(p.Template, &c); err != nil {
		return nil, fmt.Errorf("join documents: template: %w", err)
	}
	registration, isRegistration := c["nodeRegistration"].(map[string]any)
	found, isDiscovery := c["discovery"].(map[string]any)
	if c["kind"] != "JoinConfiguration" || c["apiVersion"] != kubeadmAPI || !isRegistration || !isDiscovery {
		return nil, fmt.Errorf("join documents: template: want a JoinConfiguration of %s with nodeRegistration and discovery", kubeadmAPI)
	}
	registration["name"], found["tlsBootstrapToken"] = p.NodeName, string(p.Token.Expose())
	found["file"] = discoveryFile{KubeConfigPath: DiscoveryFile}
	if err := p.putProviderID(registration); err != nil {
		return nil, fmt.Errorf("join documents: template: %w", err)
	}
	delete(c, "controlPlane")
	if p.AdvertiseAddress.IsValid() {
		c["controlPlane"] = joinControlPlane{LocalAPIEndpoint: endpoint{AdvertiseAddress: p.AdvertiseAddress.String(), BindPort: 6443}}
	}
	return stream(c)
}

func joinOf(p JoinParams) joinConfiguration {
	c := joinConfiguration{
		meta:             meta{APIVersion: kubeadmAPI, Kind: "JoinConfiguration"},
		NodeRegistration: registrationOf(p.NodeName, p.ProviderID),
		Discovery: discovery{
			File: discoveryFile{KubeConfigPath: DiscoveryFile}, TLSBootstrapToken: string(p.Token.Expose()),
		},
		Patches: directory{Directory: PatchesDir},
	}
	if p.AdvertiseAddress.IsValid() {
		c.ControlPlane = &joinControlPlane{LocalAPIEndpoint: endpoint{AdvertiseAddress: p.AdvertiseAddress.String(), BindPort: 6443}}
	}
	if p.Profile == Slow {
		c.Timeouts = patient()
		c.NodeRegistration.slow()
	}
	return c
}

// discoveryOf has one cluster without a name and no context, the form of a cluster that comes without a user.
func discoveryOf(p JoinParams) ([]byte, error) {
	type object = map[string]any
	text, err := yaml.Marshal(object{
		"apiVersion": "v1", "kind": "Config",
		"clusters": []object{{"name": "", "cluster": object{"server": "https://" + p.Endpoint, "certificate-authority-data": p.CA}}},
	})
	if err != nil {
		return nil, fmt.Errorf("join documents: %w", err)
	}
	return text, nil
}
