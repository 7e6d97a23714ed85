package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"text/template"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
)

// The span of the Kubernetes authorities: it begins well before any clock that
// a host may show its node, and ends after any disk.
func caValidity() (notBefore, notAfter time.Time) {
	return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2099, 12, 31, 23, 59, 59, 0, time.UTC)
}

// adminValidity is how long an administrator's kubeconfig is good for.
const adminValidity = 365 * 24 * time.Hour

// makeKubernetes makes what kubeadm finds below /etc/kubernetes/pki.
func (c *Cluster) makeKubernetes() (err error) {
	for _, name := range CANames() {
		if c.ca(name).Authority, err = newAuthority(name.commonName()); err != nil {
			return err
		}
	}
	c.ServiceAccount, err = newKey()
	return err
}

// newAuthority makes a self-signed CA of the shape that kubeadm makes.
func newAuthority(name string) (Authority, error) {
	key, err := newKey()
	if err != nil {
		return Authority{}, fmt.Errorf("authority %s: %w", name, err)
	}
	notBefore, notAfter := caValidity()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage:              x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true,
	}
	certificate, err := issue(template, template, &key.PublicKey, key)
	if err != nil {
		return Authority{}, fmt.Errorf("authority %s: %w", name, err)
	}
	return Authority{Certificate: certificate, Key: key}, nil
}

func issue(template, issuer *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// kubeconfig is the kubeconfig format v1 with one user; data is base64 of PEM.
var kubeconfig = template.Must(template.New("kubeconfig").Parse(`apiVersion: v1
kind: Config
clusters:
- name: hullmark
  cluster:
    server: https://{{.Server}}
    certificate-authority-data: {{.CA}}
users:
- name: operator
  user:
    client-certificate-data: {{.Certificate}}
    client-key-data: {{.Key}}
contexts:
- name: operator@hullmark
  context:
    cluster: hullmark
    user: operator
current-context: operator@hullmark
`))

// Administrator signs a client certificate for the Kubernetes API, without
// asking the cluster, and returns it with its key, both in PEM. As a member of
// kubeadm:cluster-admins it can be revoked by removing that group's binding.
func (c *Cluster) Administrator(now time.Time, validity time.Duration) (certificate, key []byte, err error) {
	signed, private, err := c.Kubernetes.client(pkix.Name{CommonName: operatorName, Organization: []string{"kubeadm:cluster-admins"}}, now.Add(validity))
	if err != nil {
		return nil, nil, fmt.Errorf("administrator: %w", err)
	}
	if key, err = encodeKey(private); err != nil {
		return nil, nil, fmt.Errorf("administrator: %w", err)
	}
	return encodeCertificate(signed), key, nil
}

// operatorName is what the operator's client certificates call the operator.
const operatorName = "hullmark-operator"

// client signs a client certificate.
func (a Authority) client(subject pkix.Name, notAfter time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	notBefore, _ := caValidity()
	signed, err := issue(&x509.Certificate{
		Subject: subject, NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.Certificate, &key.PublicKey, a.Key)
	return signed, key, err
}

// EtcdClient returns what a client needs that reads and writes all of etcd, for as long as it is valid.
func (c *Cluster) EtcdClient(now time.Time, validity time.Duration) (*tls.Config, error) {
	signed, key, err := c.Etcd.client(pkix.Name{CommonName: operatorName}, now.Add(validity))
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	roots := x509.NewCertPool()
	for _, certificate := range c.Etcd.certificates() {
		roots.AddCert(certificate)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{signed.Raw}, PrivateKey: key}},
	}, nil
}

// KubernetesCA returns the certificates that the API's servers and clients may chain to, in PEM: CATrust of that name.
func (c *Cluster) KubernetesCA() []byte { return c.Kubernetes.trust() }

// KubernetesCAs returns these certificates.
func (c *Cluster) KubernetesCAs() []*x509.Certificate { return c.Kubernetes.certificates() }

// Kubeconfig signs an administrator's kubeconfig, good for a year from now.
// server is host:port of an API server, as the kubeconfig's user reaches it.
func (c *Cluster) Kubeconfig(server string, now time.Time) ([]byte, error) {
	certificate, key, err := c.Administrator(now, adminValidity)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	encode := base64.StdEncoding.EncodeToString
	var out bytes.Buffer
	err = kubeconfig.Execute(&out, struct{ Server, CA, Certificate, Key string }{
		server, encode(c.KubernetesCA()), encode(certificate), encode(key),
	})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return out.Bytes(), nil
}

// pkiDir is where kubeadm keeps authorities.
const pkiDir = "/etc/kubernetes/pki/"

