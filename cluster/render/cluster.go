// Package render turns the one file in which an operator describes a cluster into everything that the cluster's nodes will be
// given: kubeadm's documents, node configurations and a draft of the policy.
//
// It is a pure computation: the same file gives the same bytes, wherever and whenever it is rendered. docs/cluster-document.md
// describes the file.
package render

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// Schema names the format of a Cluster.
const Schema = "hullmark.cluster/v1"

// Limits of a cluster document.
const (
	// MaxCluster is the largest document that is read, in bytes, also after its aliases are written out.
	MaxCluster = 1 << 20
	maxPools   = 64
	maxMembers = 10000
)

// Cluster is the operator's document. Parse fills in what it may leave out.
type Cluster struct {
	// Schema is that of this package.
	Schema string `json:"schema"`
	// Name names the cluster in kubeconfig files; empty means kubernetes.
	Name string `json:"name,omitempty"`
	// Root is the cluster's, which `hullmark cluster new` prints.
	Root hullmark.ClusterRoot `json:"clusterRoot"`
	// KubernetesVersion is the image's; it is written down so that a file for another image is refused.
	KubernetesVersion string `json:"kubernetesVersion"`
	// Profile is kubeadm.Normal or kubeadm.Slow.
	Profile kubeadm.Profile `json:"profile,omitempty"`
	// ControlPlane says how the API servers are reached.
	ControlPlane ControlPlane `json:"controlPlane"`
	// Network is the cluster's own.
	Network Network `json:"network"`
	// JoinEndpoints are the join services as host:port; the default is port 7444 of every control plane whose address is known,
	// or of the endpoint.
	JoinEndpoints []string `json:"joinEndpoints,omitempty"`
	Surroundings
	// Pools are the sets of like nodes. The first member of the first control-plane pool is the node that init makes.
	Pools []Pool `json:"pools"`
	// Files and Hooks are for every node.
	Files []File   `json:"files,omitempty"`
	Hooks []string `json:"hooks,omitempty"`
	// Overrides are an InitConfiguration, a ClusterConfiguration and a KubeletConfiguration, each at most once, with only the
	// fields that shall differ.
	Overrides []Override `json:"overrides,omitempty"`
	// Addons are brought to the cluster by `hullmark addons`, in this order.
	Addons []Addon `json:"addons,omitempty"`
}

// ControlPlane says how the API servers are reached.
type ControlPlane struct {
	// Endpoint is the stable host:port of all API servers together.
	Endpoint string `json:"endpoint"`
	// AdvertiseAddress is the first node's own; the default is its first static address.
	AdvertiseAddress string `json:"advertiseAddress,omitempty"`
	// SANs are further names and addresses that the API servers' certificates are for.
	SANs []string `json:"sans,omitempty"`
}

// Network is the cluster's own.
type Network struct {
	// PodSubnet is 10.244.0.0/16 by default, ServiceSubnet 10.96.0.0/12: a network in CIDR notation, or one of each family, by a comma.
	PodSubnet     string `json:"podSubnet,omitempty"`
	ServiceSubnet string `json:"serviceSubnet,omitempty"`
	// Policies has Hullmark's flannel enforce NetworkPolicies from the next run of `hullmark addons` on, or not; nil leaves it as it is.
	Policies *bool `json:"policies,omitempty"`
}

// Pool is a set of nodes that differ in nothing but name and addresses.
type Pool struct {
	// Name is a DNS label.
	Name string `json:"name"`
	// Role is that of all members.
	Role hullmark.Role `json:"role"`
	// StateDisk selects each member's state disk.
	StateDisk hullmark.DiskSelector `json:"stateDisk"`
	// Install is the disk that an installation medium with a member's configuration installs.
	Install *hullmark.Install `json:"install,omitempty"`
	// Members are the machines that may hold a ticket, by identity.
	Members []Member `json:"members,omitempty"`
	// Vouched admits further machines, whose keys nobody knows beforehand, to a pool of workers.
	Vouched *Vouched `json:"vouched,omitempty"`
	// Interfaces are those of each machine that has none, and no static addresses, of its own.
	Interfaces []hullmark.Interface `json:"interfaces,omitempty"`
	// Proxy is for what the machines fetch from servers outside.
	Proxy *hullmark.Proxy `json:"proxy,omitempty"`
	// Labels are set by the kubelet on its own Node.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints are those of a new Node. Nil means kubeadm's own, which keep ordinary pods off a control plane; an empty list means none.
	Taints *[]Taint `json:"taints,omitempty"`
	// Files and Hooks are for this pool's nodes, beside the cluster's.
	Files []File   `json:"files,omitempty"`
	Hooks []string `json:"hooks,omitempty"`
	// Overrides is at most one JoinConfiguration, with only the fields that shall differ.
	Overrides []Override `json:"overrides,omitempty"`
	// Surroundings take the place of the cluster's, each part for itself.
	Surroundings
}

