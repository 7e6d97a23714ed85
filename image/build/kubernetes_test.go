package build

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/oci"
	"github.com/hullmark/hullmark/kubeadm"
)

func TestKubernetesImageHoldsOnlyPause(t *testing.T) {
	image := kubernetesImage([]byte("program"))
	for _, f := range image.Files {
		if f.Mode.IsRegular() && f.Name != "pause" {
			t.Errorf("%s is a file of the image, not of the root", f.Name)
		}
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := oci.Write(out, kubernetesImage([]byte("program")), []string{KubernetesRepository + "/pause:1"}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of one image differ")
	}
}

// TestEveryPieceNamesTheSameImages holds together what no compiler does.
func TestEveryPieceNamesTheSameImages(t *testing.T) {
	if KubernetesRepository != kubeadm.Repository {
		t.Errorf("bundle: %s, documents: %s", KubernetesRepository, kubeadm.Repository)
	}
	config, err := os.ReadFile(filepath.Join("..", "..", "mkosi", "mkosi.extra", "etc", "containerd", "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(config), `sandbox_image = "`+KubernetesRepository+`/pause:`) {
		t.Error("containerd's sandbox image is not ours")
	}
}

// TestContainerdStartsNothingByItself holds that containerd's restart monitor is off: it runs, as root and outside of any container, the
// program that a record on the state disk names as a runtime. The record of a container that root left would do so at each boot.
func TestContainerdStartsNothingByItself(t *testing.T) {
	text := readText(t, "../../mkosi/mkosi.extra/etc/containerd/config.toml")
	_, list, ok := strings.Cut(text, "\ndisabled_plugins = [\n")
	list, _, closed := strings.Cut(list, "\n]\n")
	if !ok || !closed {
		t.Fatal("containerd's settings have no list of plugins that are off")
	}
	var off []string
	for line := range strings.Lines(list) {
		if name, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(line), ",")); err == nil {
			off = append(off, name)
		}
	}
	if !slices.Contains(off, "io.containerd.internal.v1.restart") {
		t.Errorf("the restart monitor is not among the plugins that are off: %q", off)
	}
	if slices.ContainsFunc(off, func(name string) bool { return strings.HasPrefix(name, "io.containerd.grpc.v1.cri") }) {
		t.Error("the kubelet's own plugin is off")
	}
}

func TestSetModesForgetsTheUmask(t *testing.T) {
	dir := t.TempDir()
	want := map[string]fs.FileMode{"bin": 0o755, "bin/kube": 0o755, "patches": 0o755, "patches/etcd.yaml": 0o644}
	for _, name := range []string{"bin/kube", "patches/etcd.yaml"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := setModes(dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range want {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// What was compiled while its sources changed is not kept under the key that they had before.
func TestStill(t *testing.T) {
	for now, want := range map[string]error{"key": nil, "other": errChanged} {
		if err := still("key", func() (string, error) { return now, nil }); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", now, err, want)
		}
	}
	if err := still("key", func() (string, error) { return "key", fs.ErrPermission }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("sources that cannot be read: %v", err)
	}
}

func TestFollowKeepsTheReason(t *testing.T) {
	said := strings.Repeat("k8s.io/api\n", 100) + "kube/main.go:1: wrong\n"
	if got := (bundle{}).follow(strings.NewReader(said), "packages", 200); !strings.HasSuffix(got, "wrong") || strings.Count(got, "\n") > 10 {
		t.Errorf("got %q", got)
	}
}
