package kubeadm

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

// BootstrapFile is the kubeconfig with which a kubelet that has no certificate asks for one. It holds a token.
const BootstrapFile = kubernetesDir + "bootstrap-kubelet.conf"

// kubeletPKI holds a kubelet's keys and certificates, ClientCertificate the newest one for the API server with its key: a link
// to a file beside it.
const (
	kubeletPKI        = "/var/lib/kubelet/pki"
	ClientCertificate = kubeletPKI + "/kubelet-client-current.pem"
)

// KubeletIdentity returns the files and folders that a kubelet knows itself by at the API server: without them it bootstraps anew.
func KubeletIdentity() []string { return []string{kubernetesDir + "kubelet.conf", kubeletPKI} }

// BootstrapKubeconfig returns the content of BootstrapFile: the API server at HOST:PORT, the CA's certificates, in PEM, that its own
// has to come from, and a bootstrap token.
func BootstrapKubeconfig(endpoint string, ca []byte, token hullmark.Secret) ([]byte, error) {
	host, port, err := net.SplitHostPort(endpoint)
	switch {
	case err != nil || host == "" || port == "":
		return nil, fmt.Errorf("bootstrap kubeconfig: endpoint %.80q: want host:port", endpoint)
	case !x509.NewCertPool().AppendCertsFromPEM(ca):
		return nil, errors.New("bootstrap kubeconfig: CA: no certificate in PEM")
	case !wholeToken.Match(token.Expose()):
		return nil, errors.New("bootstrap kubeconfig: token: want 6 and 16 lower-case letters or digits, joined by a dot")
	}
	type object = map[string]any
	const name = "bootstrap"
	text, err := yaml.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []object{{"name": name, "cluster": object{"server": "https://" + endpoint, "certificate-authority-data": ca}}},
		"users":    []object{{"name": name, "user": object{"token": string(token.Expose())}}},
		"contexts": []object{{"name": name, "context": object{"cluster": name, "user": name}}},
	})
	if err != nil {
		return nil, fmt.Errorf("bootstrap kubeconfig: %w", err)
	}
	return text, nil
}
