package volume

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCertificateEnds(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if got := certificateEnds(root); got != 0 {
		t.Errorf("of an empty disk: %d", got)
	}
	pki := filepath.Join(dir, "var/lib/kubelet/pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		t.Fatal(err)
	}
	end := time.Unix(1767225600, 0)
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(pki, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target string) {
		t.Helper()
		current := filepath.Join(pki, "kubelet-client-current.pem")
		_ = os.Remove(current)
		if err := os.Symlink(target, current); err != nil {
			t.Fatal(err)
		}
	}
	write("kubelet-client-2026.pem", certified(t, end))
	link("/var/lib/kubelet/pki/kubelet-client-2026.pem") // as kubelets do
	if got := certificateEnds(root); got != end.Unix() {
		t.Errorf("got %d, want %d", got, end.Unix())
	}
	// What the link says leads nowhere else.
	outside := filepath.Join(t.TempDir(), "outside.pem")
	if err := os.WriteFile(outside, certified(t, end), 0o600); err != nil {
		t.Fatal(err)
	}
	link(outside)
	if got := certificateEnds(root); got != 0 {
		t.Errorf("a link that leads away: %d", got)
	}
	if err := os.Symlink(outside, filepath.Join(pki, "outside.pem")); err != nil {
		t.Fatal(err)
	}
	if got := certificateEnds(root); got != 0 {
		t.Errorf("two links that lead away: %d", got)
	}
	write("torn.pem", certified(t, end)[:100])
	link("torn.pem")
	if got := certificateEnds(root); got != 0 {
		t.Errorf("a torn file: %d", got)
	}
}

// certified returns a certificate and something before it, in PEM.
func certified(t *testing.T, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("key")}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
}
