//go:build long

package build

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
)

func joinParams(t *testing.T, server *httptest.Server, profile kubeadm.Profile) kubeadm.JoinParams {
	t.Helper()
	return kubeadm.JoinParams{
		NodeName: "worker-1", Endpoint: server.Listener.Addr().String(), Profile: profile,
		CA:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		Token: hullmark.NewSecret([]byte("abcdef.0123456789abcdef")),
	}
}

func TestKubeadmTakesOurJoinDocuments(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm")
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	for _, profile := range []kubeadm.Profile{kubeadm.Normal, kubeadm.Slow} {
		for field, address := range map[string]netip.Addr{"tlsBootstrapToken": {}, "localAPIEndpoint": netip.MustParseAddr("192.0.2.8")} {
			params := joinParams(t, server, profile)
			params.AdvertiseAddress = address
			documents, _, err := kubeadm.JoinDocuments(params)
			if err != nil {
				t.Fatal(err)
			}
			if err := kubeadm.Validate(t.Context(), program, documents); err != nil {
				t.Errorf("profile %q, address %v: %v", profile, address, err)
			}
			spoilt := strings.Replace(string(documents), field, field+"s", 1)
			if err := kubeadm.Validate(t.Context(), program, []byte(spoilt)); err == nil {
				t.Errorf("profile %q: kubeadm takes the unknown field %ss", profile, field)
			}
		}
	}
}

// TestKubeadmJoinFindsTheCluster lets the real kubeadm discover a cluster by our file: it trusts the CA alone, goes on although nobody may read
// cluster-info, and asks for the cluster's configuration with the token.
func TestKubeadmJoinFindsTheCluster(t *testing.T) {
	asked := make(chan string, 16)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path + " " + r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
	}))
	defer server.Close()
	documents, discovery, err := kubeadm.JoinDocuments(joinParams(t, server, kubeadm.Normal))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, file := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "discovery.conf")
	for path, text := range map[string]string{config: strings.ReplaceAll(string(documents), kubeadm.DiscoveryFile, file), file: string(discovery)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// This phase first discovers the cluster; it ends here, since the answer is no.
	program := exec.CommandContext(t.Context(), filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm"), "join", "phase", "kubelet-start", "--config", config)
	ended := make(chan string, 1)
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- program.Wait().Error() }()
	for _, want := range []string{"/api/v1/namespaces/kube-public/configmaps/cluster-info ", "/api/v1/namespaces/kube-system/configmaps/kubeadm-config Bearer abcdef.0123456789abcdef"} {
		select {
		case got := <-asked:
			if got != want {
				t.Errorf("kubeadm asked for %q, want %q", got, want)
			}
		case why := <-ended:
			t.Fatalf("kubeadm ended before it asked for %q: %s", want, why)
		}
	}
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
}
