package kubeconfig

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// write makes a kubeconfig for a server.
func write(t *testing.T, server *httptest.Server, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	cluster, user := &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: ca}, &clientcmdapi.AuthInfo{Token: "the-writer's"}
	change(cluster, user)
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": cluster}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": user},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// serve is a server by TLS that keeps what it was shown.
func serve(t *testing.T, handle http.HandlerFunc) (*httptest.Server, *[]string) {
	t.Helper()
	var shown []string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
		handle(w, r)
	}))
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, &shown
}

func ask(t *testing.T, config *rest.Config) (string, error) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Get(config.Host + "/api")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// Who may write a kubeconfig gets nothing of the manager by it: neither a program run, nor a file of its sent or read.
func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("the-manager's"), 0o600); err != nil {
		t.Fatal(err)
	}
	server, shown := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	config, err := Config(write(t, server, func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := ask(t, config); err != nil || text != "hello" || (*shown)[0] != "Bearer the-writer's" {
		t.Fatalf("%q, %v, shown %q", text, err, *shown)
	}
	for name, change := range map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
		"a program": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.Exec = &clientcmdapi.ExecConfig{Command: "/bin/true", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
		},
		"a file with a token": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Token, u.TokenFile = "", file },
		"files with a certificate": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.ClientCertificate, u.ClientKey = file, file
		},
		"a provider": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc"}
		},
		"a password":               func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Username, u.Password = "u", "p" },
		"another user":             func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Impersonate = "u" },
		"a file with an authority": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthority = file },
		"a proxy":                  func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.ProxyURL = "http://192.0.2.1:3128" },
		"no authority":             func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthorityData = nil },
		"a server that need not be it": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true
		},
		"a long bundle of authorities": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.CertificateAuthorityData = bytes.Repeat(c.CertificateAuthorityData, 100)
		},
		"a server in clear": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.Server = strings.Replace(c.Server, "https", "http", 1)
		},
	} {
		if _, err := Config(write(t, server, change)); err == nil {
			t.Errorf("%s: taken", name)
		} else if strings.Contains(err.Error(), "the-writer's") {
			t.Errorf("%s: the error quotes the text: %v", name, err)
		}
	}
	for _, text := range []string{"", "{}", "nothing: [", "current-context: x"} {
		if _, err := Config([]byte(text)); err == nil {
			t.Errorf("%q: taken", text)
		}
	}
}

// A server leads the manager nowhere, and does not fill its memory.
func TestGuard(t *testing.T) {
	asked := 0
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(inside.Close)
	for name, c := range map[string]struct {
		handle http.HandlerFunc
		says   string
	}{
		"leads elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.URL+"/latest/meta-data", http.StatusFound)
		}, "leads elsewhere"},
		"does not end": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for piece := make([]byte, 1<<20); ; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}, "more than 4194304 bytes"},
		"says little that becomes much": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"items":[{}` + strings.Repeat(",1", 1<<20) + "]}"))
		}, "commas"},
		"speaks another format": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			_, _ = w.Write([]byte("k8s\x00"))
		}, "protobuf"},
	} {
		server, _ := serve(t, c.handle)
		config, err := Config(write(t, server, func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := ask(t, config); err == nil || !strings.Contains(err.Error(), c.says) || int64(len(text)) > strangers.bytes {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
	if asked > 0 {
		t.Error("a server inside was asked")
	}
}

// A client of Kubernetes' own kinds, which would rather have protobuf, is answered in JSON.
func TestGuardAsksForJSON(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "protobuf") { // as API servers do
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			_, _ = w.Write([]byte("k8s\x00"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}`))
	})
	config, err := Config(write(t, server, func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}))
	if err != nil {
		t.Fatal(err)
	}
	node, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil || node.Name != "n" {
		t.Errorf("%+v, %v", node, err)
	}
}

// Nor does the server of a cluster whose file somebody lent, all of whose answers count together.
func TestGuardOfALentClustersServer(t *testing.T) {
	get := func(client *http.Client, server *httptest.Server) error {
		answer, err := client.Get(server.URL)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	serving := func(text string) (*http.Client, *httptest.Server) {
		server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		})
		client := server.Client()
		client.Transport = Guard(client.Transport)
		return client, server
	}
	nothings, server := serving(`{"items":[{}` + strings.Repeat(",{}", 1<<17) + "]}")
	if err := get(nothings, server); err == nil || !strings.Contains(err.Error(), "commas") {
		t.Errorf("a list of nothings: %v", err)
	}
	pages, server := serving(`{"items":[` + strings.Repeat(" ", 4<<20-100) + "]}")
	for i := range together>>22 + 1 {
		if err := get(pages, server); (err != nil) != (i == together>>22) || err != nil && !strings.Contains(err.Error(), "together") {
			t.Errorf("page %d: %v", i, err)
		}
	}
}
