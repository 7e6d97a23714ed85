package main

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// The engine of this node is handed a certificate of its own user, without groups, that nobody but the service's user and root reads.
func TestUpgradeEngineIsHandedACertificate(t *testing.T) {
	s, dir := newSite(t), t.TempDir()
	a, err := prepare(options{credentials: s.credentials, files: servicefiles.Files{Folder: s.state}, api: apiServer, upgrade: dir, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Round(0)
	if err := a.writeUpgrade(now); err != nil || !a.handed.Equal(now) {
		t.Fatal(a.handed, err)
	}
	name := filepath.Join(dir, upgradeFile)
	text := mustRead(t, name)
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.credentials.kubernetes.Leaf)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if n := pair.Leaf.Subject; n.CommonName != registry.UpgradeUser || len(n.Organization) != 0 || pair.Leaf.IsCA || pair.Leaf.NotAfter.Sub(now) > clientValidity {
		t.Errorf("it is %v until %v", n, pair.Leaf.NotAfter)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the folder has %v, %v", files, err)
	}
	if err := a.writeUpgrade(now.Add(clientAge)); err != nil || string(mustRead(t, name)) == string(text) {
		t.Errorf("it is not made anew: %v", err)
	}
	a.upgrade = ""
	if err := a.writeUpgrade(now); err != nil {
		t.Errorf("without an engine: %v", err)
	}
}

// What the units say of the folder is what the programs do.
func TestUnitsHandTheCertificateOver(t *testing.T) {
	service, engine := string(mustRead(t, "../../systemd/system/hullmark-joinservice.service")), string(mustRead(t, "../../systemd/system/hullmark-upgrade.service"))
	for _, line := range []string{"RuntimeDirectory=hullmark/upgrade", "RuntimeDirectoryMode=0700", "Wants=hullmark-upgrade.service"} {
		if !strings.Contains(service, "\n"+line+"\n") {
			t.Errorf("the join service's unit lacks %s", line)
		}
	}
	const path = "/run/hullmark/upgrade/" + upgradeFile
	for _, line := range []string{"LoadCredential=" + upgradeFile + ":" + path, "ConditionPathExists=" + path, "LoadCredential=ca.crt:/etc/kubernetes/pki/ca.crt", "DynamicUser=yes", "CapabilityBoundingSet="} {
		if !strings.Contains(engine, "\n"+line+"\n") {
			t.Errorf("the engine's unit lacks %s", line)
		}
	}
	if n := strings.Count(engine, "LoadCredential="); n != 2 || strings.Contains(engine, ".key") {
		t.Errorf("the engine is handed %d files", n)
	}
	if !strings.Contains(engine, "After=hullmark-joinservice.service") {
		t.Error("the engine starts before its certificate is there")
	}
}
