package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// unitCredentials makes the credentials folder as systemd does: by the unit's own lines, from a control plane's files.
func unitCredentials(t *testing.T, files []*wire.File) (dir string) {
	t.Helper()
	unit, err := os.ReadFile("../../systemd/system/hullmark-joinservice.service")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(string(unit)) {
		line = strings.TrimSpace(line)
		if set, ok := strings.CutPrefix(line, "SetCredential="); ok { // the default of one that cannot be loaded
			name, value, _ := strings.Cut(set, ":")
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				write(name, []byte(value))
			}
			continue
		}
		credential, ok := strings.CutPrefix(line, "LoadCredential=")
		if !ok {
			continue
		}
		name, path, _ := strings.Cut(credential, ":")
		for _, f := range files {
			if below, ok := strings.CutPrefix(f.GetPath(), path+"/"); ok {
				write(name+"_"+below, f.GetContent())
			} else if f.GetPath() == path {
				write(name, f.GetContent())
			}
		}
	}
	return dir
}

// A control plane that joins gets what the operator gave the first one: all but the policy, which the service adds, and the
// first node's record.
func TestFilesOfAFurtherControlPlane(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	first, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	credentials := folder(unitCredentials(t, first))
	second, err := credentials.controlPlaneFiles()
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string]*wire.File{}
	for _, f := range second {
		byPath[f.GetPath()] = f
	}
	for _, want := range first {
		got, ok := byPath[want.GetPath()]
		delete(byPath, want.GetPath())
		if others := want.GetPath() == "/var/lib/hullmark/policy"; others == ok {
			t.Errorf("%s: handed on: %t", want.GetPath(), ok)
		} else if ok && (!bytes.Equal(got.GetContent(), want.GetContent()) || got.GetMode() != want.GetMode()) {
			t.Errorf("%s: other content, or mode %o, want %o", want.GetPath(), got.GetMode(), want.GetMode())
		}
	}
	if len(byPath) > 0 {
		t.Errorf("handed on, but no control plane has it: %v", byPath)
	}
	if _, err := readCredentials(string(credentials)); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(string(credentials), "sa.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := readCredentials(string(credentials)); err == nil || !strings.Contains(err.Error(), "sa.key") {
		t.Errorf("without sa.key: got %v", err)
	}
}

// A control plane that comes back after a rotation gets what the rotation changed, and no key beside that.
func TestRotatedFilesAreWhatARotationChanges(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	files := func() map[string]string {
		all, err := c.Files()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, f := range all {
			found[f.GetPath()] = string(f.GetContent())
		}
		return found
	}
	before := files()
	if err := errors.Join(c.RotateKeyset(t.Context(), nil), c.RotateOnlineCA(), c.RotateRoot()); err != nil {
		t.Fatal(err)
	}
	for _, name := range cluster.CANames() {
		if err := errors.Join(c.TrustCA(name), c.SignWithCA(name)); err != nil {
			t.Fatal(err)
		}
	}
	after := files()
	all, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	brought, err := folder(unitCredentials(t, all)).rotatedFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range brought {
		path := f.GetPath()
		if string(f.GetContent()) != after[path] || after[path] == before[path] && !strings.Contains(path, "keeper.") {
			t.Errorf("%s is brought, and not what the rotation made of it", path)
		}
		delete(before, path)
	}
	delete(before, "/var/lib/hullmark/policy") // It is brought by itself.
	for path, content := range before {
		if after[path] != content {
			t.Errorf("%s was changed and is not brought", path)
		}
	}
}

// At each step of an exchange of etcd's CA a service knows the members that are at the step before, or at its own, and they know it.
func TestMembersOfEtcdInAnExchange(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func(cluster.CAName) error{c.TrustCA, c.SignWithCA, c.DropCA} {
		before := *c
		if err := step(cluster.EtcdCA); err != nil {
			t.Fatal(err)
		}
		files, err := c.Files()
		if err != nil {
			t.Fatal(err)
		}
		read, err := readCredentials(unitCredentials(t, files))
		if err != nil {
			t.Fatal(err)
		}
		service := etcdTLS(read.etcd, read.etcdTrust)
		own, err := service.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		for who, member := range map[string]*cluster.Cluster{"the step before": &before, "this step": c} {
			shown, err := member.EtcdClient(time.Now(), time.Hour) // A client's stands in for a member's: both are of what signs.
			if err != nil {
				t.Fatal(err)
			}
			if err := verifies(shown.Certificates[0].Certificate[0], service.RootCAs); err != nil {
				t.Errorf("%s: the service does not know a member of %s: %v", c.Exchange(cluster.EtcdCA), who, err)
			}
			if err := verifies(own.Certificate[0], shown.RootCAs); err != nil {
				t.Errorf("%s: a member of %s does not know the service: %v", c.Exchange(cluster.EtcdCA), who, err)
			}
		}
	}
}

