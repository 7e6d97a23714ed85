//go:build long

package build

import (
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
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
			if err := run.Validate(t.Context(), program, documents); err != nil {
				t.Errorf("profile %q, address %v: %v", profile, address, err)
			}
			spoilt := strings.Replace(string(documents), field, field+"s", 1)
			if err := run.Validate(t.Context(), program, []byte(spoilt)); err == nil {
				t.Errorf("profile %q: kubeadm takes the unknown field %ss", profile, field)
			}
		}
	}
}

// discovers is the real kubeadm's first phase that discovers the cluster, by our documents and more, a part of a JoinConfiguration.
func discovers(t *testing.T, params kubeadm.JoinParams, more string) *exec.Cmd {
	t.Helper()
	documents, discovery, err := kubeadm.JoinDocuments(params)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, file := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "discovery.conf")
	for path, text := range map[string]string{config: strings.ReplaceAll(string(documents), kubeadm.DiscoveryFile, file) + more, file: string(discovery)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return exec.CommandContext(t.Context(), filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm"), "join", "phase", "kubelet-start", "--config", config)
}

// TestKubeadmJoinFindsTheCluster lets the real kubeadm discover a cluster by our file: it trusts the CA alone, goes on although
// nobody may read cluster-info, and asks for the cluster's configuration with the token.
func TestKubeadmJoinFindsTheCluster(t *testing.T) {
	asked := make(chan string, 16)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path + " " + r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
	}))
	defer server.Close()
	// It ends here, since the answer is no.
	program := discovers(t, joinParams(t, server, kubeadm.Normal), "")
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

// TestKubeadmJoinRefusesARogueEndpoint lets the real kubeadm meet another server than the cluster's at its endpoint: it fails,
// our error says why, and the server is told nothing, least of all the token.
func TestKubeadmJoinRefusesARogueEndpoint(t *testing.T) {
	cluster := httptest.NewTLSServer(http.NotFoundHandler())
	defer cluster.Close()
	params := joinParams(t, cluster, kubeadm.Normal)
	certificate, key := nodetest.NewAuthority(t).Issue(t, time.Now().Add(time.Hour), "127.0.0.1")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	var reached, asked atomic.Int64
	rogue := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	rogue.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	rogue.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			reached.Add(1)
		}
	}
	rogue.StartTLS()
	defer rogue.Close()
	params.Endpoint = rogue.Listener.Addr().String()
	said, err := discovers(t, params, "timeouts: {discovery: 5s}\n").CombinedOutput()
	t.Logf("%s", said)
	if err == nil {
		t.Error("kubeadm found a cluster")
	}
	if why := run.Cause(string(said)); !strings.Contains(why, "x509: certificate signed by unknown authority") || !strings.Contains(why, params.Endpoint) {
		t.Errorf("the error says %q", why)
	}
	if reached.Load() == 0 || asked.Load() != 0 {
		t.Errorf("%d connections and %d requests reached the rogue endpoint, want some and none", reached.Load(), asked.Load())
	}
}
