//go:build long

package load

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/attest/wire"
)

const requestsPath = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// node is a Node object as its kubelet knows it.
type node struct {
	name string
	uid  types.UID
}

// kubelet does with Proceed what kubeadm join and the kubelet do: it asks for a client
// certificate with the token, makes its Node with the certificate, and posts Ready.
func (m *machine) kubelet(ctx context.Context, proceed *wire.Proceed) (*node, error) {
	m.note("kubelet")
	config, err := bootstrapConfig(proceed)
	if err != nil {
		return nil, err
	}
	config, err = certified(ctx, config, proceed.GetNodeName(), m.note)
	if err != nil {
		return nil, err
	}
	m.note("certificate")
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	defer c.close()
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: proceed.GetNodeName()}}
	if err := persist(ctx, func() error { return c.create(ctx, "/api/v1/nodes", made) }); err != nil {
		return nil, err
	}
	if err := persist(ctx, func() error { return c.postReady(ctx, made.Name, made) }); err != nil {
		return nil, err
	}
	m.note("ready")
	return &node{name: made.Name, uid: made.UID}, nil
}

// postReady says that a Node is Ready, and reads it into out, which may be nil.
func (c *client) postReady(ctx context.Context, name string, out any) error {
	now := metav1.Now()
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPatch, "/api/v1/nodes/"+name+"/status", body, out)
}

// bootstrapConfig reads the two documents that Proceed brings.
func bootstrapConfig(proceed *wire.Proceed) (*rest.Config, error) {
	var join struct {
		Discovery struct{ TLSBootstrapToken string }
	}
	if err := yaml.Unmarshal(proceed.GetKubeadmDocuments(), &join); err != nil {
		return nil, err
	}
	if len(proceed.GetFiles()) != 1 || join.Discovery.TLSBootstrapToken == "" {
		return nil, errors.New("Proceed brings no token, or not one file")
	}
	discovery, err := clientcmd.Load(proceed.GetFiles()[0].GetContent())
	if err != nil {
		return nil, err
	}
	for _, cluster := range discovery.Clusters {
		return &rest.Config{
			Host: cluster.Server, TLSClientConfig: rest.TLSClientConfig{CAData: cluster.CertificateAuthorityData},
			BearerToken: join.Discovery.TLSBootstrapToken, QPS: -1,
		}, nil
	}
	return nil, errors.New("discovery.conf names no cluster")
}

// certified asks for a node's client certificate and waits for it; note is told how far it is.
func certified(ctx context.Context, bearer *rest.Config, name string, note func(string)) (*rest.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return nil, err
	}
	c, err := newClient(bearer)
	if err != nil {
		return nil, err
	}
	defer c.close()
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-csr-%s-%d", name, time.Now().UnixNano())},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	if err := persist(ctx, func() error { return c.create(ctx, requestsPath, request) }); err != nil {
		return nil, err
	}
	note("request")
	if err := persist(ctx, func() error { return c.awaitCertificate(ctx, request, func() { note("approved") }) }); err != nil {
		return nil, err
	}
	own := &rest.Config{Host: bearer.Host, TLSClientConfig: bearer.TLSClientConfig, QPS: -1}
	own.CertData, own.KeyData = request.Status.Certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return own, nil
}

// finalError is an error that trying again does not mend.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// persist tries again, as a kubelet does, until it is told a final no.
func persist(ctx context.Context, try func() error) error {
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := try()
		var final finalError
		if err == nil || errors.As(err, &final) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// client speaks JSON with the API, over connections of its own.
type client struct {
	http *http.Client
	host string
}

func newClient(config *rest.Config) (*client, error) {
	config = rest.CopyConfig(config)
	config.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext // also keeps client-go from sharing connections
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return &client{http: c, host: config.Host}, nil
}

// close closes connections; http.Client's own way ends at the first of client-go's wrappers.
func (c *client) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// open calls the API; an answer that says no for good is a finalError.
func (c *client) open(ctx context.Context, method, path string, body []byte) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", string(types.StrategicMergePatchType))
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < 300 {
		return response.Body, nil
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	err = &statusError{code: response.StatusCode, text: fmt.Sprintf("%s %s: %s", method, path, text)}
	// A new token or a new certificate can be unknown for a moment, above all while the server starts.
	if code := response.StatusCode; code < 500 && code != http.StatusUnauthorized && code != http.StatusForbidden && code != http.StatusTooManyRequests {
		err = finalError{err}
	}
	return nil, err
}

// statusError is an answer that is no success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

func hasStatus(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// do calls the API and reads the answer into out, which may be nil.
func (c *client) do(ctx context.Context, method, path string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	answer, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }()
	if out == nil {
		_, err = io.Copy(io.Discard, answer)
		return err
	}
	return json.NewDecoder(answer).Decode(out)
}

// create makes an object; one that is there already, since an answer was lost, is read.
func (c *client) create(ctx context.Context, path string, object metav1.Object) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	err = c.do(ctx, http.MethodPost, path, body, object)
	if hasStatus(err, http.StatusConflict) {
		return c.do(ctx, http.MethodGet, path+"/"+object.GetName(), nil, object)
	}
	return err
}

// awaitCertificate watches a request, from the version that it is, until it has its certificate, and tells of its approval; a
// denial is final.
func (c *client) awaitCertificate(ctx context.Context, request *certificatesv1.CertificateSigningRequest, approved func()) error {
	from := "&resourceVersion=" + request.ResourceVersion
	request.ResourceVersion = "" // A second attempt begins with what there is: the server may have forgotten the version.
	stream, err := c.open(ctx, http.MethodGet, requestsPath+"?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3D"+request.Name+from, nil)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	decoder := json.NewDecoder(stream)
	for {
		var event struct {
			Type   string
			Object certificatesv1.CertificateSigningRequest
		}
		if err := decoder.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ERROR" {
			return errors.New("the watch ended")
		}
		for _, condition := range event.Object.Status.Conditions {
			if condition.Type == certificatesv1.CertificateApproved {
				approved()
			} else {
				return finalError{fmt.Errorf("certificate request: %s: %s", condition.Type, condition.Message)}
			}
		}
		if len(event.Object.Status.Certificate) > 0 {
			*request = event.Object
			return nil
		}
	}
}
