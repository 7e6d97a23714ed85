package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

// programsSaying makes a folder with a kubeadm and an etcd that print this.
func programsSaying(t *testing.T, kubeadm, etcd string) string {
	t.Helper()
	bin := t.TempDir()
	for name, text := range map[string]string{"kubeadm": kubeadm, "etcd": etcd} {
		script := "#!/bin/sh\ncat <<'END'\n" + text + "\nEND\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

const etcdSays = "etcd Version: 3.6.8\nGit SHA: Not provided (use ./build instead of go build)\nGo Version: go1.26.0\nGo OS/Arch: linux/amd64"

func TestBundleVersions(t *testing.T) {
	got, err := bundleVersions(t.Context(), programsSaying(t, "v1.36.3", etcdSays))
	if want := (hullmark.Versions{Kubernetes: hullmark.Version{Major: 1, Minor: 36, Patch: 3}, Etcd: hullmark.Version{Major: 3, Minor: 6, Patch: 8}}); err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	for what, bin := range map[string]string{
		"kubeadm version": programsSaying(t, "v0.0.0-master+$Format:%H$", etcdSays),
		"etcd --version":  programsSaying(t, "v1.36.3", "etcd"),
	} {
		if _, err := bundleVersions(t.Context(), bin); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
