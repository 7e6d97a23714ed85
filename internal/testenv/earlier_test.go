//go:build skew

package testenv

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The earlier programs say that they are what they are, and are of the minor release before the bundle's.
func TestEarlierPrograms(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 80*time.Minute)
	defer cancel()
	bin, v, err := EarlierPrograms(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{{"kube-apiserver", "--version"}, {"kubeadm", "version", "--output", "short"}} {
		if out, err := exec.CommandContext(ctx, filepath.Join(bin, c[0]), c[1:]...).CombinedOutput(); err != nil || !strings.Contains(string(out), v.String()) {
			t.Errorf("%s: %s, %v; want %v", c[0], out, err, v)
		}
	}
}
