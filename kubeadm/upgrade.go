package kubeadm

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

// KubeletConfig is where kubeadm leaves the kubelet's configuration.
const KubeletConfig = "/var/lib/kubelet/config.yaml"

// upgradeConfiguration is kubeadm.k8s.io/v1beta4's, as far as it is used.
type upgradeConfiguration struct {
	meta  `json:",inline"`
	Apply upgradeApply `json:"apply"`
}

type upgradeApply struct {
	KubernetesVersion string    `json:"kubernetesVersion"`
	SkipPhases        []string  `json:"skipPhases"`
	Patches           directory `json:"patches"`
}

// The phases of kubeadm upgrade apply that are never let run: what preflight looks at was judged before, but for a job with the next
// release's pause image, which nodes before their own step have not; the pods, kubelet.conf and the kubelet's configuration are files,
// which the agent writes, whole or not at all; and bootstrap-token and kube-proxy are as at init.
var neverUpgraded = []string{"preflight", "control-plane", "kubeconfig", "kubelet-config", "bootstrap-token", "addon/kube-proxy", "post-upgrade"}

// RecordDocuments are those with which kubeadm upgrade apply writes a release into the cluster: its ClusterConfiguration and the kubelets'
// configuration, for control planes and kubelets that come later.
func RecordDocuments(v hullmark.Version) ([]byte, error) { return upgradeDocuments(v, "addon/coredns") }

// DNSDocuments are those with which it brings CoreDNS to a release.
func DNSDocuments(v hullmark.Version) ([]byte, error) { return upgradeDocuments(v, "upload-config") }

func upgradeDocuments(v hullmark.Version, skip string) ([]byte, error) {
	return stream(upgradeConfiguration{
		meta: meta{APIVersion: kubeadmAPI, Kind: "UpgradeConfiguration"},
		Apply: upgradeApply{
			KubernetesVersion: v.String(), Patches: directory{Directory: PatchesDir}, SkipPhases: append(append([]string{}, neverUpgraded...), skip),
		},
	})
}

// ClusterVersion returns the release that a cluster's ClusterConfiguration, in YAML, is of.
func ClusterVersion(clusterConfiguration []byte) (hullmark.Version, error) {
	var c struct{ KubernetesVersion string }
	if err := yaml.Unmarshal(clusterConfiguration, &c); err != nil {
		return hullmark.Version{}, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	v, err := hullmark.ParseVersion(c.KubernetesVersion)
	if err != nil {
		return v, fmt.Errorf("ClusterConfiguration: kubernetesVersion: %w", err)
	}
	return v, nil
}
