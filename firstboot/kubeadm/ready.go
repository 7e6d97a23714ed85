package kubeadm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"sigs.k8s.io/yaml"
)

// maxNode bounds the API server's answer about one node, in bytes.
const maxNode = 4 << 20

// WaitReady asks the API server that kubeconfig names, each time pause has passed, until node is Ready. When ctx ends first, the error says what the
// node was still waiting for.
func WaitReady(ctx context.Context, kubeconfig []byte, node string, pause time.Duration) error {
	client, server, err := clientOf(kubeconfig)
	if err != nil {
		return fmt.Errorf("wait for node %s: %w", node, err)
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var waitsFor error
	for {
		why := notReady(ctx, client, server, node)
		if why == nil {
			return nil
		}
		// A request that ctx cut off says nothing about the node.
		if waitsFor == nil || ctx.Err() == nil {
			waitsFor = why
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for node %s: %w; last: %w", node, ctx.Err(), waitsFor)
		case <-tick.C:
		}
	}
}

// notReady returns nil when node is Ready, or why it is not known to be.
func notReady(ctx context.Context, client *http.Client, server, node string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/api/v1/nodes/"+node, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("API server: %s", answer.Status)
	}
	var found struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxNode)).Decode(&found); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	for _, c := range found.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return nil
		}
		if c.Type == "Ready" {
			return errors.New(c.Message)
		}
	}
	return errors.New("its kubelet has not reported yet")
}

// kubeconfigFile is the part of a kubeconfig that kubeadm writes for its administrator.
type kubeconfigFile struct {
	Clusters []struct {
		Cluster struct {
			Server string `json:"server"`
			CA     []byte `json:"certificate-authority-data"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		User struct {
			Certificate []byte `json:"client-certificate-data"`
			Key         []byte `json:"client-key-data"`
		} `json:"user"`
	} `json:"users"`
}

func clientOf(kubeconfig []byte) (client *http.Client, server string, err error) {
	var c kubeconfigFile
	if err := yaml.Unmarshal(kubeconfig, &c); err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	if len(c.Clusters) != 1 || len(c.Users) != 1 {
		return nil, "", fmt.Errorf("kubeconfig: %d clusters, %d users: want one of each", len(c.Clusters), len(c.Users))
	}
	cluster, user := c.Clusters[0].Cluster, c.Users[0].User
	pair, err := tls.X509KeyPair(user.Certificate, user.Key)
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: user: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cluster.CA) {
		return nil, "", errors.New("kubeconfig: cluster: no CA certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}}
	return &http.Client{Transport: transport, Timeout: time.Minute}, cluster.Server, nil
}
