package firstboot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The API server's container is told from others by what runs in it.
func TestProgramOfAContainer(t *testing.T) {
	dir := t.TempDir()
	for id, config := range map[string]string{
		"server": `{"ociVersion":"1.1.0","process":{"terminal":false,"args":["kube-apiserver","--advertise-address=192.0.2.7"]},"root":{"path":"rootfs"}}`,
		"path":   `{"process":{"args":["/usr/bin/kube-apiserver"]}}`,
		"etcd":   `{"process":{"args":["etcd","--name=kube-apiserver"]}}`,
		"empty":  ``, "none": `{"process":{"args":[]}}`, "torn": `{"process":{"args":["kube-apiserver`,
		"large": `{"process":{"cwd":"` + strings.Repeat("/", maxContainer) + `","args":["kube-apiserver"]}}`,
	} {
		if err := os.Mkdir(filepath.Join(dir, id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, id, containerFile), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]string{"server": serverProgram, "path": serverProgram, "etcd": "etcd", "empty": "", "none": "", "torn": "", "large": "", "gone": "", "../x/server": serverProgram} {
		if got := programOf(dir, containerPrefix+id+containerSuffix); got != want {
			t.Errorf("in %s runs %q, want %q", id, got, want)
		}
	}
}