// At each step of an exchange of the Kubernetes CA a service knows API servers that are at the step before, or at its own, and they know
// it, and the upgrade engine that it hands a certificate.
func TestAPIServersInAnExchange(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func(cluster.CAName) error{c.TrustCA, c.SignWithCA, c.DropCA} {
		before := *c
		if err := step(cluster.KubernetesCA); err != nil {
			t.Fatal(err)
		}
		at := c.Exchange(cluster.KubernetesCA)
		files, err := c.Files()
		if err != nil {
			t.Fatal(err)
		}
		read, err := readCredentials(unitCredentials(t, files))
		if err != nil {
			t.Fatal(err)
		}
		service := newAPI(apiServer, read.kubernetes, read.authority, slog.New(slog.DiscardHandler))
		own, err := service.certificate.get()
		if err != nil {
			t.Fatal(err)
		}
		engine, err := newClientOf(registry.UpgradeUser, read.kubernetes, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		known := service.config.Transport.(*http.Transport).TLSClientConfig.RootCAs
		for who, plane := range map[string]*cluster.Cluster{"the step before": &before, "this step": c} {
			shown, _, err := plane.Administrator(time.Now(), time.Hour) // A client's stands in for a server's: both are of what signs.
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(shown)
			if err := verifies(block.Bytes, known); err != nil {
				t.Errorf("%s: the service does not know an API server of %s: %v", at, who, err)
			}
			trusted := x509.NewCertPool()
			trusted.AppendCertsFromPEM(plane.KubernetesCA())
			if err := errors.Join(verifies(own.Certificate[0], trusted), verifies(engine.Certificate[0], trusted)); err != nil {
				t.Errorf("%s: an API server of %s does not know the service, or its engine: %v", at, who, err)
			}
		}
	}
}

// verifies holds a client's certificate to roots.
func verifies(der []byte, roots *x509.CertPool) error {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// After the exchange of the root a service with the new one admits nodes whose configuration names the old one, until that is
// given up. One that still has the old one knows that it has missed a rotation, and admits them, too.
func TestServiceAfterTheRootWasExchanged(t *testing.T) {
	s := newSite(t)
	first := s.cluster.ID()
	s.cluster.Documents = s.documents
	if err := s.cluster.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	signed := s.cluster.Policy
	dial := func(says string) (denied string, err error) {
		t.Helper()
		o, stop := s.start(t, "https://"+freeAddress(t))
		defer stop()
		if text := get(t, o.http, "/metrics"); !strings.Contains(text, says) {
			t.Errorf("the metrics do not say %s", says)
		}
		if err = s.node.Dial(t.Context(), o.listen, first); err == nil {
			denied = s.node.Denied().Code
		}
		return denied, err
	}
	s.write(t, "policy", signed)
	if denied, err := dial("hullmark_missed_rotations 1"); denied != "api-unreachable" {
		t.Errorf("a service with the old root: %q, %v", denied, err)
	}
	s.writeCluster(t)
	if denied, err := dial("hullmark_missed_rotations 0"); denied != "api-unreachable" {
		t.Errorf("a service with the new root: %q, %v", denied, err)
	}
	if err := s.cluster.ForgetRoot(); err != nil {
		t.Fatal(err)
	}
	s.write(t, "policy", s.cluster.Policy)
	if denied, err := dial("hullmark_policy_version 3"); err == nil || !strings.Contains(err.Error(), "has not handed over") {
		t.Errorf("once the old root was given up: %q, %v", denied, err)
	}
}

// A service knows what it has missed, and which keys it holds.
func TestMissedRotations(t *testing.T) {
	s := newSite(t)
	s.policy.Rotation = 2
	envelope, err := measurements.SignPolicy(s.cluster.Root.Key, s.cluster.ID(), s.policy)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "policy", envelope)
	for held, want := range map[uint64]uint64{0: 2, 1: 1, 2: 0, 3: 0} {
		s.write(t, rotationCredential, hullmark.KeyRotation{Number: held, Blind: s.cluster.Blind}.Encode())
		a, err := prepare(options{credentials: s.credentials, files: servicefiles.Files{Folder: t.TempDir()}, api: apiServer, log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if got := a.missedRotations(); got != want {
			t.Errorf("rotation %d of 2: %d missed, want %d", held, got, want)
		}
	}
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	read, err := readCredentials(unitCredentials(t, files))
	if err != nil || read.keys == (hullmark.KeysDigest{}) {
		t.Errorf("a new cluster's keys: %+v, %v", read, err)
	}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	if policy, err := c.OpenPolicy(); err != nil || policy.Keys != read.keys {
		t.Errorf("the policy commits to %s, and the service holds %s: %v", policy.Keys, read.keys, err)
	}
}
