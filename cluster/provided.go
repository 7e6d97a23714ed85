package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// maxPEM bounds a file of a key or a certificate, in bytes.
const maxPEM = 64 << 10

// Provide has a new cluster use the authorities that are in a folder, in the place of its own: ca, etcd/ca and front-proxy-ca, each with
// .crt and .key, and the service accounts' sa.key, as kubeadm keeps them in PEM. What is absent stays as it was made. Keys are of ECDSA
// P-256, since all others of the file are; certificates are those of CAs that have not ended. It returns the names that were found.
func (c *Cluster) Provide(folder fs.FS, now time.Time) (found []string, err error) {
	for _, p := range []struct {
		name string
		use  *Authority
	}{{"ca", &c.Kubernetes.Authority}, {"etcd/ca", &c.Etcd.Authority}, {"front-proxy-ca", &c.FrontProxy.Authority}} {
		provided, err := readAuthority(folder, p.name, now)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("authority %s: %w", p.name, err)
		}
		*p.use = provided
		found = append(found, p.name)
	}
	key, err := readKey(folder, "sa.key")
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		c.ServiceAccount = key
		found = append(found, "sa")
	}
	if len(found) == 0 {
		return nil, errors.New("the folder has none of ca, etcd/ca and front-proxy-ca (.crt and .key), and no sa.key")
	}
	return found, nil
}

// readAuthority reads a certificate and its key. The error is fs.ErrNotExist if neither is there.
func readAuthority(folder fs.FS, name string, now time.Time) (Authority, error) {
	block, missing := readPEM(folder, name+".crt")
	key, err := readKey(folder, name+".key")
	switch {
	case errors.Is(missing, fs.ErrNotExist) && errors.Is(err, fs.ErrNotExist):
		return Authority{}, fs.ErrNotExist
	case errors.Is(missing, fs.ErrNotExist), errors.Is(err, fs.ErrNotExist):
		return Authority{}, errors.New("one of its two files is absent: it takes .crt and .key")
	case missing != nil:
		return Authority{}, missing
	case err != nil:
		return Authority{}, err
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil:
		return Authority{}, fmt.Errorf("%s.crt: %w", name, err)
	case !certificate.BasicConstraintsValid || !certificate.IsCA || certificate.KeyUsage&x509.KeyUsageCertSign == 0:
		return Authority{}, fmt.Errorf("%s.crt: this is no CA's certificate", name)
	case now.After(certificate.NotAfter) || now.Before(certificate.NotBefore):
		return Authority{}, fmt.Errorf("%s.crt: it is good from %s to %s, and not now", name, certificate.NotBefore.Format(time.DateOnly), certificate.NotAfter.Format(time.DateOnly))
	case !key.PublicKey.Equal(certificate.PublicKey):
		return Authority{}, errors.New("the certificate is for another key")
	}
	return Authority{Certificate: certificate, Key: key}, nil
}

// readKey reads a private key. No error quotes it.
func readKey(folder fs.FS, name string) (*ecdsa.PrivateKey, error) {
	block, err := readPEM(folder, name)
	if err != nil {
		return nil, err
	}
	defer clear(block.Bytes)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		parsed, err = x509.ParseECPrivateKey(block.Bytes)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%s: want a private key of ECDSA P-256, unencrypted (kubeadm makes such with encryptionAlgorithm ECDSA-P256)", name)
	}
	return key, nil
}

// readPEM reads the first block of a file. A file with others behind it, such as a chain, is refused.
func readPEM(folder fs.FS, name string) (*pem.Block, error) {
	file, err := folder.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxPEM+1))
	if err == nil && len(text) > maxPEM {
		err = fmt.Errorf("more than %d bytes", maxPEM)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer clear(text)
	block, rest := pem.Decode(text)
	for block != nil && block.Type == "EC PARAMETERS" { // openssl writes them before the key
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, fmt.Errorf("%s: this is no PEM", name)
	}
	if more, _ := pem.Decode(rest); more != nil {
		return nil, fmt.Errorf("%s: want one certificate or key, and there are more", name)
	}
	return block, nil
}
