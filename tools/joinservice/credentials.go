package main

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
	"github.com/hullmark/hullmark/measurements"
)

// maxCredential bounds each credential, in bytes; systemd takes 1 MiB for all of them together.
const maxCredential = 1 << 20

// documentPrefix begins the names of what systemd makes of the files of the folder documents.
const documentPrefix = "documents_"

// credentials are what the unit hands over (LoadCredential=), parsed.
type credentials struct {
	root   *x509.Certificate
	online tls.Certificate
	// keyset is the file as it lies on the disk, keeper what a keeper that wrapped it is shown.
	keyset   []byte
	keeper   keeper.Credentials
	policy   joinservice.SignedPolicy
	settings joinservice.Settings
	// kubernetes is the Kubernetes CA, authority what API servers are held to, in PEM: that CA, and while it is exchanged the other one,
	// too.
	kubernetes tls.Certificate
	authority  []byte
	// etcd is the etcd CA, etcdTrust what members of etcd are held to, in PEM: that CA, and while it is exchanged the other one, too.
	etcd      tls.Certificate
	etcdTrust []byte
	// rotation is that of the keys, and keys commits to them (measurements.Policy).
	rotation uint64
	keys     hullmark.KeysDigest
	// first is the operator's record of the first node, nil if there is none.
	first *joinservice.FirstRecord
}

// folder is the credentials directory.
type folder string

// readCredentials reads everything, so that what is wrong with a file is known before anything is served.
func readCredentials(dir string) (*credentials, error) {
	if dir == "" {
		return nil, errors.New("credentials: CREDENTIALS_DIRECTORY is not set: start hullmark-joinservice.service")
	}
	f, c := folder(dir), &credentials{}
	for _, read := range []func(folder) error{
		c.readRoot, c.readAuthorities, c.readKeyset, c.readKeeper, c.readPolicy, c.readSettings, c.readRotation, c.readFirst, c.checkControlPlaneFiles,
	} {
		if err := read(f); err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
	}
	return c, nil
}

func (f folder) read(name string) ([]byte, error) {
	file, err := os.Open(filepath.Join(string(f), name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxCredential {
		return nil, fmt.Errorf("%s: more than %d bytes", name, maxCredential)
	}
	content := make([]byte, info.Size()) // Not grown while it is read: a copy of a key would stay behind.
	_, err = io.ReadFull(file, content)
	return content, err
}

// pair reads a certificate and its key.
func (f folder) pair(name string) (pair tls.Certificate, certificate []byte, err error) {
	if certificate, err = f.read(name + ".crt"); err != nil {
		return tls.Certificate{}, nil, err
	}
	key, err := f.read(name + ".key")
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	defer clear(key)
	if pair, err = tls.X509KeyPair(certificate, key); err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	return pair, certificate, nil
}

func (c *credentials) readRoot(f folder) error {
	text, err := f.read("root.crt")
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return errors.New("root.crt: no certificate in PEM")
	}
	if c.root, err = x509.ParseCertificate(block.Bytes); err != nil {
		return fmt.Errorf("root.crt: %w", err)
	}
	return nil
}

// id names the cluster.
func (c *credentials) id() hullmark.ClusterRoot {
	return hullmark.ClusterRootOf(c.root.RawSubjectPublicKeyInfo)
}

func (c *credentials) readAuthorities(f folder) (err error) {
	if c.online, _, err = f.pair("online-ca"); err != nil {
		return err
	}
	if err := c.online.Leaf.CheckSignatureFrom(c.root); err != nil {
		return fmt.Errorf("online-ca.crt: %w", err)
	}
	if c.kubernetes, c.authority, err = f.pair("ca"); err != nil {
		return err
	}
	c.etcd, c.etcdTrust, err = f.pair("etcd-ca")
	return err
}

func (c *credentials) readKeyset(f folder) (err error) {
	if c.keyset, err = f.read("keyset.json"); err != nil {
		return err
	}
	return keys.Check(c.keyset)
}

// readPolicy reads the policy and its documents. They are verified by whoever uses them.
func (c *credentials) readPolicy(f folder) (err error) {
	if c.policy.Envelope, err = f.read("policy"); err != nil {
		return err
	}
	entries, err := os.ReadDir(string(f))
	if err != nil {
		return err
	}
	c.policy.Documents = map[measurements.DocumentID][]byte{}
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), documentPrefix)
		if !ok {
			continue
		}
		var id measurements.DocumentID
		if err := id.UnmarshalText([]byte(strings.TrimSuffix(name, ".json"))); err != nil {
			return fmt.Errorf("%s: %w", entry.Name(), err)
		}
		if c.policy.Documents[id], err = f.read(entry.Name()); err != nil {
			return err
		}
	}
	return nil
}

func (c *credentials) readSettings(f folder) error {
	encoded, err := f.read("settings.json")
	if err != nil {
		return err
	}
	c.settings, err = joinservice.ParseSettings(encoded)
	return err
}

// rotationCredential is a hullmark.KeyRotation.
const rotationCredential = "rotation"

func (c *credentials) readRotation(f folder) error {
	text, err := f.read(rotationCredential)
	if err != nil {
		return err
	}
	defer clear(text)
	rotation, err := hullmark.ParseKeyRotation(text)
	if err != nil {
		return fmt.Errorf("%s: %w", rotationCredential, err)
	}
	defer rotation.Blind.Wipe()
	files, err := f.rotatedFiles()
	if err != nil {
		return err
	}
	defer wire.WipeFiles(files)
	c.rotation, c.keys = rotation.Number, hullmark.DigestKeys(rotation, wire.ContentOf(files))
	return nil
}

// readFirst reads the first node's record; null, the unit's default, says that this is another node.
func (c *credentials) readFirst(f folder) error {
	encoded, err := f.read("initialising.json")
	if err != nil {
		return err
	}
	if err := hullmark.DecodeStrict(encoded, len(encoded), &c.first); err != nil {
		return fmt.Errorf("initialising.json: %w", err)
	}
	return nil
}

// onlineKey is the key of the online CA.
func (c *credentials) onlineKey() crypto.Signer { return c.online.PrivateKey.(crypto.Signer) }
