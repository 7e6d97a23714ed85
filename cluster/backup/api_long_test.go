//go:build long

package backup

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// api is a running API over an etcd, seen from all sides.
type api struct {
	env      *testenv.Environment
	source   Source
	etcd     *clientv3.Client
	registry *registry.Registry
	http     *http.Client
}

// startAPI runs a cluster's API over what dir holds.
func startAPI(t *testing.T, dir string, c *cluster.Cluster) *api {
	t.Helper()
	r, err := testenv.StartFor(t.Context(), dir, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	a := &api{env: r}
	a.source.Endpoint = r.EtcdURL()
	if a.source.TLS, err = c.EtcdClient(time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	a.etcd = connect(t, a.source)
	config, err := r.Config("operator", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if a.registry, err = registry.New(config); err != nil {
		t.Fatal(err)
	}
	if a.http, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	return a
}

func connect(t *testing.T, s Source) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint}, TLS: s.TLS, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// uid returns the identity of an object by its path, or nothing if there is none.
func (a *api) uid(t *testing.T, path string) string {
	t.Helper()
	answer, err := a.http.Get("https://" + a.env.Address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var object metav1.PartialObjectMetadata
	switch answer.StatusCode {
	case http.StatusNotFound:
		return ""
	case http.StatusOK:
		if err := json.Unmarshal(body, &object); err != nil {
			t.Fatal(err)
		}
		return string(object.UID)
	}
	t.Fatalf("%s: %s", path, body)
	return ""
}

func (a *api) apply(t *testing.T, manifest string) {
	t.Helper()
	if err := a.env.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
}

// add gives the cluster a machine with its Node, a Pod on it, and a token.
func (a *api) add(t *testing.T, m joinservice.Machine) {
	t.Helper()
	_, err := a.registry.Issue(t.Context(), m, func(id string) error {
		m.Token = id
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.registry.Store(t.Context(), m, ""); err != nil {
		t.Fatal(err)
	}
	if err := a.registry.Claim(t.Context(), m.Name, m.EKID); err != nil {
		t.Fatal(err)
	}
	a.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %[1]s}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: %[1]s}
spec: {drivers: []}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: %[1]s, namespace: kube-node-lease}
---
apiVersion: v1
kind: Pod
metadata: {name: on-%[1]s, namespace: default}
spec: {nodeName: %[1]s, containers: [{name: c, image: "localhost/none"}], tolerations: [{operator: Exists}]}
`, m.Name))
}

// requestPEM is a certificate request that nobody decides over.
func requestPEM(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "somebody"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// populate gives a new cluster a control plane, two workers, and what else a backup may hold.
func (a *api) populate(t *testing.T) {
	t.Helper()
	a.apply(t, string(registry.Manifest()))
	for i := range 3 { // the last counts
		a.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data: {ClusterConfiguration: "configuration %d"}
`, i))
	}
	a.apply(t, `
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: csr-1}
spec: {signerName: example.com/none, usages: [client auth], request: `+requestPEM(t)+`}
---
apiVersion: v1
kind: Event
metadata: {name: event-1, namespace: default}
involvedObject: {kind: Pod, namespace: default, name: on-w1}
reason: Test
---
apiVersion: v1
kind: Pod
metadata: {name: waits, namespace: default}
spec: {schedulerName: none, containers: [{name: c, image: "localhost/none"}]}
`)
	control := machine(1, "cp1")
	control.Role = hullmark.ControlPlane
	for _, m := range []joinservice.Machine{control, machine(2, "w1"), machine(3, "w2")} {
		a.add(t, m)
	}
	if err := a.registry.PushPolicy(t.Context(), "", registry.AnyVersion, []byte("policy"), nil); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); a.uid(t, "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt") == ""; time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatal("the controller manager published no CA")
		}
	}
}

// backup takes a backup of the API's etcd.
func (a *api) backup(t *testing.T) (*os.File, Taken) {
	t.Helper()
	f := memory(t)
	taken, err := a.source.Take(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != taken.Size {
		t.Errorf("%d bytes, want %d: %v", info.Size(), taken.Size, err)
	}
	return f, taken
}

// etcdutl makes of a prepared snapshot the data of a new etcd, in a folder for startAPI.
func etcdutl(t *testing.T, prepared *os.File) string {
	t.Helper()
	bin, err := testenv.Programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	snapshot := filepath.Join(dir, "snapshot")
	content, err := io.ReadAll(io.NewSectionReader(prepared, 0, MaxSize))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(snapshot, content, 0o600); err != nil {
		t.Fatal(err)
	}
	const peer = "http://127.0.0.1:1"
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "etcdutl"), "snapshot", "restore", snapshot,
		"--data-dir="+filepath.Join(dir, "etcd"), "--name=testenv", "--initial-cluster=testenv="+peer, "--initial-advertise-peer-urls="+peer,
		fmt.Sprint("--bump-revision=", bump), "--mark-compacted", "--skip-hash-check").CombinedOutput()
	if err != nil {
		t.Fatalf("etcdutl: %v: %s", err, out)
	}
	return dir
}
