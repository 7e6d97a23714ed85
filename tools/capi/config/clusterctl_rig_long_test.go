//go:build long

package config

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

// bench has the programs, built, and a clusterctl repository with a release of everything.
type bench struct {
	// programs is the folder of clusterctl, core and manager.
	programs string
	// repository is the folder, and settings the file that tells clusterctl of it.
	repository, settings string
	// home is where clusterctl keeps its own files.
	home string
}

// The versions in the repository. Core's is that of the module.
const (
	ourVersion = "v0.1.0"
	keeperURL  = "hashivault://hullmark?address=https://vault.example:8200"
)

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s%s", cmd.Args, err, out, &stderr)
	}
	return string(out)
}

func newBench(ctx context.Context, t *testing.T, kubectl string) bench {
	t.Helper()
	b := bench{programs: t.TempDir(), repository: t.TempDir(), home: t.TempDir()}
	for name, pkg := range map[string]string{"clusterctl": "sigs.k8s.io/cluster-api/cmd/clusterctl", "core": "sigs.k8s.io/cluster-api/core", "manager": ".."} {
		run(t, exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(b.programs, name), pkg))
	}
	if err := WriteRepository(b.repository, ourVersion, testImage); err != nil {
		t.Fatal(err)
	}
	module, version, err := coretest.Module(ctx)
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := os.ReadFile(filepath.Join(module, "metadata.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// Core's components are made as its own releases make them, by kustomize.
	components := run(t, exec.CommandContext(ctx, kubectl, "kustomize", filepath.Join(module, "core", "config", "default")))
	core := filepath.Join("cluster-api", version, "core-components.yaml")
	b.write(t, core, components)
	b.write(t, filepath.Join("cluster-api", version, MetadataFile), string(metadata))
	b.write(t, "cert-manager/v1.0.0/cert-manager.yaml", certManager)
	written, err := os.ReadFile(filepath.Join(b.repository, ClusterctlFile))
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, "all.yaml", string(written)+`- name: cluster-api
  type: CoreProvider
  url: `+filepath.Join(b.repository, core)+`
cert-manager:
  url: `+filepath.Join(b.repository, "cert-manager/v1.0.0/cert-manager.yaml")+`
  version: v1.0.0
`)
	b.settings = filepath.Join(b.repository, "all.yaml")
	return b
}