// Member is one machine of a pool.
type Member struct {
	// Name is the node's name, a DNS label.
	Name string `json:"name"`
	// EKID is the machine's identity.
	EKID hullmark.EKID `json:"ekid"`
	// ProviderID is what the machine's infrastructure calls it; empty means none.
	ProviderID string `json:"providerID,omitempty"`
	// Addresses are static addresses in CIDR notation; without them the machine uses what its network offers.
	Addresses []string `json:"addresses,omitempty"`
	// Gateway is the default route for static addresses, NameServers are DNS servers for them.
	Gateway     string   `json:"gateway,omitempty"`
	NameServers []string `json:"nameServers,omitempty"`
	// Interfaces say more of the machine's network, in the place of these and of the pool's.
	Interfaces []hullmark.Interface `json:"interfaces,omitempty"`
	// StateDisk and Install take the place of the pool's.
	StateDisk *hullmark.DiskSelector `json:"stateDisk,omitempty"`
	Install   *hullmark.Install      `json:"install,omitempty"`
}

// config is what the node configuration of a pool's machine says of it; a member without a name is any machine.
func (p Pool) config(m Member) hullmark.NodeConfig {
	c := hullmark.NodeConfig{Addresses: m.Addresses, Gateway: m.Gateway, NameServers: m.NameServers, Interfaces: m.Interfaces, Proxy: p.Proxy}
	if !m.ownNetwork() {
		c.Interfaces = p.Interfaces
	}
	c.StateDisk, c.Install = p.StateDisk, p.Install
	if m.StateDisk != nil {
		c.StateDisk = *m.StateDisk
	}
	if m.Install != nil {
		c.Install = m.Install
	}
	return c
}

// own reports whether a member's configuration is another than its pool's.
func (m Member) own() bool { return m.ownNetwork() || m.StateDisk != nil || m.Install != nil }

func (m Member) ownNetwork() bool {
	return len(m.Addresses) > 0 || m.Gateway != "" || len(m.NameServers) > 0 || len(m.Interfaces) > 0
}

// Vouched is a rule for machines that somebody vouches for, their maker or landlord, or an enroller: a measurements.Group of the
// pool's name.
type Vouched struct {
	// Authorities are certificates, in PEM, of CAs that sign the machines' EK certificates themselves.
	Authorities string `json:"authorities,omitempty"`
	// Roots are certificates, in PEM, of CAs to which the machines' EK certificates lead by those that the machines show.
	Roots string `json:"roots,omitempty"`
	// Subject are the attributes, by CN, O, OU, L, ST or C, that each such certificate's subject has.
	Subject map[string]string `json:"subject,omitempty"`
	// Enrollers are Ed25519 public keys, in PEM, of who signs vouchers for machines, in the place of a subject.
	Enrollers string `json:"enrollers,omitempty"`
	// Max is how many machines the pool may have of them.
	Max int `json:"max"`
}

// Taint keeps pods off a node that do not tolerate it.
type Taint struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	// Effect is NoSchedule, PreferNoSchedule or NoExecute.
	Effect string `json:"effect"`
}

// File is a file that is placed on nodes. It is public: policy, documents and diffs show it. Secrets in it are encrypted
// (hullmark cluster encrypt) for its path.
type File struct {
	// Path lies below /etc/kubernetes/ or /var/lib/hullmark/.
	Path string `json:"path"`
	// Mode is four octal digits; the default is 0644.
	Mode    string `json:"mode,omitempty"`
	Content string `json:"content"`
}

// Override is a document of kubeadm or the kubelet as its own reference describes it.
type Override map[string]any

// defaults fills in what the document left out.
func (c *Cluster) defaults() {
	if c.Network.PodSubnet == "" {
		c.Network.PodSubnet = "10.244.0.0/16"
	}
	if c.Network.ServiceSubnet == "" {
		c.Network.ServiceSubnet = "10.96.0.0/12"
	}
	if first, ok := c.first(); ok && c.ControlPlane.AdvertiseAddress == "" {
		c.ControlPlane.AdvertiseAddress = c.Network.primary(c.Pools[c.firstPool()].config(first).OwnAddresses())
	}
	if len(c.JoinEndpoints) == 0 {
		c.JoinEndpoints = c.services()
	}
}

// first returns the node that init makes, and whether the document names one.
func (c *Cluster) first() (Member, bool) {
	if i := c.firstPool(); i >= 0 {
		return c.Pools[i].Members[0], true
	}
	return Member{}, false
}

// firstPool returns the index of the pool that the first node is in, or -1.
func (c *Cluster) firstPool() int {
	return slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Role == hullmark.ControlPlane && len(p.Members) > 0 })
}

// controlPlanes is how many members are control planes.
func (c *Cluster) controlPlanes() (n int) {
	for _, p := range c.Pools {
		if p.Role == hullmark.ControlPlane {
			n += len(p.Members)
		}
	}
	return n
}

// primary returns the first of a machine's addresses that is of the family of the services' first network, or nothing. What is no
// address, or no network, others tell of.
func (n Network) primary(addresses []string) string {
	services, _ := kubeadm.ParseSubnets(n.ServiceSubnet)
	for _, text := range addresses {
		if p, err := netip.ParsePrefix(text); err == nil && len(services) > 0 && p.Addr().Is4() == services[0].Addr().Is4() {
			return p.Addr().String()
		}
	}
	return ""
}

