//go:build long

package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/tools/capi/config"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

// TestManager runs the program itself by the permissions of its components, in each role: it becomes the leader, is healthy, tells its
// metrics to those alone whom the API server allows it, and ends when it is told to.
func TestManager(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Minute) // the bundle may have to be compiled
	defer cancel()
	api, err := testenv.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Stop(); err != nil {
			t.Error(err)
		}
	})
	install(t, api)
	program := filepath.Join(t.TempDir(), "manager")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A key of 32 zeros wraps the sealing key.
	key := filepath.Join(t.TempDir(), "keeper")
	if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	more := map[string][]string{"control-plane": {"--keeper=local://", "--keeper-secret-file=" + key}}
	for _, r := range roles {
		t.Run(r.name, func(t *testing.T) { runManager(ctx, t, api, r, append([]string{program, r.name}, more[r.name]...)) })
	}
}

func runManager(ctx context.Context, t *testing.T, api *testenv.Environment, r role, args []string) {
	kubeconfig := asPod(t, api, r)
	health, metrics := freeAddress(t), freeAddress(t)
	cmd := exec.CommandContext(ctx, args[0], append(args[1:], "--leader-elect", "--health-probe-bind-address="+health, "--metrics-bind-address="+metrics)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	p, err := testenv.Launch(t.TempDir(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	for _, page := range []string{"healthz", "readyz"} {
		if err := p.Await(ctx, func() error { return status(http.DefaultClient, "http://"+health+"/"+page, "", http.StatusOK) }); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := api.Config("test", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	all := kubernetes.NewForConfigOrDie(admin)
	if err := p.Await(ctx, func() error { return hasLeader(ctx, all, r) }); err != nil {
		t.Fatal(err)
	}
	// Its certificate is its own; what is tested is whom it answers.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // #nosec G402
	url := "https://" + metrics + "/metrics"
	if err := p.Await(ctx, func() error { return status(client, url, "", http.StatusUnauthorized) }); err != nil {
		t.Error(err)
	}
	token, err := all.CoreV1().ServiceAccounts(r.system()).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := status(client, url, token.Status.Token, http.StatusForbidden); err != nil {
		t.Error(err)
	}
	if err := api.Apply(ctx, fmt.Appendf(nil, reader, r.system())); err != nil {
		t.Fatal(err)
	}
	if err := p.Await(ctx, func() error { return status(client, url, token.Status.Token, http.StatusOK) }); err != nil {
		t.Error(err)
	}
	if err := p.Terminate(30 * time.Second); err != nil {
		t.Errorf("told to end: %v", err)
	}
}

// reader lets the account "default" of a namespace read metrics.
const reader = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: read-metrics}
rules: [{nonResourceURLs: [/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: read-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: read-metrics}
subjects: [{kind: ServiceAccount, name: default, namespace: %s}]
`

func install(t *testing.T, api *testenv.Environment) {
	t.Helper()
	admin, err := api.Config("test", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if err := coretest.InstallCRDs(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	for _, p := range config.Providers() {
		components, err := p.Components("registry.example/hullmark-capi:test")
		if err != nil {
			t.Fatal(err)
		}
		if err := api.Apply(t.Context(), components); err != nil {
			t.Fatal(err)
		}
	}
}

// asPod writes the kubeconfig of the account of a role's Deployment, with a token as its pods have.
func asPod(t *testing.T, api *testenv.Environment, r role) string {
	t.Helper()
	admin, err := api.Config("test", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	token, err := kubernetes.NewForConfigOrDie(admin).CoreV1().ServiceAccounts(r.system()).CreateToken(t.Context(), r.account(), &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData, TLSServerName: admin.ServerName}
	file.AuthInfos["pod"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	file.Contexts["pod"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "pod", Namespace: r.system()}
	file.CurrentContext = "pod"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	a, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// status asks a page and wants a status.
func status(c *http.Client, url, token string, want int) error {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode != want {
		return fmt.Errorf("%s: %s, want %d: %.200s", url, answer.Status, want, text)
	}
	return nil
}

func hasLeader(ctx context.Context, c kubernetes.Interface, r role) error {
	lease, err := c.CoordinationV1().Leases(r.system()).Get(ctx, r.account(), metav1.GetOptions{})
	if err == nil && (lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "") {
		err = errors.New("nobody leads")
	}
	return err
}
