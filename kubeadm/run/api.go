package run

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// maxObject bounds the API server's answer about one object, in bytes.
const maxObject = 4 << 20

// maxChecks bounds how many of an API server's failed checks are named.
const maxChecks = 8

// Access is how a node reaches its API server: as an administrator, or as its kubelet.
type Access struct {
	// Kubeconfig is the path of a kubeconfig as the node's programs see it.
	Kubeconfig string
	// Read returns the content of such a path: of the kubeconfig, and of the files that it names.
	Read func(path string) ([]byte, error)
	// Local asks the API server of this very machine, a control plane, wherever the kubeconfig leads.
	Local bool
	// Server is the HOST:PORT of the one API server that is asked, wherever the kubeconfig leads; empty for that.
	Server string
}

// A control plane's own API server, and the name that every API server's certificate has.
const (
	localServer = "https://127.0.0.1:6443"
	serverName  = "kubernetes"
)

// api asks the API server. A kubelet's certificate may be replaced at any time, so the files are read again after each failure.
// A control plane's own server that answers knows who asks, and each handshake costs one that starts more than the question;
// where there are several, the next may do better.
type api struct {
	access Access
	client *http.Client
	server string
}

// get reads the object at path, of which into holds the fields that matter; without into, that the path answers is enough.
func (a *api) get(ctx context.Context, path string, into any) error {
	if err := a.open(); err != nil {
		return err
	}
	err := a.ask(ctx, path, into)
	if err != nil && (!a.access.Local || !errors.Is(err, errNotNow)) {
		a.close()
	}
	return err
}

// open reads the kubeconfig, unless that was done.
func (a *api) open() (err error) {
	if a.client == nil {
		a.client, a.server, err = a.access.client()
	}
	return err
}

func (a *api) close() {
	if a.client != nil {
		a.client.CloseIdleConnections()
		a.client = nil
	}
}

func (a *api) ask(ctx context.Context, path string, into any) error {
	return a.read(ctx, path, func(answer io.Reader) error {
		if into == nil {
			return nil
		}
		body, err := io.ReadAll(io.LimitReader(answer, maxObject))
		if err != nil {
			return err
		}
		return json.Unmarshal(body, into)
	})
}

// read hands on what the path answers.
func (a *api) read(ctx context.Context, path string, take func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, nil)
	if err != nil {
		return err
	}
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	switch {
	case answer.StatusCode >= http.StatusInternalServerError:
		body, err := io.ReadAll(io.LimitReader(answer.Body, maxObject))
		return errors.Join(fmt.Errorf("%w: %s%s", errNotNow, answer.Status, failedChecks(body)), err)
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("API server: %w", errNotFound)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("API server: %s", answer.Status)
	}
	if err := take(answer.Body); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	return nil
}

// errNotNow is an answer that blames the server, not the one who asks.
var errNotNow = errors.New("API server")

// errNotFound is a path that the server does not have.
var errNotFound = errors.New("404 Not Found")

// failedChecks returns the names in an answer of Kubernetes' health endpoints, which has a line for each check: "[-]etcd
// failed: reason withheld".
func failedChecks(body []byte) string {
	var names []string
	for line := range strings.Lines(string(body)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok && len(names) < maxChecks {
			name, _, _ = strings.Cut(name, " ")
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ": not yet " + strings.Join(names, ", ")
}

// kubeconfigFile is the part of a kubeconfig that tells how to reach the API server. kubeadm's for its administrator holds the
// certificates, a kubelet's own names the file that it renews; of both forms the data counts first.
type kubeconfigFile struct {
	Clusters []struct {
		Cluster struct {
			Server string `json:"server"`
			CA     []byte `json:"certificate-authority-data"`
			CAFile string `json:"certificate-authority"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		User struct {
			Certificate     []byte `json:"client-certificate-data"`
			CertificateFile string `json:"client-certificate"`
			Key             []byte `json:"client-key-data"`
			KeyFile         string `json:"client-key"`
		} `json:"user"`
	} `json:"users"`
}

func (a Access) kubeconfig() (c kubeconfigFile, err error) {
	text, err := a.Read(a.Kubeconfig)
	if err != nil {
		return c, fmt.Errorf("kubeconfig: %w", err)
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("kubeconfig: %w", err)
	}
	if len(c.Clusters) != 1 || len(c.Users) != 1 {
		return c, fmt.Errorf("kubeconfig: %d clusters, %d users: want one of each", len(c.Clusters), len(c.Users))
	}
	return c, nil
}

// client returns a client with the kubeconfig's certificates, and the server's URL.
func (a Access) client() (client *http.Client, server string, err error) {
	c, err := a.kubeconfig()
	if err != nil {
		return nil, "", err
	}
	cluster, user := c.Clusters[0].Cluster, c.Users[0].User
	roots, err := a.roots(cluster.CA, cluster.CAFile)
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: cluster: %w", err)
	}
	pair, err := a.pair(user.Certificate, user.CertificateFile, user.Key, user.KeyFile)
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: user: %w", err)
	}
	security := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	server = cluster.Server
	switch {
	case a.Local:
		server, security.ServerName = localServer, serverName
	case a.Server != "":
		server, security.ServerName = "https://"+a.Server, serverName
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: security}, Timeout: time.Minute}, server, nil
}

// roots returns the authorities that the API server's certificate may come from.
func (a Access) roots(data []byte, file string) (*x509.CertPool, error) {
	ca, err := a.either(data, file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("no CA certificate")
	}
	return roots, nil
}

// either returns the data, or the content of the file if there is none.
func (a Access) either(data []byte, file string) ([]byte, error) {
	if len(data) > 0 || file == "" {
		return data, nil
	}
	return a.Read(file)
}

func (a Access) pair(certificate []byte, certificateFile string, key []byte, keyFile string) (tls.Certificate, error) {
	certificate, err := a.either(certificate, certificateFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	if key, err = a.either(key, keyFile); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certificate, key)
}
