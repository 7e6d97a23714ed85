package run

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hullmark/hullmark/kubeadm"
)

func TestCauseIsShortAndWithoutSecrets(t *testing.T) {
	// Failed checks are told before the error that ends kubeadm.
	output := strings.Join([]string{
		"[bootstrap-token] Using token: abcdef.0123456789abcdef",
		"W1121 warning",
		"[preflight] Some fatal errors occurred:",
		"\t[ERROR NumCPU]: the number of available CPUs 1 is less than the required 2",
		"\t[ERROR Port-6443]: Port 6443 is in use",
		"[preflight] If you know what you are doing, you can make a check non-fatal",
		"error: error execution phase preflight: preflight checks failed",
		"To see the stack trace of this error execute with --v=5 or higher",
	}, "\n")
	want := "error: error execution phase preflight: preflight checks failed; [ERROR NumCPU]: the number of available CPUs 1 is less than the required 2; " +
		"[ERROR Port-6443]: Port 6443 is in use"
	if got := Cause(output); got != want {
		t.Errorf("got %q", got)
	}
	if got := Cause("token abcdef.0123456789abcdef"); strings.Contains(got, "abcdef.") {
		t.Errorf("got %q", got)
	}
}

func TestInitReportsPhasesAndForgetsTheOutput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kubeadm")
	var got []kubeadm.Phase
	work := Work{Documents: []byte("document"), Addons: []byte("addon"), Retry: true, Report: func(p kubeadm.Phase) { got = append(got, p) }}
	err := initWith(t.Context(), dir, work, func(_ context.Context, unit string) error {
		if unit != Unit {
			return nil
		}
		for name, want := range map[string]string{"config.yaml": "document", "addons.yaml": "addon", "environment": retryFlag} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != want {
				t.Errorf("%s: got %q, %v", name, text, err)
			}
		}
		return os.WriteFile(filepath.Join(dir, "output"), []byte(
			"[certs] Using existing ca certificate authority\nnoise\n[bootstrap-token] Using token: abcdef.0123456789abcdef\ndaemonset.apps/flannel serverside-applied\n"), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []kubeadm.Phase{
		{Name: "certs", Text: "Using existing ca certificate authority"},
		{Name: "bootstrap-token", Text: "Using token: <token>"},
		{Name: "addons", Text: "daemonset.apps/flannel serverside-applied"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func TestInitFailsWithKubeadmsWords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kubeadm")
	failed := errors.New("failed")
	err := initWith(t.Context(), dir, Work{Documents: []byte("d"), Addons: []byte("a")}, func(context.Context, string) error {
		return errors.Join(failed, os.WriteFile(filepath.Join(dir, "output"), []byte("[preflight] x\nerror: no space\n"), 0o600))
	})
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "error: no space") {
		t.Errorf("got %v", err)
	}
}

// An API server that has just started may be too slow for an object; what fails each time ends init, with kubectl's words.
func TestInitTriesAddonsAgain(t *testing.T) {
	for failing, works := range map[int]bool{1: true, addonsTries - 1: true, addonsTries: false} {
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kubeadm")
			failed := errors.New("failed")
			inits, tries := 0, 0
			var got []kubeadm.Phase
			work := Work{Documents: []byte("d"), Addons: []byte("a"), Report: func(p kubeadm.Phase) { got = append(got, p) }}
			err := initWith(t.Context(), dir, work, func(_ context.Context, unit string) error {
				if unit == Unit {
					inits++
					return nil
				}
				if tries++; tries > failing {
					return nil
				}
				return errors.Join(failed, os.WriteFile(filepath.Join(dir, "output"), []byte("Error from server (Timeout): too slow\n"), 0o600))
			})
			if works != (err == nil) || inits != 1 || tries != min(failing+1, addonsTries) {
				t.Errorf("%d failures: %v after %d of init and %d of the addons", failing, err, inits, tries)
			}
			if !works && (!errors.Is(err, failed) || !strings.Contains(err.Error(), "too slow")) {
				t.Errorf("got %v", err)
			}
			if len(got) == 0 || got[0] != (kubeadm.Phase{Name: "addons", Text: "Error from server (Timeout): too slow"}) {
				t.Errorf("reported %v", got)
			}
		})
	}
}

func TestInitNeedsAddons(t *testing.T) {
	err := initWith(t.Context(), t.TempDir(), Work{Documents: []byte("d")}, func(context.Context, string) error {
		t.Error("the unit was started")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "pod network") {
		t.Errorf("got %v", err)
	}
}

func TestValidateWithoutKubeadm(t *testing.T) {
	if err := Validate(t.Context(), "/nowhere/kubeadm", []byte("kind: x")); err == nil || !strings.Contains(err.Error(), "/nowhere/kubeadm") {
		t.Errorf("got %v", err)
	}
	if err := Validate(t.Context(), "/nowhere/kubeadm", []byte(" \n")); err == nil || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("got %v", err)
	}
}
