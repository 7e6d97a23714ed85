package kubeadm

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

// Version is the Kubernetes release that the image carries.
const Version = "v1.36.3"

// Repository is the name that the side-loaded images live under.
const Repository = "localhost/hullmark"

// PatchesDir is where the verity root keeps kubeadm's patches: they mount each program from the verity root into its container.
const PatchesDir = "/usr/lib/kubernetes/patches"

// CertificateLife is how long the certificates are good for that the cluster signs for kubelets, and so how long a machine may
// keep one that is removed. A kubelet renews each when 70 to 90 % of its life are over (k8s.io/client-go util/certificate,
// jitteryDuration): an API that is down for 7 hours leaves none without.
const CertificateLife = 72 * time.Hour

// Profile says how patient a cluster is.
type Profile string

const (
	// Normal keeps kubeadm's own defaults.
	Normal Profile = ""
	// Slow is for machines that are tens of times slower than real ones, such as emulated ones. It waits longer, uses ECDSA
	// P-256 for the certificates that kubeadm makes, lets etcd miss more heartbeats, takes more memory for less work, measures
	// containers more rarely, and, unless there are Several, runs the controllers without leader election: with a second
	// control plane two of each would act at once. It is meant for tests.
	Slow Profile = "slow"
)

// ResolvFile is where pods' name servers come from: what systemd-resolved learned. /etc/resolv.conf names its stub, which pods do not
// reach.
const ResolvFile = "/run/systemd/resolve/resolv.conf"

// Params are what differs between clusters.
type Params struct {
	// Kubernetes is the release that the node's image carries; none means Version.
	Kubernetes hullmark.Version
	// NodeName is the first control-plane node's name, a DNS label.
	NodeName string
	// ProviderID is what the machine's infrastructure calls it, which its kubelet registers the node with; empty means none.
	ProviderID string
	// AdvertiseAddress is the address that the node's API server tells others.
	AdvertiseAddress netip.Addr
	// ClusterName names the cluster in kubeconfig files; empty means kubernetes.
	ClusterName string
	// Endpoint is the control plane's stable host:port; empty means AdvertiseAddress:6443.
	Endpoint string
	// ServiceSubnet and PodSubnet are the cluster's own networks, of the same families. AdvertiseAddress is of the first one's.
	ServiceSubnet, PodSubnet Subnets
	// SANs are further names and addresses that the API server's certificate is for.
	SANs []string
	// Workloads lets ordinary pods run on the control-plane node.
	Workloads bool
	// Profile is Normal or Slow.
	Profile Profile
	// Several says that there is to be more than one control plane, or may be.
	Several bool
	// WireGuard encrypts what pods of different nodes send each other, and NetworkPolicies has these enforced (Flannel).
	WireGuard, NetworkPolicies bool
}

func (p Params) version() string {
	if p.Kubernetes.Known() {
		return p.Kubernetes.String()
	}
	return Version
}

// endpoint is where nodes reach the API server.
func (p Params) endpoint() string {
	if p.Endpoint != "" {
		return p.Endpoint
	}
	return netip.AddrPortFrom(p.AdvertiseAddress, 6443).String()
}

func (p Params) check() error {
	switch {
	case p.NodeName == "":
		return errors.New("kubeadm documents: node name: missing")
	case !p.AdvertiseAddress.IsValid() || p.AdvertiseAddress.IsUnspecified():
		return fmt.Errorf("kubeadm documents: advertise address %q: want the node's own address", p.AdvertiseAddress)
	case p.ProviderID != "" && !hullmark.ValidProviderID(p.ProviderID):
		return fmt.Errorf("kubeadm documents: provider ID %.80q: want SCHEME://…", p.ProviderID)
	case p.Profile != Normal && p.Profile != Slow:
		return fmt.Errorf("kubeadm documents: profile %q: want slow or none", p.Profile)
	}
	if err := p.checkNetworks(); err != nil {
		return err
	}
	if primary := p.ServiceSubnet[0]; p.AdvertiseAddress.Is4() != primary.Addr().Is4() {
		return fmt.Errorf("kubeadm documents: advertise address %s: want one of the family of the first service subnet, %s", p.AdvertiseAddress, primary)
	}
	if err := p.CheckNodeAddress(p.AdvertiseAddress); err != nil {
		return fmt.Errorf("kubeadm documents: advertise %w", err)
	}
	return nil
}

// InitDocuments writes what kubeadm init reads: an InitConfiguration, a ClusterConfiguration (kubeadm.k8s.io/v1beta4) and a
// KubeletConfiguration, as one YAML stream. It holds no secret: the cluster's keys lie in /etc/kubernetes/pki before kubeadm
// starts.
func InitDocuments(p Params) ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	initial, cluster, kubelet := initOf(p), clusterOf(p), kubeletOf()
	if p.Profile == Slow {
		slow(&initial, &cluster, p.Several)
	}
	return stream(initial, cluster, kubelet)
}

