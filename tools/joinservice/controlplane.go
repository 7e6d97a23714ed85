package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/etcd"
)

// etcdEndpoint is this node's own member, by an address that its certificate always has.
const etcdEndpoint = "https://127.0.0.1:2379"

// handed are the credentials that a control plane that joins gets as files, and where it keeps them. The policy
// is another matter: the one in force counts. The first node's record stays with the first node.
var handed = []struct {
	credential, path string
	mode             uint32
	// optional ones may be missing.
	optional bool
}{
	{credential: "root.crt", path: "/var/lib/hullmark/root.crt", mode: 0o644},
	{credential: "online-ca.crt", path: "/var/lib/hullmark/online-ca.crt", mode: 0o644},
	{credential: "online-ca.key", path: "/var/lib/hullmark/online-ca.key", mode: 0o600},
	{credential: "keyset.json", path: "/var/lib/hullmark/keyset.json", mode: 0o600},
	{credential: "keeper.secret", path: "/var/lib/hullmark/keeper.secret", mode: 0o600, optional: true},
	{credential: "keeper.crt", path: "/var/lib/hullmark/keeper.crt", mode: 0o644, optional: true},
	{credential: rotationCredential, path: hullmark.RotationFile, mode: 0o600},
	{credential: "settings.json", path: "/var/lib/hullmark/settings.json", mode: 0o644},
	{credential: "ca.crt", path: "/etc/kubernetes/pki/ca.crt", mode: 0o644},
	{credential: "ca.key", path: "/etc/kubernetes/pki/ca.key", mode: 0o600},
	{credential: "etcd-ca.crt", path: "/etc/kubernetes/pki/etcd/ca.crt", mode: 0o644},
	{credential: "etcd-ca.key", path: "/etc/kubernetes/pki/etcd/ca.key", mode: 0o600},
	{credential: "front-proxy-ca.crt", path: "/etc/kubernetes/pki/front-proxy-ca.crt", mode: 0o644},
	{credential: "front-proxy-ca.key", path: "/etc/kubernetes/pki/front-proxy-ca.key", mode: 0o600},
	{credential: "kubelet-serving-ca.crt", path: hullmark.KubeletServingCertificate, mode: 0o644},
	{credential: "kubelet-serving-ca.key", path: hullmark.KubeletServingKey, mode: 0o600},
	{credential: "kubelet-serving-trust.crt", path: hullmark.KubeletTrustFile, mode: 0o644},
	{credential: "sa.key", path: "/etc/kubernetes/pki/sa.key", mode: 0o600},
	{credential: "sa.pub", path: "/etc/kubernetes/pki/sa.pub", mode: 0o644},
}

// controlPlaneFiles reads what a control plane that joins gets. It is read when it is needed, so that
// most keys are in this process's memory for that moment only.
func (f folder) controlPlaneFiles() ([]*wire.File, error) {
	return f.handed(func(string) bool { return true })
}

// rotatedFiles reads what comes with a rotation, but the policy and its documents.
func (f folder) rotatedFiles() ([]*wire.File, error) { return f.handed(hullmark.Rotated) }

func (f folder) handed(wanted func(path string) bool) (files []*wire.File, err error) {
	for _, h := range handed {
		if !wanted(h.path) {
			continue
		}
		content, err := f.read(h.credential)
		if h.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			wire.WipeFiles(files)
			return nil, fmt.Errorf("a control plane's files: %w", err)
		}
		files = append(files, &wire.File{Path: h.path, Content: content, Mode: h.mode})
	}
	return files, nil
}

// checkControlPlaneFiles makes sure, before anything is served, that further control planes could be given theirs.
func (c *credentials) checkControlPlaneFiles(f folder) error {
	files, err := f.controlPlaneFiles()
	wire.WipeFiles(files)
	return err
}

// controlPlanes is how this service lets further control planes join.
func (a *app) controlPlanes() joinservice.ControlPlanes {
	members := &etcd.Members{Endpoint: a.options.etcd, TLS: etcdTLS(a.credentials.etcd)}
	return joinservice.ControlPlanes{
		Lease: a.registry, RemoveMember: members.RemoveStale,
		Files:   folder(a.options.credentials).controlPlaneFiles,
		Rotated: folder(a.options.credentials).rotatedFiles, Rotation: a.credentials.rotation, Keys: a.credentials.keys,
	}
}

// etcdTLS holds members to the etcd CA, and shows them a certificate of it that is made in memory.
func etcdTLS(ca tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(ca.Leaf)
	certificate := &rotating{age: clientAge, make: func(now time.Time) (tls.Certificate, error) { return newClient(ca, now) }}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate.get() },
	}
}
