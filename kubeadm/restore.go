package kubeadm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

// SnapshotFile is where RestoreUnit finds the snapshot, and EtcdData what it makes of it: the folder that kubeadm's etcd has its data in.
const (
	SnapshotFile = "/var/lib/hullmark-etcd-snapshot"
	EtcdData     = "/var/lib/etcd"
)

// Restoration lets a kubeadm init begin with the content of a snapshot.
type Restoration struct {
	// Documents are those of the init, which say as what its member of etcd serves.
	Documents []byte
	// NodeName is the member's name where the documents give none.
	NodeName string
	// Bump is by how much revisions rise above the snapshot's, so that none is met twice with another content.
	Bump uint64
	// Report is called with what is done; it may be nil.
	Report func(Phase)
}

// Check refuses documents of which no member of etcd can be made.
func (r Restoration) Check() error {
	_, err := r.Environment("")
	return err
}

// Environment is the input of the unit that makes etcd's data. The token is what sets the new etcd's ID apart.
func (r Restoration) Environment(token string) ([]byte, error) {
	name, address, err := r.member()
	if err != nil {
		return nil, err
	}
	peer := "https://" + net.JoinHostPort(address.String(), "2380")
	return fmt.Appendf(nil, "HULLMARK_ETCD_NAME=%s\nHULLMARK_ETCD_PEER=%s\nHULLMARK_ETCD_TOKEN=%s\nHULLMARK_ETCD_BUMP=%d\n", name, peer, token, r.Bump), nil
}

// documentStart is the line between two documents of a YAML stream.
var documentStart = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?$`)

// Find reads the document of a kind out of a YAML stream; what into does not have is left out.
func Find(stream []byte, kind string, into any) error {
	for _, document := range documentStart.Split(string(stream), -1) {
		var m meta
		if err := yaml.Unmarshal([]byte(document), &m); err != nil {
			return fmt.Errorf("kubeadm documents: %w", err)
		}
		if m.Kind != kind {
			continue
		}
		if err := yaml.Unmarshal([]byte(document), into); err != nil {
			return fmt.Errorf("kubeadm documents: %s: %w", kind, err)
		}
		return nil
	}
	return fmt.Errorf("kubeadm documents: %w %s", errAbsent, kind)
}

var errAbsent = errors.New("there is no")

// member reads under which name, and at which address, kubeadm will start etcd (cmd/kubeadm/app/util/etcd, GetPeerURL).
func (r Restoration) member() (name string, address netip.Addr, err error) {
	var c initConfiguration
	if err := errors.Join(Find(r.Documents, "InitConfiguration", &c), r.checkEtcd()); err != nil {
		return "", netip.Addr{}, err
	}
	if phase := slices.IndexFunc(c.SkipPhases, func(p string) bool { return p == "etcd" || strings.HasPrefix(p, "etcd/") }); phase >= 0 {
		return "", netip.Addr{}, fmt.Errorf("kubeadm documents: skipPhases: %s: a backup needs the etcd that kubeadm starts", c.SkipPhases[phase])
	}
	name = cmp.Or(c.NodeRegistration.Name, r.NodeName)
	if !hullmark.ValidNodeName(name) {
		return "", netip.Addr{}, fmt.Errorf("kubeadm documents: nodeRegistration.name %.80q: want a DNS label", name)
	}
	address, err = netip.ParseAddr(c.LocalAPIEndpoint.AdvertiseAddress)
	if err != nil || !address.IsGlobalUnicast() || address.Zone() != "" {
		return "", netip.Addr{}, fmt.Errorf("kubeadm documents: localAPIEndpoint.advertiseAddress %.80q: want the node's own address, at which its etcd is reached", c.LocalAPIEndpoint.AdvertiseAddress)
	}
	return name, address, nil
}

// checkEtcd refuses an etcd that would not find EtcdData, and so begin empty.
func (r Restoration) checkEtcd() error {
	var c struct {
		Etcd struct {
			External any `json:"external"`
			Local    struct {
				DataDir   string `json:"dataDir"`
				ExtraArgs any    `json:"extraArgs"` // a list of names and values; in v1beta3 an object
			} `json:"local"`
		} `json:"etcd"`
	}
	if err := Find(r.Documents, "ClusterConfiguration", &c); err != nil {
		return err
	}
	if dir := c.Etcd.Local.DataDir; c.Etcd.External != nil || dir != "" && path.Clean(dir) != EtcdData {
		return fmt.Errorf("kubeadm documents: etcd: a backup needs a local one with its data in %s", EtcdData)
	}
	for _, name := range []string{"data-dir", "wal-dir", "force-new-cluster"} {
		if hasArgument(c.Etcd.Local.ExtraArgs, name) {
			return fmt.Errorf("kubeadm documents: etcd.local.extraArgs: %s: a backup needs an etcd with its data in %s", name, EtcdData)
		}
	}
	return nil
}

// hasArgument looks for a name in extraArgs of either form.
func hasArgument(args any, name string) bool {
	if object, ok := args.(map[string]any); ok {
		_, found := object[name]
		return found
	}
	list, _ := args.([]any)
	return slices.ContainsFunc(list, func(a any) bool {
		argument, ok := a.(map[string]any)
		return ok && argument["name"] == name
	})
}
