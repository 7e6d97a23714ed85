package run

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeConfigMaps answers like an API server that holds some ConfigMaps in kube-system.
func fakeConfigMaps(t *testing.T, maps map[string]map[string]string) Access {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _ := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/kube-system/configmaps/")
		data, ok := maps[name]
		if !ok || len(r.TLS.PeerCertificates) == 0 {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ConfigMap", "metadata": map[string]string{"name": name}, "data": data})
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	certificate, key := clientPair(t)
	encode := base64.StdEncoding.EncodeToString
	kubeconfig := fmt.Sprintf("clusters:\n- cluster:\n    server: %s\n    certificate-authority-data: %s\nusers:\n- user:\n    client-certificate-data: %s\n    client-key-data: %s\n",
		server.URL, encode(ca), encode(certificate), encode(key))
	return Access{Kubeconfig: "admin.conf", Read: func(string) ([]byte, error) { return []byte(kubeconfig), nil }}
}

func TestRunning(t *testing.T) {
	whole := map[string]map[string]string{
		"kubeadm-config": {"ClusterConfiguration": "kind: ClusterConfiguration\n"},
		"kubelet-config": {"kubelet": "kind: KubeletConfiguration\n"},
	}
	got, err := Running(t.Context(), fakeConfigMaps(t, whole))
	if err != nil {
		t.Fatal(err)
	}
	if string(got.ClusterConfiguration) != "kind: ClusterConfiguration\n" || string(got.KubeletConfiguration) != "kind: KubeletConfiguration\n" {
		t.Errorf("got %s and %s", got.ClusterConfiguration, got.KubeletConfiguration)
	}
	for says, maps := range map[string]map[string]map[string]string{
		"kubelet-config: API server: 404": {"kubeadm-config": whole["kubeadm-config"]},
		"missing or empty":                {"kubeadm-config": whole["kubeadm-config"], "kubelet-config": {"other": "x"}},
	} {
		if _, err := Running(t.Context(), fakeConfigMaps(t, maps)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// TestWouldStoreFails has programs that are not kubeadm; the real one is asked with the bundle at hand.
func TestWouldStoreFails(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kubeadm")
	for script, says := range map[string]string{
		"exit 0": "missing or empty",
		"echo 'error: no such phase' >&2; exit 1":                                     "error: no such phase",
		"printf '[dryrun] Attached object:\\nkind: ConfigMap\\ndata: 1\\n'":           "cannot unmarshal",
		"printf '[dryrun] Attached object:\\nkind: Role\\n\\n[kubelet] something\\n'": "missing or empty",
	} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >/dev/null\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := WouldStore(t.Context(), program, []byte("documents")); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", script, err, says)
		}
	}
}
