// Command server is a real Vault for tests: its core, storage in files, policies, tokens and transit engine, served by TLS on loopback.
// Vault's own program links a hundred plugins that are not needed here. The version is the newest under MPL-2.0 whose published parts
// fit together.
//
//	server FOLDER ADDRESS
//
// It writes the authority of its certificate to FOLDER/ca.pem, begins sealed, and ends with its standard input.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/builtin/logical/transit"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/file"
	"github.com/hashicorp/vault/vault"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: server FOLDER ADDRESS")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal("vault: ", err)
	}
}

func run(folder, address string) error {
	logger := hclog.New(&hclog.LoggerOptions{Name: "vault", Level: hclog.Warn, Output: os.Stderr})
	storage, err := file.NewFileBackend(map[string]string{"path": filepath.Join(folder, "storage")}, logger)
	if err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical: storage, Logger: logger, DisableMlock: true, BuiltinRegistry: none{},
		LogicalBackends: map[string]logical.Factory{"transit": transit.Factory},
	})
	if err != nil {
		return fmt.Errorf("core: %w", err)
	}
	certificate, err := makeCertificate(filepath.Join(folder, "ca.pem"))
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return err
	}
	handler := vaulthttp.Handler.Handler(&vault.HandlerProperties{Core: core, ListenerConfig: &configutil.Listener{Type: "tcp"}})
	served := make(chan error, 1)
	go func() {
		served <- (&http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}).Serve(listener)
	}()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- errors.Join(err, core.Shutdown())
	}()
	select {
	case err := <-served:
		return err
	case err := <-ended:
		return err
	}
}

// makeCertificate makes a certificate for loopback that is its own authority.
func makeCertificate(path string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
}

// none is a registry without plugins.
type none struct{}

func (none) Contains(string, consts.PluginType) bool                   { return false }
func (none) Get(string, consts.PluginType) (func() (any, error), bool) { return nil, false }
func (none) Keys(consts.PluginType) []string                           { return nil }
func (none) IsBuiltinEntPlugin(string, consts.PluginType) bool         { return false }
func (none) DeprecationStatus(string, consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Unknown, false
}
