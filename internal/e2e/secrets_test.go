//go:build vm || cluster

package e2e

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/cluster"
)

// searchStateDisk reads the raw file for everything that must be on it only encrypted.
func (b bench) searchStateDisk(t *testing.T, machine string, needles map[string][]byte) {
	disk, err := os.Open(b.path(machine, "state.raw"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Close() }()
	const step, overlap = 8 << 20, 4096
	window := make([]byte, 0, step+overlap)
	for read := int64(0); ; {
		n, err := io.ReadFull(disk, window[len(window):len(window)+step])
		window = window[:len(window)+n]
		for name, needle := range needles {
			if bytes.Contains(window, needle) {
				t.Errorf("%s is on the disk in clear, near %d", name, read)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		read += int64(n)
		window = window[:copy(window, window[len(window)-overlap:])]
	}
}

// secrets are byte strings that the disk may hold only under encryption: what the operator gave, and how files that
// kubeadm wrote look.
func (b bench) secrets(t *testing.T) map[string][]byte {
	t.Helper()
	needles := map[string][]byte{
		"a PEM private key":     []byte("PRIVATE KEY-----"),
		"a PEM certificate":     []byte("-----BEGIN CERTIFICATE"),
		"a kubeconfig":          []byte("client-certificate-data:"),
		"a Kubernetes manifest": []byte("kube-apiserver.advertise-address.endpoint"),
	}
	passphrase, err := os.ReadFile(b.path("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.Open(b.path("cluster"), hullmark.NewSecret(bytes.TrimSpace(passphrase)))
	if err != nil {
		t.Fatal(err)
	}
	c := file.Cluster
	key, err := c.Keys.DiskKey(c.Keys.Current(), c.ID(), c.Initialising.Node, c.Initialising.Disk)
	if err != nil {
		t.Fatal(err)
	}
	needles["the disk key"] = key.Expose()
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		content := f.GetContent()
		if len(content) == 0 || f.GetPath() == hullmark.RotationFile { // A keeper's, in a cluster without one; a number.
			continue
		}
		if block, _ := pem.Decode(content); block != nil {
			needles[f.GetPath()+" (DER)"] = block.Bytes
			_, content, _ = bytes.Cut(content, []byte("-----\n"))
		}
		needles[f.GetPath()] = content[:min(len(content), 48)]
	}
	for name, needle := range needles {
		if len(needle) < 16 {
			t.Fatalf("%s is too short to search for", name)
		}
	}
	return needles
}