// check refuses what no cluster can be made of. What kubeadm or the policy judge is left to them.
func (c *Cluster) check() error {
	if c.Root == (hullmark.ClusterRoot{}) {
		return errors.New("clusterRoot: missing; hullmark cluster new prints it")
	}
	if c.Name != "" && !hullmark.ValidNodeName(c.Name) {
		return fmt.Errorf("name: %q: want a DNS label", c.Name)
	}
	if c.KubernetesVersion != kubeadm.Version {
		return fmt.Errorf("kubernetesVersion: %q, but the image carries %s; use the image of that version, or write its version here", c.KubernetesVersion, kubeadm.Version)
	}
	if _, ok := c.first(); !ok {
		return errors.New("pools: no pool of role control-plane has a member; the first one's first is the node that init makes")
	}
	if err := c.ControlPlane.check(); err != nil {
		return fmt.Errorf("controlPlane.%w", err)
	}
	all, err := c.filesOf(Pool{})
	if err != nil {
		return err
	}
	if err := measurements.CheckPlaced(all, c.Hooks); err != nil {
		return err
	}
	if err := checkAddons(c.Addons); err != nil {
		return err
	}
	return c.checkPools()
}

func (c ControlPlane) check() error {
	if !hullmark.ValidEndpoint(c.Endpoint) || strings.Contains(c.Endpoint, "%") {
		return fmt.Errorf("endpoint: %q: want HOST:PORT", c.Endpoint)
	}
	if a, err := netip.ParseAddr(c.AdvertiseAddress); err != nil || a.Zone() != "" {
		return fmt.Errorf("advertiseAddress: %q: want the first node's address, unless that node has a static one", c.AdvertiseAddress)
	}
	for _, san := range c.SANs {
		if a, err := netip.ParseAddr(san); (err != nil || a.Zone() != "") && !sanPattern.MatchString(san) {
			return fmt.Errorf("sans: %q: want a host name or an address, without a port", san)
		}
	}
	return nil
}

func (c *Cluster) checkPools() error {
	if len(c.Pools) > maxPools {
		return fmt.Errorf("pools: %d, want at most %d", len(c.Pools), maxPools)
	}
	names, members := map[string]bool{}, 0
	for i, p := range c.Pools {
		at := fmt.Sprintf("pools[%d]", i)
		if !hullmark.ValidNodeName(p.Name) || names[p.Name] {
			return fmt.Errorf("%s: name %q: want a DNS label that no other pool has", at, p.Name)
		}
		names[p.Name] = true
		if err := p.check(); err != nil {
			return fmt.Errorf("%s (%s): %w", at, p.Name, err)
		}
		all, err := c.filesOf(p)
		if err == nil {
			err = measurements.CheckPlaced(all, slices.Concat(c.Hooks, p.Hooks))
		}
		if err != nil {
			return fmt.Errorf("%s (%s): %w", at, p.Name, err)
		}
		members += len(p.Members)
	}
	if members > maxMembers {
		return fmt.Errorf("pools: %d members, want at most %d", members, maxMembers)
	}
	return nil
}

func (p Pool) check() error {
	if !p.Role.Valid() {
		return fmt.Errorf("role %q: want control-plane or worker", p.Role)
	}
	if p.Vouched != nil && p.Role != hullmark.Worker {
		return fmt.Errorf("vouched: a %s is only admitted by its own ekid", p.Role)
	}
	for i, m := range p.Members {
		// The name becomes a file's name before the policy judges it.
		if !hullmark.ValidNodeName(m.Name) {
			return fmt.Errorf("members[%d]: name %q: want a DNS label: at most 63 lower-case letters, digits and hyphens", i, m.Name)
		}
	}
	for i, own := range p.Interfaces {
		if len(own.Addresses) > 0 {
			return fmt.Errorf("interfaces[%d] (%s): addresses: every machine of the pool would have them; write the interfaces of such a machine at its member", i, own.Name)
		}
	}
	for key, value := range sorted(p.Labels) {
		if err := checkLabel(key, value); err != nil {
			return fmt.Errorf("labels: %w", err)
		}
	}
	if p.Taints == nil {
		return nil
	}
	for i, t := range *p.Taints {
		if err := t.check(); err != nil {
			return fmt.Errorf("taints[%d]: %w", i, err)
		}
	}
	return nil
}

var (
	qualifiedName = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	sanPattern    = regexp.MustCompile(`^(\*\.)?[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?$`)
	labelValue    = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`)
)

func (t Taint) check() error {
	if !qualifiedName.MatchString(t.Key) || !labelValue.MatchString(t.Value) {
		return fmt.Errorf("%q=%q: want a qualified name such as example.com/key, and at most 63 letters, digits, dots, hyphens or underscores", t.Key, t.Value)
	}
	if !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, t.Effect) {
		return fmt.Errorf("effect %q: want NoSchedule, PreferNoSchedule or NoExecute", t.Effect)
	}
	return nil
}
