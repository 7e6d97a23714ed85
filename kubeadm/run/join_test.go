package run

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/kubeadm"
)

const testToken = "abcdef.0123456789abcdef"

// Whether it works or not, a join leaves no token behind.
func TestJoinForgetsItsDocuments(t *testing.T) {
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		dir := filepath.Join(t.TempDir(), "kubeadm")
		var got []kubeadm.Phase
		err := joinWith(t.Context(), dir, []byte("token: "+testToken), func(p kubeadm.Phase) { got = append(got, p) }, func(context.Context, string) error {
			info, err := os.Stat(filepath.Join(dir, "config.yaml"))
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("documents: %v, %v", info, err)
			}
			return errors.Join(want, os.WriteFile(filepath.Join(dir, "output"), []byte("[kubelet-start] Starting the kubelet\nerror: token "+testToken+" is invalid\n"), 0o600))
		})
		if !errors.Is(err, want) || err != nil && (!strings.Contains(err.Error(), "error: token <token> is invalid") || strings.Contains(err.Error(), testToken)) {
			t.Errorf("got %v", err)
		}
		if want := []kubeadm.Phase{{Name: "kubelet-start", Text: "Starting the kubelet"}}; !slices.Equal(got, want) {
			t.Errorf("phases = %v", got)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}

// A verification that is ignored is no news.
func TestIgnoredVerificationIsNotShown(t *testing.T) {
	if p, ok := phaseOf("[preflight] The system verification failed. Printing the output from the verification:"); ok {
		t.Errorf("shown: %+v", p)
	}
	if _, ok := phaseOf("[preflight] Running pre-flight checks"); !ok {
		t.Error("other lines are not shown")
	}
}
