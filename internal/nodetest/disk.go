package nodetest

import (
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
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

// Authority is a CA of a test, with the certificate in PEM.
type Authority struct {
	PEM         []byte
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes one.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate = sign(t, template, template, a.key, a.key)
	a.PEM = encode(a.certificate)
	return a
}

// Issue makes a certificate for these DNS names and addresses that ends at a time, with its key, both in PEM.
func (a *Authority) Issue(t testing.TB, end time.Time, names ...string) (certificate, key []byte) {
	t.Helper()
	private := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotBefore: a.certificate.NotBefore, NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encode(sign(t, template, a.certificate, private, a.key)), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, issuer *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// Kubeconfig is one as kubeadm writes it, for the API server at HOST:PORT.
func (a *Authority) Kubeconfig(t testing.TB, endpoint string) []byte {
	t.Helper()
	certificate, key := a.Issue(t, time.Now().Add(time.Hour))
	text := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: kubernetes
  cluster: {server: "https://%s", certificate-authority-data: %s}
users:
- name: node
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: node@kubernetes
  context: {cluster: kubernetes, user: node}
current-context: node@kubernetes
`, endpoint, text(a.PEM), text(certificate), text(key))
}

// ControlPlaneDisk is what kubeadm has written on a control plane at 192.0.2.7, as far as it matters when certificates are made
// anew, by the paths that programs see: certificates that end at a time, those of servers for names, the API server's manifest,
// and an admin.conf for an endpoint; with the authority's certificate in the place of all that sign these.
func (a *Authority) ControlPlaneDisk(t testing.TB, endpoint string, end time.Time, names ...string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{
		"/etc/kubernetes/admin.conf":              a.Kubeconfig(t, endpoint),
		"/etc/kubernetes/controller-manager.conf": a.Kubeconfig(t, "192.0.2.7:6443"),
		"/etc/kubernetes/scheduler.conf":          a.Kubeconfig(t, "192.0.2.7:6443"),
		"/etc/kubernetes/manifests/kube-apiserver.yaml": []byte(`apiVersion: v1
kind: Pod
spec:
  containers:
  - command: [kube-apiserver, --advertise-address=192.0.2.7, --secure-port=6443, --service-cluster-ip-range=10.96.0.0/12]
`),
	}
	for _, authority := range []string{hullmark.KubernetesCACertificate, hullmark.EtcdCACertificate, hullmark.FrontProxyCACertificate} {
		files[authority] = a.PEM
	}
	for base, names := range map[string][]string{
		"apiserver": names, "etcd/server": {"etcd.example.net", "192.0.2.7"}, "etcd/peer": {"192.0.2.7"},
		"apiserver-kubelet-client": nil, "apiserver-etcd-client": nil, "front-proxy-client": nil, "etcd/healthcheck-client": nil,
	} {
		base = "/etc/kubernetes/pki/" + base
		files[base+".crt"], files[base+".key"] = a.Issue(t, end, names...)
	}
	return files
}
