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
	"sync/atomic"
	"testing"
	"time"
)

// TestProgramsAwaitTheAPIServer: the controller manager, which by itself ends after ten
// seconds, and the scheduler ask an API server that is not ready for its health alone,
// and go on when it is.
func TestProgramsAwaitTheAPIServer(t *testing.T) {
	bin := filepath.Join(kubernetesBundle(t), "usr", "bin")
	for _, program := range []string{"kube-controller-manager", "kube-scheduler"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			var ready atomic.Bool
			var early, asked atomic.Int64
			later := make(chan string, 1)
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/healthz" && ready.Load():
					fmt.Fprint(w, "ok")
					return
				case r.URL.Path == "/healthz":
					asked.Add(1)
				case !ready.Load():
					early.Add(1)
				default:
					select {
					case later <- r.URL.Path:
					default:
					}
				}
				http.Error(w, "not ready", http.StatusServiceUnavailable)
			}))
			t.Cleanup(server.Close)
			config := filepath.Join(t.TempDir(), "kubeconfig")
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],\n"+
				"clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: u, user: {token: t}}]}",
				server.URL, base64.StdEncoding.EncodeToString(ca))
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			command := exec.CommandContext(ctx, filepath.Join(bin, program), "--kubeconfig="+config,
				"--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
				"--secure-port=0", "--cert-dir="+t.TempDir())
			var out bytes.Buffer
			command.Stdout, command.Stderr = &out, &out
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- command.Wait() }()
			select {
			case err := <-ended:
				t.Fatalf("ended while the API server was not ready: %v: %s", err, out.String())
			case <-time.After(15 * time.Second):
			}
			if early.Load() != 0 || asked.Load() == 0 {
				t.Errorf("asked for the health %d times, for other things %d times", asked.Load(), early.Load())
			}
			ready.Store(true)
			select {
			case <-later:
			case err := <-ended:
				t.Fatalf("ended when the API server was ready: %v: %s", err, out.String())
			case <-time.After(time.Minute):
				t.Error("did nothing within a minute of the API server's answer")
			}
		})
	}
}
