// Package kubeconfig reads the kubeconfigs of Clusters for a manager that trusts neither whoever wrote them nor the servers that they
// name: whoever may make Secrets in one namespace of the management cluster writes one.
package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// limits bound one answer: a server that does not end, or says little that becomes much, would have the manager's memory.
type limits struct {
	// bytes is the length of its body.
	bytes int64
	// commas is how many there are in it. Each separates what takes hundreds of bytes once it is decoded, as an object that is left empty
	// does.
	commas int64
}

// A list comes in pages of 250 objects (joinservice/registry): a server may take 16 KiB for each, with 262 commas. One whose authorities
// the manager knows is a stranger's, too: they are of whoever lent the cluster file.
var strangers = limits{4 << 20, 1 << 16}

// longest bounds a kubeconfig: what is made of it is kept, and a bundle of authorities takes many times its length.
const longest = 64 << 10

// together bounds the bodies of all answers to one client of Guard, of which what is read may be kept as long as that is: those of
// 5,000 machines' records, listed twice.
const together = 128 << 20

// Config returns how a kubeconfig's server is reached. Only what is in the text itself counts: a program that is to be run, a file of the
// manager's own, or a proxy is refused, for all of these would be the manager's, and not the writer's. No error quotes the text.
func Config(text []byte) (*rest.Config, error) {
	if len(text) > longest {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are read", len(text), longest)
	}
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
		WrapTransport: func(next http.RoundTripper) http.RoundTripper { return guard{next, strangers, nil} },
	}, nil
}

// Guard asks for JSON, follows no redirection, which would lead the manager to whatever it can reach, and bounds answers, each and all of
// them together, as none of them is a watch. It is for a client that is made for one look.
func Guard(next http.RoundTripper) http.RoundTripper {
	left := &atomic.Int64{}
	left.Store(together)
	return guard{next, strangers, left}
}

type guard struct {
	next http.RoundTripper
	limits
	// left is what all answers may still have together; nil: no end.
	left *atomic.Int64
}

func (g guard) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Accept", "application/json") // Clients of Kubernetes' own kinds would rather have protobuf.
	answer, err := g.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if err := check(answer); err != nil {
		_ = answer.Body.Close()
		return nil, err
	}
	answer.Body = &bounded{ReadCloser: answer.Body, limits: g.limits, left: g.limits, all: g.left}
	return answer, nil
}

// check refuses what leads elsewhere, and formats that a client decodes though nobody asked for them: commas bound JSON alone.
func check(answer *http.Response) error {
	if answer.StatusCode >= 300 && answer.StatusCode < 400 {
		return fmt.Errorf("the API server answers %d, and leads elsewhere: that is not followed", answer.StatusCode)
	}
	kind := answer.Header.Get("Content-Type")
	if media, _, _ := mime.ParseMediaType(kind); kind != "" && media != "application/json" && !strings.HasPrefix(media, "text/") {
		return fmt.Errorf("the API server answers in %.100q: want application/json", kind)
	}
	return nil
}

// bounded is a body that fails beyond its limits.
type bounded struct {
	io.ReadCloser
	limits
	left limits
	all  *atomic.Int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left.bytes <= 0 {
		return 0, fmt.Errorf("the API server's answer has more than %d bytes", b.bytes)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left.bytes)])
	b.left.bytes -= int64(n)
	if b.all != nil && b.all.Add(-int64(n)) < 0 {
		return 0, fmt.Errorf("the API server's answers have more than %d bytes together", int64(together))
	}
	if b.left.commas -= int64(bytes.Count(p[:n], []byte(","))); b.left.commas < 0 {
		return 0, fmt.Errorf("the API server's answer has more than %d commas: no list is that long", b.commas)
	}
	return n, err
}
