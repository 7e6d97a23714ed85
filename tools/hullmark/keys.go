package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/youmark/pkcs8"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/secureboot"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

func newKeysCommand() *cobra.Command {
	return group("keys", "Make Secure Boot keys, and sign images with them", newKeysCreateCommand(), newKeysRotateCommand(), newKeysSignCommand())
}

// The names of Secure Boot's variables, which are those of the keys too.
const (
	platformKey = "PK"
	exchangeKey = "KEK"
	imageKey    = "db"
)

// varsFile is the file of variables in a folder of keys.
const varsFile = "OVMF_VARS_4M.fd"

// validity is how long a certificate says that it is good, in years. Firmware has no clock to trust and does not look.
const validity = 20

// bootKey is one of a key set: its certificate, and the key if it is here.
type bootKey struct {
	name        string
	certificate *x509.Certificate
	signer      crypto.Signer
	encrypted   []byte // the key in PEM, encrypted; nil if it is elsewhere
}

// keySet is what a folder of Secure Boot keys holds.
type keySet struct{ platform, exchange, image bootKey }

// newBootKey makes a key and a certificate for it, which says whose it is.
func newBootKey(owner, name string, passphrase hullmark.Secret) (bootKey, error) {
	key, err := rsa.GenerateKey(rand.Reader, secureboot.MinBits)
	if err != nil {
		return bootKey{}, err
	}
	// As many rounds as OWASP's password storage cheat sheet wants.
	kdf := pkcs8.PBKDF2Opts{SaltSize: 16, IterationCount: 600_000, HMACHash: crypto.SHA256}
	encrypted, err := pkcs8.MarshalPrivateKey(key, passphrase.Expose(), &pkcs8.Opts{Cipher: pkcs8.AES256CBC, KDFOpts: kdf})
	if err != nil {
		return bootKey{}, fmt.Errorf("encrypt key %s: %w", name, err)
	}
	k, err := certify(owner, name, key)
	k.encrypted = pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: encrypted})
	return k, err
}

// certify makes a certificate for the key, signed by itself.
func certify(owner, name string, key crypto.Signer) (bootKey, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return bootKey{}, err
	}
	now := time.Now().UTC().Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: owner + " " + name}, NotBefore: now, NotAfter: now.AddDate(validity, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, SignatureAlgorithm: x509.SHA256WithRSA,
	}
	if name == imageKey {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return bootKey{}, fmt.Errorf("certificate %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	return bootKey{name: name, certificate: certificate, signer: key}, err
}

// readBootKey reads a key and its certificate from a folder of keys.
func readBootKey(dir, name string, passphrase hullmark.Secret) (bootKey, error) {
	k := bootKey{name: name}
	var err error
	if k.certificate, err = readCertificate(filepath.Join(dir, name+".pem")); err != nil {
		return k, err
	}
	file := filepath.Join(dir, name+".key")
	block, err := readPEM(file)
	if err != nil {
		return k, err
	}
	if k.signer, err = parsePrivateKey(file, block, passphrase.Expose()); err != nil {
		return k, err
	}
	k.encrypted = pem.EncodeToMemory(block)
	return k, nil
}

// readCertificate reads a certificate in PEM, whose key firmware takes.
func readCertificate(file string) (*x509.Certificate, error) {
	block, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	if block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: it holds a %q, want a certificate", file, block.Type)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err == nil {
		err = secureboot.CheckCertificate(certificate)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return certificate, nil
}

// files are what the folder of the key set holds, by name. What derives from a certificate has the time at which that was made.
func (s keySet) files() (map[string][]byte, error) {
	out := map[string][]byte{}
	owner := secureboot.OwnerOf(s.platform.certificate)
	var variables []secureboot.Variable
	for _, k := range []struct{ key, by bootKey }{{s.platform, s.platform}, {s.exchange, s.platform}, {s.image, s.exchange}} {
		c, name := k.key.certificate, k.key.name
		v := secureboot.Variable{Name: name, Data: secureboot.List(owner, c.Raw), Time: c.NotBefore}
		update, err := v.Sign(k.by.certificate, k.by.signer)
		if err != nil {
			return nil, err
		}
		variables = append(variables, v)
		out[name+".pem"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
		out[name+".der"], out[name+".esl"], out[name+".auth"] = c.Raw, v.Data, update
		if k.key.encrypted != nil {
			out[name+".key"] = k.key.encrypted
		}
	}
	store, err := secureboot.Store(variables...)
	out[varsFile] = store
	return out, err
}

// write makes the folder. What the machine's firmware is to trust must not be lost with its power: it is stored when it has its name.
func (s keySet) write(dir string) error {
	files, err := s.files()
	if err != nil {
		return err
	}
	return atomicfile.Folder(dir, 0o700, func(dir string) error {
		for name, content := range files {
			mode := fs.FileMode(0o644)
			if filepath.Ext(name) == ".key" {
				mode = 0o600
			}
			if err := writeNew(filepath.Join(dir, name), content, mode); err != nil {
				return err
			}
		}
		return nil
	})
}
