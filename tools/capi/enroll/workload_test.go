package enroll

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Who may make Secrets in a Cluster's namespace writes its kubeconfig: neither has the manager run a program by it, nor show a server its
// own account's token, whose file every pod has.
func TestConnectGivesNothingAway(t *testing.T) {
	folder := t.TempDir()
	token, ran := filepath.Join(folder, "token"), filepath.Join(folder, "ran")
	if err := os.WriteFile(token, []byte("the-manager's"), 0o600); err != nil {
		t.Fatal(err)
	}
	var shown []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	for name, user := range map[string]*clientcmdapi.AuthInfo{
		"a file": {TokenFile: token},
		"a program": {Exec: &clientcmdapi.ExecConfig{
			Command: "/bin/sh", Args: []string{"-c", "touch " + ran}, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}},
	} {
		text, err := clientcmd.Write(clientcmdapi.Config{
			Clusters: map[string]*clientcmdapi.Cluster{"c": {
				Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			}},
			AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": user}, Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
		})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t)
		w.make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-kubeconfig"}, Data: map[string][]byte{"value": text}})
		workload, err := (&Clusters{Live: w.client}).Connect(t.Context(), client.ObjectKey{Namespace: "ns", Name: "c"})
		if err == nil {
			t.Errorf("%s: taken", name)
			_, _, _ = workload.Node(t.Context(), "n")
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the manager ran a program")
	}
	if len(shown) > 0 {
		t.Errorf("the server was shown %q", shown)
	}
}