func (b bench) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(b.repository, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certManager stands in for cert-manager, which nothing here can fetch or run: clusterctl waits until its kinds can be used. The
// certificate that it would make for core's webhooks is made by serveWebhooks.
const certManager = `apiVersion: v1
kind: Namespace
metadata: {name: cert-manager}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: issuers.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {kind: Issuer, listKind: IssuerList, plural: issuers, singular: issuer}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {kind: Certificate, listKind: CertificateList, plural: certificates, singular: certificate}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// clusterctl runs clusterctl, and returns what it prints.
func (b bench) clusterctl(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(b.programs, "clusterctl"), append([]string{"--config", b.settings}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+b.home, "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "CLUSTER_TOPOLOGY=true", "HULLMARK_KEEPER="+keeperURL,
		"HULLMARK_CLUSTER_ROOT="+strings.Repeat("5f", 32), "HULLMARK_IMAGE=/images/hullmark.raw")
	return run(t, cmd)
}

// management is a management cluster: a real API, and what runs beside it in the place of pods.
type management struct {
	bench
	api        *testenv.Environment
	client     client.Client
	kubeconfig string
}

func startManagement(ctx context.Context, t *testing.T) management {
	t.Helper()
	api, err := testenv.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Stop(); err != nil {
			t.Error(err)
		}
	})
	text, err := api.Kubeconfig("test", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	m := management{api: api, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(m.kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	admin, err := api.Config("test", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if m.client, err = client.New(admin, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	return m
}

// start runs a program in the place of a Deployment's pod: with the token of its account, and no other permission.
func (m management) start(ctx context.Context, t *testing.T, namespace, account, program string, args ...string) *testenv.Process {
	t.Helper()
	admin, err := m.api.Config("test", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	token, err := kubernetes.NewForConfigOrDie(admin).CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData, TLSServerName: admin.ServerName}
	file.AuthInfos["pod"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	file.Contexts["pod"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "pod", Namespace: namespace}
	file.CurrentContext = "pod"
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(m.programs, program), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+path, "POD_NAMESPACE="+namespace, "POD_NAME=test", "POD_UID=test")
	p, err := testenv.Launch(dir, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	a, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// startManagers runs core's manager and ours. The API server reaches core's webhooks at its address, since no network leads to its Service.
func (m management) startManagers(ctx context.Context, t *testing.T) {
	t.Helper()
	address, dir := freeAddress(t), t.TempDir()
	authority := writeCertificate(t, dir)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	core := m.start(ctx, t, "capi-system", "capi-manager", "core", "--feature-gates=ClusterTopology=true", "--webhook-port="+port, "--webhook-cert-dir="+dir,
		"--health-addr="+freeAddress(t), "--diagnostics-address="+freeAddress(t), "--insecure-diagnostics")
	m.start(ctx, t, "hullmark-bootstrap-system", "hullmark-bootstrap-manager", "manager", "bootstrap", "--leader-elect",
		"--health-probe-bind-address="+freeAddress(t), "--metrics-bind-address="+freeAddress(t))
	for _, kind := range []schema.GroupVersionKind{
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"},
		{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
	} {
		for _, o := range m.list(ctx, t, kind, client.MatchingLabels{clusterv1.ProviderNameLabel: "cluster-api"}) {
			was := o.DeepCopy()
			serveWebhooks(o.Object, address, authority)
			if err := m.client.Patch(ctx, &o, client.MergeFrom(was)); err != nil { // core writes into CRDs meanwhile
				t.Fatal(err)
			}
		}
	}
	// A Cluster that would be taken, which is asked until the webhooks serve.
	probe := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"}, Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "HullmarkCluster", Name: "probe"},
	}}
	if err := core.Await(ctx, func() error { return m.client.Create(ctx, probe.DeepCopy(), client.DryRunAll) }); err != nil {
		t.Fatal(err)
	}
}

// serveWebhooks puts an address in the place of each Service that a client configuration names, at any depth.
func serveWebhooks(value any, address, authority string) {
	switch v := value.(type) {
	case []any:
		for _, each := range v {
			serveWebhooks(each, address, authority)
		}
	case map[string]any:
		if c, ok := v["clientConfig"].(map[string]any); ok {
			if service, ok := c["service"].(map[string]any); ok {
				v["clientConfig"] = map[string]any{"url": fmt.Sprintf("https://%s%v", address, service["path"]), "caBundle": authority}
			}
		}
		for _, each := range v {
			serveWebhooks(each, address, authority)
		}
	}
}

// writeCertificate writes a certificate for 127.0.0.1 and its key as core reads them, and returns it as a bundle in base64.
func writeCertificate(t *testing.T, dir string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhooks"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{"tls.crt": text, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return base64.StdEncoding.EncodeToString(text)
}

// list returns all objects of a kind.
// createAll creates the objects that clusterctl generated, but for those that edit leaves out, and returns kinds and names of all, sorted.
func (m management) createAll(ctx context.Context, t *testing.T, text string, edit func(*unstructured.Unstructured) bool) (made []string) {
	t.Helper()
	for _, document := range strings.Split(text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := sigsyaml.UnmarshalStrict([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		made = append(made, o.GetKind()+" "+o.GetName())
		if !edit(o) {
			continue
		}
		if err := m.client.Create(ctx, o, client.FieldValidation("Strict")); err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	slices.Sort(made)
	return made
}

func (m management) list(ctx context.Context, t *testing.T, kind schema.GroupVersionKind, opts ...client.ListOption) []unstructured.Unstructured {
	t.Helper()
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(kind)
	if err := m.client.List(ctx, all, opts...); err != nil {
		t.Fatalf("%s: %v", kind.Kind, err)
	}
	return all.Items
}

// eventually waits for something that other programs do.
func eventually(ctx context.Context, t *testing.T, what string, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := testenv.Poll(ctx, 200*time.Millisecond, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// secretOf returns a Secret of a Cluster.
func secretOf(namespace, cluster, name string, more map[string]string, key string, value []byte) *corev1.Secret {
	labels := map[string]string{clusterv1.ClusterNameLabel: cluster}
	for k, v := range more {
		labels[k] = v
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Type: clusterv1.ClusterSecretType, Data: map[string][]byte{key: value}}
}
