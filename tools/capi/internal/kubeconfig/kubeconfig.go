// Package kubeconfig reads the kubeconfigs of Clusters for a manager that trusts neither whoever wrote them nor the servers that they
// name: whoever may make Secrets in one namespace of the management cluster writes one.
package kubeconfig

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxAnswer bounds what is read of one answer, in bytes: a server that does not end would have the manager's memory.
const maxAnswer = 32 << 20

// Config returns how a kubeconfig's server is reached. Only what is in the text itself counts: a program that is to be run, a file of the
// manager's own, or a proxy is refused, for all of these would be the manager's, and not the writer's. No error quotes the text.
func Config(text []byte) (*rest.Config, error) {
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("it is no kubeconfig")
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil || config.AuthInfos[current.AuthInfo] == nil {
		return nil, errors.New("it has no current context, or that has no cluster or no user")
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	only := clientcmdapi.Cluster{
		Server: cluster.Server, TLSServerName: cluster.TLSServerName, CertificateAuthorityData: cluster.CertificateAuthorityData,
		LocationOfOrigin: cluster.LocationOfOrigin, Extensions: cluster.Extensions, DisableCompression: cluster.DisableCompression,
	}
	server, err := url.Parse(cluster.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" || server.User != nil || len(cluster.CertificateAuthorityData) == 0 || !reflect.DeepEqual(only, *cluster) {
		return nil, errors.New("its cluster has to have server (https://…), certificate-authority-data and, at most, tls-server-name")
	}
	shown := clientcmdapi.AuthInfo{
		ClientCertificateData: user.ClientCertificateData, ClientKeyData: user.ClientKeyData, Token: user.Token, LocationOfOrigin: user.LocationOfOrigin, Extensions: user.Extensions,
	}
	if !reflect.DeepEqual(shown, *user) {
		return nil, errors.New("its user may have client-certificate-data, client-key-data and token, and nothing else: no program is run and no file is read for it")
	}
	return &rest.Config{
		Host: cluster.Server, BearerToken: user.Token,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: cluster.TLSServerName, CAData: cluster.CertificateAuthorityData, CertData: user.ClientCertificateData, KeyData: user.ClientKeyData,
		},
		WrapTransport: Guard,
	}, nil
}

// Guard follows no redirection, which would lead the manager to whatever it can reach, and bounds answers, as none of them is a watch.
func Guard(next http.RoundTripper) http.RoundTripper { return guard{next} }

type guard struct{ next http.RoundTripper }

func (g guard) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := g.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 300 && answer.StatusCode < 400 {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("the API server answers %d, and leads elsewhere: that is not followed", answer.StatusCode)
	}
	answer.Body = &bounded{answer.Body, maxAnswer}
	return answer, nil
}

// bounded is a body that fails after so many bytes.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the API server's answer has more than %d bytes", maxAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