// nodeFile is a file as the table of them says (hullmark.NodeFiles).
func nodeFile(path string, content []byte) *wire.File {
	f, _ := hullmark.NodeFileOf(path)
	return &wire.File{Path: path, Content: content, Mode: f.Mode}
}

// Files returns what a control-plane node of the cluster keeps on its encrypted
// disk: the Kubernetes authorities, and what a join service needs. Modes are
// 0600 but for certificates and public keys.
func (c *Cluster) Files() ([]*wire.File, error) {
	files, err := c.keyFiles()
	if err != nil {
		return nil, fmt.Errorf("control plane's files: %w", err)
	}
	files = append(files, nodeFile(hullmark.PolicyFile, c.Policy))
	for id, document := range c.Documents {
		files = append(files, nodeFile(hullmark.DocumentsFolder+"/"+id.String()+".json", document))
	}
	for _, add := range []func([]*wire.File) ([]*wire.File, error){c.addRotation, c.addSettings, c.addRecord} {
		if files, err = add(files); err != nil {
			return nil, fmt.Errorf("control plane's files: %w", err)
		}
	}
	return files, nil
}

// keyFiles returns what does not depend on the policy: the authorities, the service accounts' key pair, and the keyset with what opens it.
func (c *Cluster) keyFiles() ([]*wire.File, error) {
	files := []*wire.File{
		nodeFile(hullmark.RootFile, encodeCertificate(c.Root.Certificate)),
		nodeFile(hullmark.KubeletTrustFile, c.KubeletServing.trust()),
		nodeFile(hullmark.KubernetesSigningCertificate, encodeCertificate(c.Kubernetes.Certificate)),
	}
	for certificate, a := range map[string]struct {
		text []byte
		key  *ecdsa.PrivateKey
	}{
		hullmark.KubernetesCACertificate:   {c.Kubernetes.trust(), c.Kubernetes.Key},
		hullmark.EtcdCACertificate:         {c.Etcd.trust(), c.Etcd.Key},
		hullmark.FrontProxyCACertificate:   {c.FrontProxy.trust(), c.FrontProxy.Key},
		hullmark.KubeletServingCertificate: {encodeCertificate(c.KubeletServing.Certificate), c.KubeletServing.Key},
		hullmark.OnlineCACertificate:       {encodeCertificate(c.Online.Certificate), c.Online.Key},
	} {
		key, err := encodeKey(a.key)
		if err != nil {
			return nil, err
		}
		files = append(files, nodeFile(certificate, a.text), nodeFile(strings.TrimSuffix(certificate, ".crt")+".key", key))
	}
	return c.addKeys(files)
}

// addSettings appends the join service's settings, once there are any.
func (c *Cluster) addSettings(files []*wire.File) ([]*wire.File, error) {
	if c.Settings == nil {
		return files, nil
	}
	current, err := c.CurrentSettings()
	if err != nil {
		return nil, err
	}
	settings, err := current.Encode()
	if err != nil {
		return nil, err
	}
	return append(files, nodeFile(hullmark.SettingsFile, settings)), nil
}

// CurrentSettings returns the settings as the policy has changed them. It is an error if no control plane was initialised by this file.
func (c *Cluster) CurrentSettings() (joinservice.Settings, error) {
	if c.Settings == nil {
		return joinservice.Settings{}, errors.New("the cluster was not initialised by this file, so its endpoint is unknown")
	}
	policy, err := c.OpenPolicy()
	return c.Settings.Under(policy), err
}

// addRecord appends the first node's epoch record, from which its join service makes the one that the API keeps.
func (c *Cluster) addRecord(files []*wire.File) ([]*wire.File, error) {
	if c.First == nil {
		return files, nil
	}
	record, err := json.Marshal(c.First)
	if err != nil {
		return nil, err
	}
	return append(files, nodeFile(hullmark.FirstRecordFile, record)), nil
}

// addKeys appends the service accounts' key pair and the keyset with what opens it.
func (c *Cluster) addKeys(files []*wire.File) ([]*wire.File, error) {
	private, err := encodeKey(c.ServiceAccount)
	if err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(&c.ServiceAccount.PublicKey)
	if err != nil {
		return nil, err
	}
	keyset, err := c.keysetFiles()
	if err != nil {
		return nil, err
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})
	files = append(files,
		nodeFile(pkiDir+"sa.key", private),
		nodeFile(pkiDir+"sa.pub", public))
	return append(files, keyset...), nil
}

func encodeCertificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// encodeKey writes SEC 1 PEM, which every version of kubeadm reads.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	defer clear(der)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
