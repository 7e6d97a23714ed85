//go:build long

package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/measurements"
)

// signedServing is a serving certificate that the real controller manager signed for a node's kubelet. An administrator
// approved it, who approves whatever is asked for: what is shown with it holds although an address was believed that should not
// have been.
func signedServing(t *testing.T, node string, addresses ...string) tls.Certificate {
	t.Helper()
	config, err := api.Config("system:node:"+node, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	asked := template(node, addresses...)
	asked.DNSNames = []string{node}
	text, key := signingRequest(t, asked)
	name := request(t, config, servingSigner, text, certificatesv1.UsageServerAuth)
	csr, err := admin.requests.get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := admin.requests.update(t.Context(), name, csr, "approval"); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(decided(t, name).Status.Certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// signedBy is a server's certificate for an address, from an authority, or from nobody.
func signedBy(t *testing.T, authority *cluster.Authority, address string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "system:node:w42", Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(address)}, DNSNames: []string{"w42"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	issuer, signer := made, key
	if authority != nil {
		issuer, signer = authority.Certificate, authority.Key
	}
	der, err := x509.CreateCertificate(rand.Reader, made, issuer, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// impostor is a server that counts what it is asked.
func impostor(t *testing.T, certificate tls.Certificate) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"gitVersion": "v0.0.0-impostor"}`))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), asked
}

// trusting are the ways in which clients of the API server are told whom to trust; each asks the server at an address.
func trusting(t *testing.T) map[string]func(address string) error {
	t.Helper()
	person, err := api.Config("mallory")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca, certificate, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	for path, content := range map[string][]byte{ca: api.Cluster.KubernetesCA(), certificate: person.CertData, key: person.KeyData} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := func(cmd *exec.Cmd) error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	return map[string]func(string) error{
		"kubectl": func(address string) error {
			return said(exec.CommandContext(t.Context(), filepath.Join(api.Programs(), "kubectl"), "--kubeconfig=/dev/null", "--server=https://"+address, "--certificate-authority="+ca, "--client-certificate="+certificate, "--client-key="+key, "get", "--raw=/version"))
		},
		"kubeadm join": func(address string) error { return discover(t, address) },
		"the kubelet's kubeconfig": func(address string) error {
			text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"https://%s\", certificate-authority: %s}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", address, ca)
			return run.Serves(t.Context(), run.Access{Kubeconfig: "kubelet.conf", Read: func(name string) ([]byte, error) {
				if name == "kubelet.conf" {
					return []byte(text), nil
				}
				return os.ReadFile(name)
			}}, address)
		},
		"pods": func(address string) error {
			trusted, err := admin.system.get(t.Context(), "kube-root-ca.crt")
			if err != nil {
				return err
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM([]byte(trusted.Data["ca.crt"]))
			client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
			defer client.CloseIdleConnections()
			answer, err := client.Get("https://" + address + "/version")
			if err != nil {
				return err
			}
			return answer.Body.Close()
		},
	}
}

// discover lets the real kubeadm look for the cluster at an address. It succeeds as soon as a server was believed: none knows its token.
func discover(t *testing.T, address string) error {
	t.Helper()
	documents, discovery, err := kubeadm.JoinDocuments(kubeadm.JoinParams{
		NodeName: "w41", Endpoint: address, CA: api.Cluster.KubernetesCA(), Token: hullmark.NewSecret([]byte("abcdef.0123456789abcdef")),
	})
	if err != nil {
		return err
	}
	config, file := filepath.Join(t.TempDir(), "config.yaml"), filepath.Join(t.TempDir(), "discovery.conf")
	for path, text := range map[string]string{config: strings.ReplaceAll(string(documents), kubeadm.DiscoveryFile, file) + "timeouts: {discovery: 5s, kubernetesAPICall: 5s}\n", file: string(discovery)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, _ := exec.CommandContext(ctx, filepath.Join(api.Programs(), "kubeadm"), "join", "phase", "kubelet-start", "--config", config).CombinedOutput()
	if strings.Contains(string(out), "x509:") {
		return fmt.Errorf("kubeadm: %s", out)
	}
	t.Logf("kubeadm at %s: %s", address, out)
	return nil
}

// A worker whose address is the endpoint's gets a kubelet's serving certificate for it, and passes for no API server with that:
// nobody who looks for one trusts its CA.
func TestServingCertificateIsNoAPIServers(t *testing.T) {
	certificate := signedServing(t, "w41", "127.0.0.1")
	for who, ask := range trusting(t) {
		t.Run(who, func(t *testing.T) {
			address, asked := impostor(t, certificate)
			if err := ask(address); err == nil || !strings.Contains(err.Error(), "x509:") || asked.Load() > 0 {
				t.Errorf("the worker was taken for the API server, and asked %d times: %v", asked.Load(), err)
			}
			if err := ask(api.Address); err != nil {
				t.Errorf("the API server: %v", err)
			}
		})
	}
}

// kubelet is a fake of a kubelet's server, on the Node w42, with a certificate that can be exchanged.
type kubelet struct {
	mutex sync.Mutex
	shown tls.Certificate
	asked []string
}

func (k *kubelet) show(c tls.Certificate) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.shown = c
}

// requests are the paths that it was asked for since it was asked last.
func (k *kubelet) requests() string {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	defer func() { k.asked = nil }()
	return strings.Join(k.asked, " ")
}

// ServeHTTP answers logs, and all else by a refusal of its own.
func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mutex.Lock()
	k.asked = append(k.asked, r.URL.Path)
	k.mutex.Unlock()
	w.Header().Set("Connection", "close") // Each question looks at the certificate anew.
	if strings.HasPrefix(r.URL.Path, "/containerLogs/") {
		_, _ = w.Write([]byte("the pod's log\n"))
		return
	}
	http.Error(w, "the fake has no streams", http.StatusNotImplemented)
}

// startKubelet runs the fake where the Node says, with a pod of its own.
func startKubelet(t *testing.T) *kubelet {
	t.Helper()
	k := &kubelet{}
	server := httptest.NewUnstartedServer(k)
	clients := x509.NewCertPool()
	clients.AddCert(api.Cluster.Kubernetes.Certificate)
	server.TLS = &tls.Config{
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		Certificates: []tls.Certificate{signedBy(t, nil, "127.0.0.1")}, // Else the fake has one of its own, and asks for no other.
	}
	server.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		k.mutex.Lock()
		defer k.mutex.Unlock()
		shown := server.TLS.Clone()
		shown.Certificates, shown.GetConfigForClient = []tls.Certificate{k.shown}, nil
		return shown, nil
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w42"}}
	if _, err := admin.nodes.create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kubectl(context.Background(), t, "delete", "node", "w42") })
	eventually(t, "the status of Node w42", func() error {
		node, err := admin.nodes.get(t.Context(), "w42")
		if err != nil {
			return err
		}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "w42"}, {Type: corev1.NodeInternalIP, Address: at.Addr().String()}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(at.Port())
		_, err = admin.nodes.update(t.Context(), "w42", node, "status")
		return err
	})
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: logger, namespace: default}\nspec: {nodeName: w42, automountServiceAccountToken: false, tolerations: [{operator: Exists}], containers: [{name: c, image: none}]}\n"
	if err := api.Apply(t.Context(), []byte(pod)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kubectl(context.Background(), t, "delete", "pod", "logger", "--force", "--grace-period=0") })
	kubectl(t.Context(), t, "patch", "pod", "logger", "--subresource=status", "--type=merge", `-p={"status":{"phase":"Running"}}`)
	return k
}

func kubectl(ctx context.Context, t *testing.T, args ...string) (output string, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd, err := api.Kubectl(ctx, args...)
	if err != nil {
		t.Error(err)
		return "", true
	}
	out, err := cmd.CombinedOutput()
	return string(out), err != nil
}

// streams are the ways from kubectl through the API server to a kubelet, with the paths at the kubelet.
var streams = map[string][]string{
	"/containerLogs/default/logger/c": {"logs", "logger"},
	"/exec/default/logger/c":          {"exec", "logger", "--", "/bin/true"},
	"/portForward/default/logger":     {"port-forward", "logger", ":80"},
}

// The API server speaks to nobody but the kubelet: whoever answers at its address shows a serving certificate of the kubelets'
// CA, for that address.
func TestAPIServerVerifiesKubelets(t *testing.T) {
	k := startKubelet(t)
	own := signedServing(t, "w42", "127.0.0.1")
	for name, c := range map[string]struct {
		certificate tls.Certificate
		refused     bool
	}{
		"a certificate of the cluster's CA":           {signedBy(t, &api.Cluster.Kubernetes.Authority, "127.0.0.1"), true},
		"a kubelet's certificate for another address": {signedServing(t, "w43", "127.0.0.9"), true},
		"a certificate that signs itself":             {signedBy(t, nil, "127.0.0.1"), true},
		"the kubelet's own":                           {own, false},
	} {
		t.Run(name, func(t *testing.T) {
			k.show(c.certificate)
			for path, args := range streams {
				output, failed := kubectl(t.Context(), t, args...)
				reached := strings.Contains(k.requests(), path)
				if c.refused && (reached || !failed || !strings.Contains(output, "x509:") && !strings.Contains(output, "certificate")) {
					t.Errorf("kubectl %s: the impostor was asked: %t; kubectl says %q", args[0], reached, output)
				}
				if !c.refused && !reached {
					t.Errorf("kubectl %s: the kubelet was not asked; kubectl says %q", args[0], output)
				}
				if !c.refused && args[0] == "logs" && output != "the pod's log\n" {
					t.Errorf("kubectl logs says %q", output)
				}
			}
		})
	}
}

// While a kubelet's certificate is renewed it goes on with the one it has, and then with the next: logs are there all the time.
func TestLogsWhileACertificateIsRenewed(t *testing.T) {
	k := startKubelet(t)
	k.show(signedServing(t, "w42", "127.0.0.1"))
	var answered atomic.Int64
	var reader sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	reader.Go(func() {
		for ctx.Err() == nil {
			if output, failed := kubectl(t.Context(), t, "logs", "logger"); failed || output != "the pod's log\n" {
				t.Errorf("after %d answers: %q", answered.Load(), output)
			}
			answered.Add(1)
		}
	})
	more := func() {
		before := answered.Load()
		eventually(t, "more answers", func() error {
			if answered.Load() < before+3 {
				return fmt.Errorf("%d", answered.Load())
			}
			return nil
		})
	}
	for range 2 {
		more()
		k.show(signedServing(t, "w42", "127.0.0.1"))
	}
	more()
	stop()
	reader.Wait()
	t.Logf("%d answers over two renewals", answered.Load())
}

// The kubelets' CA is exchanged while the cluster lives: at each step of the exchange, once its control planes were booted,
// logs are there with the certificate that a kubelet has then. They would be lost if the former CA went before a kubelet has
// asked for another certificate: that is what the command waits for.
func TestKubeletCAIsExchangedWhileLogsAreRead(t *testing.T) {
	k, c := startKubelet(t), api.Cluster
	logs := func(when string, want bool, certificate tls.Certificate) {
		t.Helper()
		k.show(certificate)
		if output, failed := kubectl(t.Context(), t, "logs", "logger"); failed == want || !failed && output != "the pod's log\n" {
			t.Errorf("%s: kubectl logs says %q", when, output)
		}
	}
	step := func(do func(cluster.CAName) error) {
		t.Helper()
		if err := do(cluster.KubeletCA); err != nil {
			t.Fatal(err)
		}
		if err := api.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.Policy) == 0 {
		if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
			t.Fatal(err)
		}
	}
	before := c.KubeletServing.Certificate
	old := signedServing(t, "w42", "127.0.0.1")
	logs("at first", true, old)
	step(c.TrustCA)
	logs("while the next CA is trusted", true, old)
	logs("with one that was asked for then", true, signedServing(t, "w42", "127.0.0.1"))
	step(c.SignWithCA)
	logs("while the next CA signs", true, old)
	next := signedServing(t, "w42", "127.0.0.1")
	if leaf, err := x509.ParseCertificate(next.Certificate[0]); err != nil || leaf.CheckSignatureFrom(c.KubeletServing.Certificate) != nil || c.KubeletServing.Certificate.Equal(before) {
		t.Errorf("the next CA did not sign: %v", err)
	}
	logs("with a certificate of the next CA", true, next)
	step(c.DropCA)
	logs("when the former CA is gone", true, next)
	logs("with a certificate of the former CA", false, old)
}
