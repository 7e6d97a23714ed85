package channel

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

// The names that tell the exchange's certificates apart. They are URIs, so
// that no host name can ever be taken for one.
const (
	operatorURI = "hullmark:operator:"       // and a Scope
	namedURI    = "hullmark:named-operator:" // and a Named
	serviceURI  = "hullmark:join-service"
)

// validity is the time span of every certificate here but an operator's. Nobody checks it: a
// node's clock is the host's. The fields are just not optional in X.509.
func validity() (notBefore, notAfter time.Time) {
	return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2099, 12, 31, 23, 59, 59, 0, time.UTC)
}

// NewRoot returns the self-signed certificate of a cluster's root key.
func NewRoot(key crypto.Signer) (*x509.Certificate, error) {
	template := rootTemplate()
	return sign(template, template, key.Public(), key)
}

func rootTemplate() *x509.Certificate {
	template := newTemplate("hullmark root")
	template.KeyUsage = x509.KeyUsageCertSign
	template.BasicConstraintsValid, template.IsCA = true, true
	return template
}

// NewOnlineCA returns the certificate, signed by root, of a CA that can sign
// join services' leaves and nothing else.
func NewOnlineCA(root *x509.Certificate, rootKey crypto.Signer, online crypto.PublicKey) (*x509.Certificate, error) {
	template := newTemplate("hullmark online CA")
	template.KeyUsage = x509.KeyUsageCertSign
	template.BasicConstraintsValid, template.IsCA = true, true
	template.MaxPathLen, template.MaxPathLenZero = 0, true
	return sign(template, root, online, rootKey)
}

// operatorLife is how long an operator's leaf is good for to whoever has a clock to go by, around the time at which it was
// made. A node does not look at it: nobody confirmed its clock when it waits for init or recover.
const operatorLife = 12 * time.Hour

// NewOperator returns a fresh client certificate for one scope, signed directly by the root
// key, and its chain. But for the one in a cluster file that is lent it is never stored.
func NewOperator(root *x509.Certificate, rootKey crypto.Signer, scope Scope) (tls.Certificate, error) {
	template := newTemplate("hullmark operator")
	template.NotBefore, template.NotAfter = time.Now().Add(-operatorLife), time.Now().Add(operatorLife)
	return newLeaf(template, scope.uri(), x509.ExtKeyUsageClientAuth, rootKey, root)
}

// NewNamedOperator returns a client certificate for a named operator, with a key of its own, signed directly by the root key, and its
// chain. It is his until n.Ends; n.Key is left out of account.
func NewNamedOperator(root *x509.Certificate, rootKey crypto.Signer, n Named) (tls.Certificate, error) {
	template := newTemplate("hullmark operator " + n.Name)
	template.NotAfter = n.Ends
	return newLeaf(template, n.uri(), x509.ExtKeyUsageClientAuth, rootKey, root)
}

// NewService returns a join service's certificate, signed by the online CA,
// and its chain up to the root.
func NewService(root, online *x509.Certificate, onlineKey crypto.Signer) (tls.Certificate, error) {
	return newLeaf(newTemplate(serviceURI), serviceURI, x509.ExtKeyUsageServerAuth, onlineKey, online, root)
}

// newLeaf makes a key and its certificate, issued by the first of issuers, and appends them all.
func newLeaf(template *x509.Certificate, uri string, usage x509.ExtKeyUsage, issuerKey crypto.Signer, issuers ...*x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s: %w", uri, err)
	}
	name, err := url.Parse(uri)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s: %w", uri, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	template.URIs = []*url.URL{name}
	leaf, err := sign(template, issuers[0], key.Public(), issuerKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	certificate := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, issuer := range issuers {
		certificate.Certificate = append(certificate.Certificate, issuer.Raw)
	}
	return certificate, nil
}

// ephemeralCertificate makes a node's own certificate, which proves nothing.
func ephemeralCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("node's certificate: %w", err)
	}
	template := newTemplate("hullmark node")
	template.KeyUsage = x509.KeyUsageDigitalSignature
	leaf, err := sign(template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

func newTemplate(name string) *x509.Certificate {
	notBefore, notAfter := validity()
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: notBefore, NotAfter: notAfter}
}

// sign issues a certificate with a random serial number of 127 bits (RFC 5280 §4.1.2.2).
func sign(template, issuer *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("certificate %s: serial number: %w", template.Subject.CommonName, err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, public, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", template.Subject.CommonName, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", template.Subject.CommonName, err)
	}
	return certificate, nil
}
