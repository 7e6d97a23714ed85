package run

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"time"
)

// showTimeout bounds how long an API server may take to show its certificate.
const showTimeout = 10 * time.Second

// Serves reports an error unless an API server with a certificate of the CA that access trusts, for the endpoint's own name, answers there.
func Serves(ctx context.Context, access Access, address string) error {
	c, err := access.kubeconfig()
	if err != nil {
		return err
	}
	roots, err := access.roots(c.Clusters[0].Cluster.CA, c.Clusters[0].Cluster.CAFile)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	_, err = show(ctx, roots, address, host)
	return err
}

// ServerCertificate returns the certificate that the API server at an address shows. It has to come from the CA, in PEM, and be
// for the name that all have.
func ServerCertificate(ctx context.Context, ca []byte, address string) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("no CA certificate")
	}
	return show(ctx, roots, address, serverName)
}

// KubeletCertificate returns the certificate that the kubelet of a Node shows at an address. It has to come from the CA, in
// PEM, and be for the Node's name.
func KubeletCertificate(ctx context.Context, ca []byte, node, address string) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("no CA certificate")
	}
	return show(ctx, roots, address, node)
}

func show(ctx context.Context, roots *x509.CertPool, address, name string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, showTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS13}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	shown := connection.(*tls.Conn).ConnectionState().PeerCertificates[0]
	return shown, connection.Close()
}

// Answers returns nil if the API server that access leads to, with a certificate of the CA that it trusts, says that it is
// ready. It is asked without a certificate: one that has ended would be refused (system:public-info-viewer lets everybody ask).
func Answers(ctx context.Context, access Access) error {
	c, err := access.kubeconfig()
	if err != nil {
		return err
	}
	cluster := c.Clusters[0].Cluster
	roots, err := access.roots(cluster.CA, cluster.CAFile)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}, Timeout: showTimeout}
	defer client.CloseIdleConnections()
	server := api{client: client, server: cluster.Server}
	return server.ask(ctx, "/readyz", nil)
}
