package build

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hullmark/hullmark"
)

// etcdVersion is the line of `etcd --version` that says its release, without the v.
var etcdVersion = regexp.MustCompile(`(?m)^etcd Version: (\S+)$`)

// bundleVersions asks the programs in the folder bin what they are: that is what they tell an API server, wherever it was stamped.
func bundleVersions(ctx context.Context, bin string) (v hullmark.Versions, err error) {
	said, err := exec.CommandContext(ctx, filepath.Join(bin, "kubeadm"), "version", "--output", "short").Output()
	if err != nil {
		return v, fmt.Errorf("kubeadm version: %w", err)
	}
	if v.Kubernetes, err = hullmark.ParseVersion(strings.TrimSpace(string(said))); err != nil {
		return v, fmt.Errorf("kubeadm version: %w", err)
	}
	if said, err = exec.CommandContext(ctx, filepath.Join(bin, "etcd"), "--version").Output(); err != nil {
		return v, fmt.Errorf("etcd --version: %w", err)
	}
	m := etcdVersion.FindSubmatch(said)
	if m == nil {
		return v, fmt.Errorf("etcd --version: want a line %q, got %.200q", "etcd Version: 1.2.3", said)
	}
	if v.Etcd, err = hullmark.ParseVersion("v" + string(m[1])); err != nil {
		return v, fmt.Errorf("etcd --version: %w", err)
	}
	return v, nil
}
