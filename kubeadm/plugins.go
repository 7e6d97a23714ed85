package kubeadm

import (
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"
)

// HostKubeconfigs returns the kubeconfigs on a node's disk that programs of the machine itself read: the kubelet, kubeadm and
// kubectl. Those of the static pods are read in containers.
func HostKubeconfigs() []string {
	return []string{
		kubernetesDir + "kubelet.conf", BootstrapFile, DiscoveryFile, kubernetesDir + "admin.conf", kubernetesDir + "super-admin.conf",
	}
}

// credentials are the fields of a kubeconfig's user that name no program (k8s.io/client-go, tools/clientcmd/api/v1, AuthInfo).
var credentials = []string{"client-certificate", "client-certificate-data", "client-key", "client-key-data", "token"}

// WithoutPrograms returns a kubeconfig whose users have certificates, keys and tokens alone, and what was dropped: a client
// runs what "exec" and "auth-provider" name, as root, before it asks anybody.
func WithoutPrograms(kubeconfig []byte) (plain []byte, dropped []string, err error) {
	var config map[string]any
	if err := yaml.Unmarshal(kubeconfig, &config); err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	users, isList := config["users"].([]any)
	if config == nil || config["users"] != nil && !isList {
		return nil, nil, errors.New("kubeconfig: it is none")
	}
	for _, u := range users {
		named, _ := u.(map[string]any)
		user, isObject := named["user"].(map[string]any)
		if !isObject && named["user"] != nil {
			return nil, nil, errors.New("kubeconfig: a user that is none")
		}
		for field := range user {
			if !slices.Contains(credentials, field) {
				delete(user, field)
				dropped = append(dropped, field)
			}
		}
	}
	slices.Sort(dropped)
	if plain, err = yaml.Marshal(config); err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return plain, dropped, nil
}
