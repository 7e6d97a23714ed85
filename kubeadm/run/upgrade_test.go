package run

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the unit's kubeadm writes in its dry run is returned, and nothing of it is left.
func TestKubeletConfigIsTakenFromADryRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kubeadm")
	for text, problem := range map[string]string{
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n": "",
		"kind: InitConfiguration\n": "InitConfiguration",
		"\t":                        "yaml",
		"":                          "no such file",
	} {
		unit := func(_ context.Context, name string) error {
			if name != KubeletConfigUnit {
				t.Errorf("started %s", name)
			}
			if text == "" {
				return nil
			}
			return os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o600)
		}
		config, err := kubeletConfigWith(t.Context(), dir, nil, unit)
		if problem == "" && (err != nil || string(config) != text) || problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("%q: %q, %v", text, config, err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	failing := func(context.Context, string) error { return errors.New("unit failed") }
	if _, err := kubeletConfigWith(t.Context(), dir, nil, failing); err == nil {
		t.Error("a unit that failed left a configuration")
	}
}