// stream writes documents as one YAML stream.
func stream(documents ...any) ([]byte, error) {
	var out bytes.Buffer
	for _, d := range documents {
		text, err := yaml.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("kubeadm documents: %w", err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}

func initOf(p Params) initConfiguration {
	c := initConfiguration{
		meta:             meta{APIVersion: kubeadmAPI, Kind: "InitConfiguration"},
		NodeRegistration: registrationOf(p.NodeName, p.ProviderID),
		LocalAPIEndpoint: endpoint{AdvertiseAddress: p.AdvertiseAddress.String(), BindPort: 6443},
		// kube-proxy is an addon of ours: kubeadm has no patch for it, and its image is empty. The phase bootstrap-token makes a token that
		// nobody needs and lets every certificate request of a kubelet be approved unseen; what of its rules is needed comes as a manifest.
		SkipPhases: []string{"addon/kube-proxy", "bootstrap-token", "show-join-command"},
		Patches:    directory{Directory: PatchesDir},
	}
	if p.Workloads {
		// An empty list, unlike none, means no taint.
		c.NodeRegistration.Taints = &[]taint{}
	}
	return c
}

// registrationOf is what any node of a cluster says of itself.
func registrationOf(name, providerID string) nodeRegistration {
	r := nodeRegistration{
		Name:      name,
		CRISocket: "unix:///run/containerd/containerd.sock",
		// The check looks for the kernel's build configuration below /boot, which the image leaves out; the kernel is the image's own.
		IgnorePreflightErrors: []string{"SystemVerification"},
		ImagePullPolicy:       "IfNotPresent",
	}
	if providerID != "" {
		r.KubeletExtraArgs = []argument{{Name: providerFlag, Value: providerID}}
	}
	return r
}

func clusterOf(p Params) clusterConfiguration {
	return clusterConfiguration{
		meta:                 meta{APIVersion: kubeadmAPI, Kind: "ClusterConfiguration"},
		ClusterName:          p.ClusterName,
		KubernetesVersion:    p.version(),
		ImageRepository:      Repository,
		ControlPlaneEndpoint: p.endpoint(),
		Networking:           networking{ServiceSubnet: p.ServiceSubnet.String(), PodSubnet: p.PodSubnet.String(), DNSDomain: "cluster.local"},
		APIServer:            apiServer{CertSANs: p.SANs, ExtraArgs: kubeletVerification()},
		ControllerManager: component{ExtraArgs: append(signing(), []argument{
			// kubeadm's own list, without the controller that would approve an administrator's requests before the join service
			// has looked at them.
			{Name: "controllers", Value: "*,bootstrapsigner,tokencleaner,-certificatesigningrequest-approving-controller"},
			// kubeadm mounts the default, which is in the read-only /usr.
			{Name: "flex-volume-plugin-dir", Value: volumePlugins},
			{Name: "cluster-signing-duration", Value: CertificateLife.String()},
		}...)},
	}
}

// volumePlugins is where volume plugins are looked for; the default is in the read-only /usr.
const volumePlugins = "/var/lib/kubelet/volume-plugins"

func kubeletOf() kubeletConfiguration {
	return kubeletConfiguration{
		meta:            meta{APIVersion: kubeletAPI, Kind: "KubeletConfiguration"},
		CgroupDriver:    "systemd",
		VolumePluginDir: volumePlugins,
		ResolvConf:      ResolvFile,
		// Both of a kubelet's certificates come from requests that the join service decides on.
		ServerTLSBootstrap: true,
		RotateCertificates: true,
	}
}

func slow(i *initConfiguration, c *clusterConfiguration, several bool) {
	i.Timeouts = patient()
	i.NodeRegistration.slow()
	c.EncryptionAlgorithm = "ECDSA-P256"
	c.Etcd = &etcd{Local: localEtcd{DataDir: EtcdData, ExtraArgs: []argument{
		{Name: "heartbeat-interval", Value: "500"},
		{Name: "election-timeout", Value: "5000"},
	}}}
	elects := []argument{{Name: "leader-elect", Value: "false"}}
	if several {
		// Whoever leads ends if it cannot renew its lease; that may take long here.
		elects = []argument{
			{Name: "leader-elect-lease-duration", Value: "60s"}, {Name: "leader-elect-renew-deadline", Value: "50s"}, {Name: "leader-elect-retry-period", Value: "5s"},
		}
	}
	c.ControllerManager.ExtraArgs = append(c.ControllerManager.ExtraArgs, elects...)
	c.Scheduler.ExtraArgs = append(c.Scheduler.ExtraArgs, elects...)
	// Each makes much garbage while it starts, and all start at once.
	c.APIServer.ExtraEnvs = []argument{{Name: "GOGC", Value: "400"}}
	// A Go program whose threads look for work takes time from the API server, on which these two wait.
	single := append(slices.Clone(c.APIServer.ExtraEnvs), argument{Name: "GOMAXPROCS", Value: "1"})
	c.ControllerManager.ExtraEnvs, c.Scheduler.ExtraEnvs = single, single
}

// slow has a kubelet measure its containers once a minute, not every ten seconds: a fifth of what it did on an emulated machine.
func (r *nodeRegistration) slow() {
	r.KubeletExtraArgs = append(r.KubeletExtraArgs, argument{Name: "housekeeping-interval", Value: "1m"})
}

// patient is how long kubeadm waits on machines of the profile Slow.
func patient() *timeouts {
	return &timeouts{
		ControlPlaneComponentHealthCheck: "20m",
		KubeletHealthCheck:               "20m",
		KubernetesAPICall:                "10m",
		EtcdAPICall:                      "10m",
		TLSBootstrap:                     "20m",
		Discovery:                        "20m",
	}
}
