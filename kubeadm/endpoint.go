package kubeadm

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// clusterIn returns a kubeconfig, and the part of it that says where its one cluster is.
func clusterIn(kubeconfig []byte) (config, cluster map[string]any, err error) {
	if err := yaml.Unmarshal(kubeconfig, &config); err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	list, _ := config["clusters"].([]any)
	if len(list) != 1 {
		return nil, nil, fmt.Errorf("kubeconfig: %d clusters: want one", len(list))
	}
	named, _ := list[0].(map[string]any)
	cluster, ok := named["cluster"].(map[string]any)
	if !ok {
		return nil, nil, errors.New("kubeconfig: its cluster is empty")
	}
	return config, cluster, nil
}

// serverOf returns the URL of a kubeconfig's API server.
func serverOf(kubeconfig []byte) (string, error) {
	_, cluster, err := clusterIn(kubeconfig)
	if err != nil {
		return "", err
	}
	server, _ := cluster["server"].(string)
	return server, nil
}

// ServerOf returns the HOST:PORT of the API server that a kubeconfig names.
func ServerOf(kubeconfig []byte) (string, error) {
	server, err := serverOf(kubeconfig)
	if err != nil {
		return "", err
	}
	endpoint, ok := strings.CutPrefix(server, "https://")
	if !ok {
		return "", fmt.Errorf("kubeconfig: server %.80q: want https://HOST:PORT", server)
	}
	return endpoint, nil
}

// WithEndpoint returns a kubeconfig that names the API server at HOST:PORT, and is as before in all else. It reports whether it
// named another one.
func WithEndpoint(kubeconfig []byte, endpoint string) (changed []byte, differs bool, err error) {
	config, cluster, err := clusterIn(kubeconfig)
	if err != nil {
		return nil, false, err
	}
	if cluster["server"] == "https://"+endpoint {
		return kubeconfig, false, nil
	}
	cluster["server"] = "https://" + endpoint
	if changed, err = yaml.Marshal(config); err != nil {
		return nil, false, fmt.Errorf("kubeconfig: %w", err)
	}
	return changed, true, nil
}

// authorityField is where a kubeconfig has the certificates, in PEM and base64, that an API server's may chain to.
const authorityField = "certificate-authority-data"

// WithAuthorities returns a kubeconfig that takes API servers by these certificates, in PEM, and is as before in all else. kubeadm writes
// the first one of a file alone, and those of before the other one was there know nothing of it. It reports whether it took them by others.
func WithAuthorities(kubeconfig, certificates []byte) (changed []byte, differs bool, err error) {
	config, cluster, err := clusterIn(kubeconfig)
	if err != nil {
		return nil, false, err
	}
	text := base64.StdEncoding.EncodeToString(certificates)
	_, named := cluster["certificate-authority"] // A file, that clients leave alone beside data.
	if cluster[authorityField] == text && !named {
		return kubeconfig, false, nil
	}
	cluster[authorityField] = text
	delete(cluster, "certificate-authority")
	if changed, err = yaml.Marshal(config); err != nil {
		return nil, false, fmt.Errorf("kubeconfig: %w", err)
	}
	return changed, true, nil
}

// AuthoritiesOf returns the certificates, in PEM, by which a kubeconfig takes API servers.
func AuthoritiesOf(kubeconfig []byte) ([]byte, error) {
	_, cluster, err := clusterIn(kubeconfig)
	if err != nil {
		return nil, err
	}
	text, _ := cluster[authorityField].(string)
	certificates, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(certificates) == 0 {
		return nil, fmt.Errorf("kubeconfig: want certificates in %s", authorityField)
	}
	return certificates, nil
}

// WithControlPlane returns a stored ClusterConfiguration that names a control plane's endpoint and these names, and is as
// before in all else: names that it had stay. It reports whether it was another one.
func WithControlPlane(clusterConfiguration []byte, endpoint string, names []string) (changed []byte, differs bool, err error) {
	var config map[string]any
	if err := yaml.Unmarshal(clusterConfiguration, &config); err != nil {
		return nil, false, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	if config == nil {
		return nil, false, errors.New("ClusterConfiguration: missing or empty")
	}
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, false, fmt.Errorf("endpoint: %w", err)
	}
	server, _ := config["apiServer"].(map[string]any)
	if server == nil {
		server = map[string]any{}
	}
	listed, _ := server["certSANs"].([]any)
	former, _ := config["controlPlaneEndpoint"].(string)
	differs = former != endpoint
	wanted := append([]string{host}, names...)
	if old, _, err := net.SplitHostPort(former); err == nil { // kubeadm adds it by itself, as long as it is the endpoint.
		wanted = append(wanted, old)
	}
	for _, name := range wanted {
		if !slices.Contains(listed, any(name)) {
			listed, differs = append(listed, name), true
		}
	}
	config["controlPlaneEndpoint"], server["certSANs"], config["apiServer"] = endpoint, listed, server
	if changed, err = yaml.Marshal(config); err != nil {
		return nil, false, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	return changed, differs, nil
}
