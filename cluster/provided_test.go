package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"testing/fstest"
	"time"
)

func inPEM(kind string, der []byte) *fstest.MapFile {
	return &fstest.MapFile{Data: pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})}
}

// ca makes a CA's two files.
func ca(t *testing.T, change func(*x509.Certificate)) (certificate, key *fstest.MapFile) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "somebody's"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return inPEM("CERTIFICATE", der), inPEM("EC PRIVATE KEY", encoded)
}

// Authorities that somebody has already are used, and kept by the file; what is absent is the cluster's own.
func TestProvidedAuthorities(t *testing.T) {
	c := newFile(t).Cluster
	made := c.FrontProxy.Certificate
	folder := fstest.MapFS{}
	folder["ca.crt"], folder["ca.key"] = ca(t, nil)
	folder["etcd/ca.crt"], folder["etcd/ca.key"] = ca(t, nil)
	_, folder["sa.key"] = ca(t, nil)
	found, err := c.Provide(folder, time.Now())
	if err != nil || !slices.Equal(found, []string{"ca", "etcd/ca", "sa"}) {
		t.Fatal(found, err)
	}
	if c.Kubernetes.Certificate.Subject.CommonName != "somebody's" || c.Etcd.Certificate.Equal(c.Kubernetes.Certificate) || !c.FrontProxy.Certificate.Equal(made) {
		t.Errorf("%s, %s", c.Kubernetes.Certificate.Subject, c.FrontProxy.Certificate.Subject)
	}
	plain, err := c.encode()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := decode(plain); err != nil || !again.Kubernetes.Certificate.Equal(c.Kubernetes.Certificate) {
		t.Errorf("it is not kept: %v", err)
	}
	if _, _, err := c.Administrator(time.Now(), time.Hour); err != nil {
		t.Error(err)
	}
}

func TestProvidedAuthoritiesAreChecked(t *testing.T) {
	certificate, key := ca(t, nil)
	other, _ := ca(t, nil)
	leaf, leafKey := ca(t, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	ended, endedKey := ca(t, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Unix(0, 0), time.Unix(1, 0) })
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, folder := range map[string]fstest.MapFS{
		"nothing":           {},
		"no key":            {"ca.crt": certificate},
		"no certificate":    {"ca.key": key},
		"another's":         {"ca.crt": other, "ca.key": key},
		"no CA":             {"ca.crt": leaf, "ca.key": leafKey},
		"ended":             {"ca.crt": ended, "ca.key": endedKey},
		"a key of RSA":      {"ca.crt": certificate, "ca.key": inPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private))},
		"a chain":           {"ca.crt": {Data: slices.Concat(certificate.Data, other.Data)}, "ca.key": key},
		"no PEM":            {"ca.crt": {Data: []byte("x")}, "ca.key": key},
		"much":              {"ca.crt": {Data: make([]byte, maxPEM+1)}, "ca.key": key},
		"a key that is one": {"sa.key": certificate},
	} {
		c := newFile(t).Cluster
		before := c.Kubernetes.Certificate
		if found, err := c.Provide(folder, time.Now()); err == nil || !c.Kubernetes.Certificate.Equal(before) {
			t.Errorf("%s: used %v", name, found)
		}
	}
}
