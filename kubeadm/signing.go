package kubeadm

import "github.com/hullmark/hullmark"

// kubeletVerification has the API server speak to no kubelet whose certificate is not of the kubelets' own CA; kubeadm has it believe any.
func kubeletVerification() []argument {
	return []argument{{Name: "kubelet-certificate-authority", Value: hullmark.KubeletTrustFile}}
}

// signing gives each of the controller manager's signers its own CA, and one to kubelets' serving certificates that no client
// of an API server trusts: a node's addresses are in them, as its host named them. kubeadm's one pair for all is emptied, which
// is refused beside the others; the signer kubernetes.io/legacy-unknown, whose certificates may serve for anything, is left
// without (cmd/kube-controller-manager/app, anySpecificFilesSet).
func signing() []argument {
	ca, key := pkiDir+"/ca.crt", pkiDir+"/ca.key"
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
