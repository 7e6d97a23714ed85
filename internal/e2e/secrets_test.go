//go:build vm || cluster

package e2e

import (
	"bytes"
	"encoding/pem"
	"os"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/canary"
)

// searchStateDisk reads the raw file for everything that must be on it only encrypted.
func (b bench) searchStateDisk(t *testing.T, machine string, needles canary.Secrets) {
	search, err := canary.New(needles)
	if err != nil {
		t.Fatal(err)
	}
	found, err := search.File(b.path(machine, "state.raw"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Errorf("%s, is on the disk in clear", f)
	}
}

// keys are the secrets that were drawn at random: the operator's, the cluster's, and those of its first disk.
func (b bench) keys(t *testing.T) (canary.Secrets, *cluster.Cluster) {
	t.Helper()
	passphrase, err := os.ReadFile(b.path("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	passphrase = bytes.TrimSpace(passphrase)
	file, err := cluster.Open(b.path("cluster"), hullmark.NewSecret(bytes.Clone(passphrase)))
	if err != nil {
		t.Fatal(err)
	}
	c := file.Cluster
	keys, err := canary.OfCluster(c)
	if err != nil {
		t.Fatal(err)
	}
	key, err := c.Keys.DiskKey(c.Keys.Current(), c.ID(), c.First.EKID, c.First.Disk)
	if err != nil {
		t.Fatal(err)
	}
	derived, err := statedisk.DeriveKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	keys["the passphrase"], keys["the disk key"] = passphrase, key.Expose()
	keys["the LUKS key"], keys["the header key"] = derived.LUKS.Expose(), derived.Header.Expose()
	return keys, c
}

// secrets are byte strings that the disk may hold only under encryption: the keys, what the operator gave, and how files that
// kubeadm wrote look.
func (b bench) secrets(t *testing.T) canary.Secrets {
	t.Helper()
	needles, c := b.keys(t)
	for name, text := range map[string]string{
		"a PEM private key":     "PRIVATE KEY-----",
		"a PEM certificate":     "-----BEGIN CERTIFICATE",
		"a kubeconfig":          "client-certificate-data:",
		"a Kubernetes manifest": "kube-apiserver.advertise-address.endpoint",
	} {
		needles[name] = []byte(text)
	}
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		content := f.GetContent()
		if len(content) == 0 { // A keeper's, in a cluster without one.
			continue
		}
		if block, _ := pem.Decode(content); block != nil {
			needles[f.GetPath()+" (DER)"] = block.Bytes
			_, content, _ = bytes.Cut(content, []byte("-----\n"))
		}
		needles[f.GetPath()] = content[:min(len(content), 48)]
	}
	return needles
}
