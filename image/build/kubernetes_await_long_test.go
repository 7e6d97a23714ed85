//go:build long

package build

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark/kubeadm"
)

// startingAPIServer is one that first refuses to say whether it is healthy, as it does before its roles are there, and then is not; it counts what
// else it is asked, and tells of the first such request once it is healthy.
type startingAPIServer struct {
	*httptest.Server
	healthy          atomic.Bool
	asked, otherwise atomic.Int64
	later            chan string
}

func newStartingAPIServer(t *testing.T) *startingAPIServer {
	t.Helper()
	s := &startingAPIServer{later: make(chan string, 1)}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		health := r.URL.Path == "/healthz"
		switch {
		case health && s.healthy.Load():
			_, _ = fmt.Fprint(w, "ok")
			return
		case health && s.asked.Add(1) < 3:
			http.Error(w, "forbidden", http.StatusForbidden)
			return
		case !health && !s.healthy.Load():
			s.otherwise.Add(1)
		case !health:
			select {
			case s.later <- r.URL.Path:
			default:
			}
		}
		http.Error(w, "not healthy", http.StatusInternalServerError)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *startingAPIServer) kubeconfig(t *testing.T) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],\n"+
		"clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: u, user: {token: t}}]}",
		s.URL, base64.StdEncoding.EncodeToString(ca))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestControllersAwaitTheAPIServer: the controller manager, which by itself ends after ten seconds, asks an API server that is not
// healthy for its health alone, and goes on when it is.
func TestControllersAwaitTheAPIServer(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), kubernetesHome, "bin", "kube-controller-manager")
	server := newStartingAPIServer(t)
	config := server.kubeconfig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	command := exec.CommandContext(ctx, program, "--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--leader-elect=false", "--secure-port=0", "--cert-dir="+t.TempDir())
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	// It asks once a second, so that this is longer than the ten that it has by itself.
	for began := time.Now(); server.asked.Load() < 13 && time.Since(began) < 5*time.Minute; {
		select {
		case err := <-ended:
			t.Fatalf("ended while the API server was not healthy: %v: %s", err, out.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
	if server.otherwise.Load() != 0 || server.asked.Load() < 13 {
		t.Errorf("asked for the health %d times, for other things %d times", server.asked.Load(), server.otherwise.Load())
	}
	server.healthy.Store(true)
	select {
	case <-server.later:
	case err := <-ended:
		t.Fatalf("ended when the API server was healthy: %v: %s", err, out.String())
	case <-time.After(time.Minute):
		t.Error("did nothing within a minute of the API server's answer")
	}
}

// Whoever asks for the version or with a wrong flag waits for nobody.
func TestControllersAnswerAtOnce(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), kubernetesHome, "bin", "kube-controller-manager")
	config := newStartingAPIServer(t).kubeconfig(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--kubeconfig="+config, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), kubeadm.Version) {
		t.Errorf("--version: %v: %s", err, out)
	}
	if out, err := exec.CommandContext(ctx, program, "--kubeconfig="+config, "--no-such-flag").CombinedOutput(); err == nil || ctx.Err() != nil {
		t.Errorf("a flag that does not exist: %v: %s", err, out)
	}
}
