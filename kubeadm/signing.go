package kubeadm

import (
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

// kubeletVerification has the API server speak to no kubelet whose certificate is not of the kubelets' own CA; kubeadm has it believe any.
func kubeletVerification() []argument {
	return []argument{{Name: "kubelet-certificate-authority", Value: hullmark.KubeletTrustFile}}
}

// signing gives each of the controller manager's signers its own CA, and one to kubelets' serving certificates that no client
// of an API server trusts: a node's addresses are in them, as its host named them. kubeadm's one pair for all is emptied, which
// is refused beside the others; the signer kubernetes.io/legacy-unknown, whose certificates may serve for anything, is left
// without (cmd/kube-controller-manager/app, anySpecificFilesSet). A signer takes a file of one certificate alone
// (pkg/controller/certificates/signer, setCA), and kubeadm's has two while that CA is exchanged.
func signing() []argument {
	ca, key := hullmark.KubernetesSigningCertificate, hullmark.KubernetesCAKey
	return []argument{
		{Name: "cluster-signing-cert-file", Value: ""},
		{Name: "cluster-signing-key-file", Value: ""},
		{Name: "cluster-signing-kube-apiserver-client-cert-file", Value: ca},
		{Name: "cluster-signing-kube-apiserver-client-key-file", Value: key},
		{Name: "cluster-signing-kubelet-client-cert-file", Value: ca},
		{Name: "cluster-signing-kubelet-client-key-file", Value: key},
		{Name: "cluster-signing-kubelet-serving-cert-file", Value: hullmark.KubeletServingCertificate},
		{Name: "cluster-signing-kubelet-serving-key-file", Value: hullmark.KubeletServingKey},
	}
}

// SignsApart reports whether a stored ClusterConfiguration has the controller manager sign by files of one certificate each, as
// InitDocuments says it. One that an earlier release wrote has not.
func SignsApart(clusterConfiguration []byte) (bool, error) {
	var config map[string]any
	if err := yaml.Unmarshal(clusterConfiguration, &config); err != nil {
		return false, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	found, err := values(at(config, "controllerManager.extraArgs"))
	if err != nil {
		return false, fmt.Errorf("ClusterConfiguration: controllerManager.extraArgs: %w", err)
	}
	return !slices.ContainsFunc(signing(), func(a argument) bool { return !slices.Equal(found[a.Name], []string{a.Value}) }), nil
}
