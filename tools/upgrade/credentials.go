package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// clientFile has the certificate and its key, and authorityFile the Kubernetes CA: names that the unit gives them.
	clientFile, authorityFile = "client.pem", "ca.crt"
	// maxCredential bounds each, in bytes.
	maxCredential = 64 << 10
	// apiServerName is one that every API server's certificate has.
	apiServerName = "kubernetes"
)

// credentials are what the unit hands over (LoadCredential=).
type credentials struct {
	client, authority   []byte
	notBefore, notAfter time.Time
}

func readCredentials(dir string) (c credentials, err error) {
	if dir == "" {
		return c, errors.New("credentials: CREDENTIALS_DIRECTORY is not set: start hullmark-upgrade.service")
	}
	for name, into := range map[string]*[]byte{clientFile: &c.client, authorityFile: &c.authority} {
		if *into, err = read(filepath.Join(dir, name)); err != nil {
			return c, fmt.Errorf("credentials: %w", err)
		}
	}
	pair, err := tls.X509KeyPair(c.client, c.client)
	if err != nil {
		return c, fmt.Errorf("credentials: %s: %w", clientFile, err)
	}
	c.notBefore, c.notAfter = pair.Leaf.NotBefore, pair.Leaf.NotAfter
	return c, nil
}

func read(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && info.Size() > maxCredential {
		err = fmt.Errorf("%s: more than %d bytes", name, maxCredential)
	}
	if err != nil {
		return nil, err
	}
	content := make([]byte, info.Size()) // Not grown while it is read: a copy of a key would stay behind.
	_, err = io.ReadFull(file, content)
	return content, err
}

// lasts is until when the certificate is used. The join service makes another one several times before half of its life is over; one that
// is older, because the join service does not run, is used to its end.
func (c credentials) lasts(now time.Time) (time.Time, error) {
	half := c.notBefore.Add(c.notAfter.Sub(c.notBefore) / 2)
	switch {
	case now.Before(half):
		return half, nil
	case now.Before(c.notAfter):
		return c.notAfter, nil
	}
	return time.Time{}, fmt.Errorf("the certificate ended at %s: the join service of this node makes another one; look at it (hullmark node logs)", c.notAfter.UTC().Format(time.RFC3339))
}

// config is of a client of the API server at host.
func (c credentials) config(host string) *rest.Config {
	return &rest.Config{Host: host, TLSClientConfig: rest.TLSClientConfig{ServerName: apiServerName, CAData: c.authority, CertData: c.client, KeyData: c.client}}
}
