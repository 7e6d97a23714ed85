package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/etcd"
)

// etcdPort is where members of etcd answer.
const etcdPort = 2379

// controlPlaneFiles reads what a control plane that joins gets. It is read when it is needed, so that
// most keys are in this process's memory for that moment only.
func (f folder) controlPlaneFiles() ([]*wire.File, error) {
	return f.shared(func(string) bool { return true })
}

// rotatedFiles reads what comes with a rotation, but the policy and its documents.
func (f folder) rotatedFiles() ([]*wire.File, error) { return f.shared(hullmark.Rotated) }

// shared reads the credentials that every control plane has the same of, as the files that it keeps them in. The policy is
// another matter: the one in force counts.
func (f folder) shared(wanted func(path string) bool) (files []*wire.File, err error) {
	for _, h := range hullmark.NodeFiles() {
		if !h.Shared || !wanted(h.Path) {
			continue
		}
		content, err := f.read(h.Credential)
		if h.Optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			wire.WipeFiles(files)
			return nil, fmt.Errorf("a control plane's files: %w", err)
		}
		files = append(files, &wire.File{Path: h.Path, Content: content, Mode: h.Mode})
	}
	return files, nil
}

// checkControlPlaneFiles makes sure, before anything is served, that further control planes could be given theirs.
func (c *credentials) checkControlPlaneFiles(f folder) error {
	files, err := f.controlPlaneFiles()
	wire.WipeFiles(files)
	return err
}

// members are etcd's, as this node's own knows them.
func (a *app) members() *etcd.Members {
	endpoint := a.options.etcd
	if endpoint == "" {
		endpoint = "https://" + netip.AddrPortFrom(a.credentials.settings.Local(), etcdPort).String()
	}
	return &etcd.Members{Endpoint: endpoint, TLS: etcdTLS(a.credentials.etcd, a.credentials.etcdTrust)}
}

// controlPlanes is how this service lets further control planes join.
func (a *app) controlPlanes(members *etcd.Members) joinservice.ControlPlanes {
	return joinservice.ControlPlanes{
		Lease: a.registry, RemoveMember: members.RemoveStale,
		Files:   folder(a.options.credentials).controlPlaneFiles,
		Rotated: folder(a.options.credentials).rotatedFiles, Rotation: a.credentials.rotation, Keys: a.credentials.keys,
	}
}

// etcdTLS holds members to certificates that are trusted, in PEM, and shows them one of the etcd CA that is made in memory.
func etcdTLS(ca tls.Certificate, trusted []byte) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	certificate := &rotating{age: clientAge, make: func(now time.Time) (tls.Certificate, error) { return newClient(ca, now) }}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate.get() },
	}
}
