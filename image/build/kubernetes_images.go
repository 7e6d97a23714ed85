package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/oci"
)

// images writes the archive that a node loads before kubeadm: one image of a few hundred kilobytes, under every name that a
// node asks for. A container finds its program in the verity root, mounted from the host; only pause, which has no mounts, is
// in the image. Because all names are one image, and the runtime pins the image of its sandboxes, the kubelet never collects
// any of them.
func (b bundle) images(ctx context.Context) error {
	names, err := b.imageNames(ctx)
	if err != nil {
		return err
	}
	pause := filepath.Join(b.home, "bin", "pause")
	program, err := os.ReadFile(pause)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(b.home, "images"), 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(b.home, "images", "kubernetes.tar"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := oci.Write(f, kubernetesImage(program), names); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Remove(pause)
}

// imageNames asks the kubeadm just built which images it will want, and adds those of the addons.
func (b bundle) imageNames(ctx context.Context) ([]string, error) {
	versions, err := bundleVersions(ctx, filepath.Join(b.home, "bin"))
	if err != nil {
		return nil, err
	}
	flannel, err := b.module(ctx, "flannel", "github.com/flannel-io/flannel")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(b.home, "bin", "kubeadm"),
		"config", "images", "list", "--image-repository", KubernetesRepository, "--kubernetes-version", versions.Kubernetes.String()).Output()
	if err != nil {
		return nil, fmt.Errorf("kubeadm config images list: %w", err)
	}
	names := append(strings.Fields(string(out)), KubernetesRepository+"/flannel:"+flannel.Version)
	slices.Sort(names)
	return names, nil
}

// kubernetesImage is a root folder without content but pause: its links lead into /usr, which a container that needs tools
// mounts from the host.
func kubernetesImage(pause []byte) oci.Image {
	files := []oci.File{{Name: "pause", Mode: 0o755, Content: pause}}
	for _, dir := range []string{"dev", "etc", "proc", "run", "sys", "usr", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "var"} {
		files = append(files, oci.File{Name: dir, Mode: os.ModeDir | 0o755})
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		files = append(files, oci.File{Name: name, Mode: os.ModeSymlink | 0o777, Content: []byte("usr/" + name)})
	}
	files = append(files, oci.File{Name: "tmp", Mode: os.ModeDir | os.ModeSticky | 0o777})
	return oci.Image{
		Files:      files,
		Path:       "/usr/lib/kubernetes/bin:/usr/sbin:/usr/bin",
		Entrypoint: []string{"/pause"},
	}
}
