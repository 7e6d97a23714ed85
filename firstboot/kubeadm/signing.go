package kubeadm

import (
	"fmt"
	"strings"

	"github.com/hullmark/hullmark"
)

// kubeletVerification has the API server speak to no kubelet whose certificate is not of the kubelets' own CA; kubeadm has it believe any.
func kubeletVerification() []argument {
	return []argument{{Name: "kubelet-certificate-authority", Value: hullmark.KubeletTrustFile}}
}

// signing gives each of the controller manager's signers its own CA, and one to kubelets' serving certificates that no client of an API server trusts: a node's
// addresses are in them, as its host named them. kubeadm's one pair for all is emptied, which is refused beside the others; the signer
// kubernetes.io/legacy-unknown, whose certificates may serve for anything, is left without (cmd/kube-controller-manager/app, anySpecificFilesSet).
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

// CheckSigning refuses documents of an operator's own whose controller manager would sign kubelets' serving certificates with another CA, or whose API server would
// not hold kubelets to that one. The error names the argument.
func CheckSigning(documents []byte) error {
	type arguments struct {
		ExtraArgs []argument `json:"extraArgs"`
	}
	var c struct {
		APIServer         arguments `json:"apiServer"`
		ControllerManager arguments `json:"controllerManager"`
	}
	if err := Find(documents, "ClusterConfiguration", &c); err != nil {
		return err
	}
	if err := holds("apiServer.extraArgs", c.APIServer.ExtraArgs, kubeletVerification()); err != nil {
		return err
	}
	for _, given := range c.ControllerManager.ExtraArgs {
		if strings.HasPrefix(flagName(given.Name), "cluster-signing-legacy-unknown-") {
			return fmt.Errorf("kubeadm documents: controllerManager.extraArgs: %s: leave it out: certificates of that signer may serve for anything", given.Name)
		}
	}
	return holds("controllerManager.extraArgs", c.ControllerManager.ExtraArgs, signing())
}

// flagName is an argument's as programs read it: an underscore is a hyphen.
func flagName(name string) string { return strings.ReplaceAll(name, "_", "-") }

// holds is an error unless each wanted argument is given, and only as wanted.
func holds(at string, given, wanted []argument) error {
	for _, w := range wanted {
		found := false
		for _, g := range given {
			if flagName(g.Name) != w.Name {
				continue
			}
			if g.Value != w.Value {
				return fmt.Errorf("kubeadm documents: %s: %s: want %q, got %q: kubelets' certificates have a CA of their own", at, g.Name, w.Value, g.Value)
			}
			found = true
		}
		if !found {
			return fmt.Errorf("kubeadm documents: %s: %s is missing: want %q: kubelets' certificates have a CA of their own", at, w.Name, w.Value)
		}
	}
	return nil
}
