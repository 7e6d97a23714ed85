package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/hullmark/hullmark/cluster"
)

// leaf is what a certificate is to say.
type leaf struct {
	name   string
	groups []string
	usages []x509.ExtKeyUsage
	// loopback makes it good for a server on this machine.
	loopback bool
	// addresses are further ones that it is good for.
	addresses []net.IP
}

// sign makes a key and its certificate, both in PEM, good for a day.
func sign(by cluster.Authority, l leaf) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: l.name, Organization: l.groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: l.usages,
	}
	if l.loopback {
		template.DNSNames, template.IPAddresses = []string{"kubernetes", "localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	template.IPAddresses = append(template.IPAddresses, l.addresses...)
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, private.Public(), by.Key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeLeaf signs a certificate and writes it where kubeadm keeps it.
func (r *Environment) writeLeaf(name string, by cluster.Authority, l leaf) error {
	certificate, key, err := sign(by, l)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(r.pki(name+".crt"), certificate, 0o600), os.WriteFile(r.pki(name+".key"), key, 0o600))
}
