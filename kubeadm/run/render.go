package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/hullmark/hullmark/kubeadm"
)

// Render lets the kubeadm at program write a control plane's static pods by documents of kubeadm.Rendering, and returns them by their
// paths. It needs no API server and changes nothing: in a dry run kubeadm writes to a folder that is made below dir, and removed.
func Render(ctx context.Context, program, dir string, documents []byte) (manifests map[string][]byte, err error) {
	into, err := os.MkdirTemp(dir, "manifests-")
	if err != nil {
		return nil, fmt.Errorf("write static pods: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(into)) }()
	for _, phase := range [][]string{{"control-plane", "all"}, {"etcd", "local"}} {
		args := append([]string{"init", "phase"}, phase...)
		cmd := exec.CommandContext(ctx, program, append(args, "--dry-run", "--config", "/dev/stdin")...)
		cmd.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+into)
		cmd.Stdin = bytes.NewReader(documents)
		if said, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("write static pods: %s: %w: %s", program, err, Cause(string(said)))
		}
	}
	manifests = map[string][]byte{}
	for _, name := range kubeadm.StaticPods() {
		if manifests[name], err = os.ReadFile(filepath.Join(into, path.Base(name))); err != nil {
			return nil, fmt.Errorf("write static pods: %w", err)
		}
	}
	return manifests, nil
}
