package firstboot

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// TestStrangersPodsDoNotComeBack leaves static pods on the disks of nodes that come back: kubeadm's stay on a control plane,
// and those that Proceed brings.
func TestStrangersPodsDoNotComeBack(t *testing.T) {
	for role, stays := range map[hullmark.Role][]string{
		hullmark.Worker:       {"signed.yaml"},
		hullmark.ControlPlane: {"etcd.yaml", "kube-apiserver.yaml", "signed.yaml"},
	} {
		s := newStage(t)
		service := s.service(t)
		s.dials(t, service.address)
		kubeconfig := map[hullmark.Role]string{hullmark.Worker: "kubelet.conf", hullmark.ControlPlane: "admin.conf"}[role]
		s.comeBack(t, kubeconfig)
		pods := filepath.Join(s.agent.StateDir, "etc-kubernetes/manifests")
		left := []string{"evil.yaml", ".hidden.yaml", "kube-apiserver.yaml", "etcd.yaml", "kube-scheduler.yaml/inner.yaml", "signed.yaml"}
		for _, name := range left {
			file := filepath.Join(pods, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("left"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("../"+kubeconfig, filepath.Join(pods, "kube-controller-manager.yaml")); err != nil {
			t.Fatal(err)
		}
		flags := filepath.Join(s.agent.StateDir, "var/lib/kubelet/kubeadm-flags.env")
		legal := role == hullmark.ControlPlane
		environment := "KUBELET_KUBEADM_ARGS=\"\"\n"
		if !legal {
			environment += "LD_PRELOAD=/var/lib/kubelet/pods/evil.so\n"
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(flags), 0o700), os.WriteFile(flags, []byte(environment), 0o600)); err != nil {
			t.Fatal(err)
		}
		s.serve(t)
		c := service.accept()
		c.ticket(c.admit(s))
		c.receive()
		c.proceedWith(&wire.Proceed{
			NodeName: "node-1", Role: string(role),
			Files: []*wire.File{{Path: "/etc/kubernetes/manifests/signed.yaml", Content: []byte("signed"), Mode: 0o600}},
		})
		if _, last := c.finish(); !last.GetReady() {
			t.Fatalf("last = %v", last)
		}
		if _, err := os.Lstat(flags); (err == nil) != legal {
			t.Errorf("%s: flags that say %q: %v", role, environment, err)
		}
		entries, err := os.ReadDir(pods)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, e := range entries {
			found = append(found, e.Name())
		}
		if !slices.Equal(found, stays) {
			t.Errorf("%s: the kubelet finds %q, want %q", role, found, stays)
		}
		if text, err := os.ReadFile(filepath.Join(pods, "signed.yaml")); err != nil || string(text) != "signed" {
			t.Errorf("%s: the signed pod says %q %v", role, text, err)
		}
		if _, err := os.Stat(filepath.Join(s.agent.StateDir, "etc-kubernetes", kubeconfig)); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
}

// TestStaticPodsFolder is no folder, or leads elsewhere.
func TestStaticPodsFolder(t *testing.T) {
	state := t.TempDir()
	other := t.TempDir()
	kept := filepath.Join(other, "etcd.yaml")
	if err := errors.Join(os.Mkdir(filepath.Join(state, "etc-kubernetes"), 0o700), os.WriteFile(kept, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if dropped, err := dropOthers(state, "/etc/kubernetes/manifests", nil); err != nil || dropped != nil {
		t.Errorf("none: %q %v", dropped, err)
	}
	pods := filepath.Join(state, "etc-kubernetes/manifests")
	for what, make := range map[string]func() error{
		"a link": func() error { return os.Symlink(other, pods) },
		"a file": func() error { return os.WriteFile(pods, nil, 0o600) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if _, err := dropOthers(state, "/etc/kubernetes/manifests", []string{"/etc/kubernetes/manifests/etcd.yaml"}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Lstat(pods); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", what, err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// A program that a kubeconfig on the disk names would be run by the kubelet, as root: nothing but certificates, keys and tokens
// is left there, and no link.
func TestNoProgramsInKubeconfigs(t *testing.T) {
	for what, plant := range map[string]func(file string) error{
		"nothing": func(string) error { return nil },
		"a program": func(file string) error {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			changed := bytes.Replace(text, []byte("users:"), []byte("users:\n- name: x\n  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: /var/lib/containerd/x}}"), 1)
			if bytes.Equal(changed, text) {
				return errors.New("it has no users")
			}
			return os.WriteFile(file, changed, 0o600)
		},
		"a link": func(file string) error {
			return errors.Join(os.Rename(file, file+".evil"), os.Symlink("/var/lib/containerd/kubelet.conf", file))
		},
	} {
		s, _ := returning(t, time.Now().Add(year))
		file := filepath.Join(s.agent.StateDir, "etc-kubernetes/kubelet.conf")
		before, err := os.ReadFile(file)
		if err == nil {
			err = plant(file)
		}
		if err != nil {
			t.Fatal(err)
		}
		last := s.again(t, hullmark.ControlPlane, "")
		after, err := os.ReadFile(file)
		if link := what == "a link"; link != errors.Is(err, fs.ErrNotExist) || !link && (err != nil || !last.GetReady() || bytes.Contains(after, []byte("containerd"))) {
			t.Errorf("%s: %v, %v\n%s", what, last, err, after)
		}
		if what == "nothing" && !bytes.Equal(before, after) {
			t.Errorf("a kubeconfig that names none was changed:\n%s\n%s", before, after)
		}
	}
}
