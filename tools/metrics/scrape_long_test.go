//go:build long

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/internal/testenv"
)

// example returns one of the page's blocks of YAML.
func example(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n```yaml "+name+"\n")
	text, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		t.Fatalf("the page has no example %s", name)
	}
	return text
}

// scrapeConfig is what the page's example says, as far as it matters here (Prometheus, Configuration).
type scrapeConfig struct {
	ScrapeConfigs []struct {
		JobName       string `json:"job_name"`
		Scheme        string `json:"scheme"`
		MetricsPath   string `json:"metrics_path"`
		Authorization struct {
			CredentialsFile string `json:"credentials_file"`
		} `json:"authorization"`
		TLSConfig struct {
			CAFile string `json:"ca_file"`
		} `json:"tls_config"`
		KubernetesSDConfigs []struct {
			Role string `json:"role"`
		} `json:"kubernetes_sd_configs"`
		RelabelConfigs []struct {
			SourceLabels []string `json:"source_labels"`
			Regex        string   `json:"regex"`
			TargetLabel  string   `json:"target_label"`
			Replacement  string   `json:"replacement"`
		} `json:"relabel_configs"`
	} `json:"scrape_configs"`
}

func TestScrapeConfig(t *testing.T) {
	var c scrapeConfig
	if err := yaml.UnmarshalStrict([]byte(example(t, "prometheus")), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.ScrapeConfigs) != 1 {
		t.Fatalf("%+v", c)
	}
	s := c.ScrapeConfigs[0]
	if s.Scheme != "https" || s.Authorization.CredentialsFile == "" || s.TLSConfig.CAFile == "" || len(s.KubernetesSDConfigs) != 1 || s.KubernetesSDConfigs[0].Role != "node" {
		t.Errorf("%+v", s)
	}
	if len(s.RelabelConfigs) != 1 || s.RelabelConfigs[0].Replacement != "$1:7446" || s.RelabelConfigs[0].TargetLabel != "__address__" {
		t.Errorf("%+v", s.RelabelConfigs)
	}
}

// TestScrape has a real API server say who may read a node's metrics: Prometheus as the page sets it up, and nobody else.
func TestScrape(t *testing.T) {
	env, err := testenv.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := env.Apply(t.Context(), []byte(example(t, "rbac")+"\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: other\n  namespace: monitoring\n")); err != nil {
		t.Fatal(err)
	}
	o := nodeFiles(t, env)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.listen = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	up, done := make(chan string, 1), make(chan error, 1)
	o.notify = func(line string) { up <- line }
	go func() { done <- serve(ctx, o) }()
	select {
	case <-up:
	case err := <-done:
		t.Fatal(err)
	}
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	token := func(account string) string {
		cmd, err := env.Kubectl(t.Context(), "create", "token", account, "--namespace", "monitoring")
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities(t, o), ServerName: "worker-1"}}}
	for _, c := range []struct {
		who, token string
		want       int
	}{
		{"Prometheus", token("prometheus"), http.StatusOK},
		{"another account", token("other"), http.StatusForbidden},
		{"a token that is made up", "eyJhbGciOiJub25lIn0.e30.", http.StatusUnauthorized},
		{"nobody", "", http.StatusUnauthorized},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+o.listen+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			request.Header.Set("Authorization", "Bearer "+c.token)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != c.want || strings.Contains(string(body), "hullmark_") != (c.want == http.StatusOK) {
			t.Errorf("%s: %s, want %d: %.200s", c.who, answer.Status, c.want, body)
		}
	}
}

// nodeFiles are what a node hands the program: its kubelet's kubeconfig and certificates.
func nodeFiles(t *testing.T, env *testenv.Environment) options {
	t.Helper()
	dir := t.TempDir()
	kubelet, err := env.Kubeconfig("system:node:worker-1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, kubeconfig), kubelet, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{clientFile, servingFile} {
		certificate(t, filepath.Join(dir, file), "system:node:worker-1")
	}
	if err := os.WriteFile(filepath.Join(dir, "status.json"), []byte(`{"version":1,"step":"READY","ready":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return options{credentials: dir, status: filepath.Join(dir, "status.json"), forward: filepath.Join(dir, "none"), disk: dir, service: "http://127.0.0.1:1/"}
}

// authorities are those of the node's serving certificate, which signed itself here.
func authorities(t *testing.T, o options) *x509.CertPool {
	t.Helper()
	c, err := firstCertificate(filepath.Join(o.credentials, servingFile))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})) {
		t.Fatal(fmt.Errorf("%s: no certificate", servingFile))
	}
	return pool
}
