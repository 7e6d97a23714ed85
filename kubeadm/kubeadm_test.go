package kubeadm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"sigs.k8s.io/yaml"
)

func params() Params {
	return Params{
		NodeName:         "one",
		AdvertiseAddress: netip.MustParseAddr("10.0.2.15"),
		ServiceSubnet:    netip.MustParsePrefix("10.96.0.0/12"),
		PodSubnet:        netip.MustParsePrefix("10.244.0.0/16"),
	}
}

func TestInitDocumentsHoldsProfileApart(t *testing.T) {
	normal, err := InitDocuments(params())
	if err != nil {
		t.Fatal(err)
	}
	p := params()
	p.Profile = Slow
	patient, err := InitDocuments(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"ECDSA-P256", "heartbeat-interval", "leader-elect", "timeouts:"} {
		if strings.Contains(string(normal), word) {
			t.Errorf("the normal profile holds %s", word)
		}
		if !strings.Contains(string(patient), word) {
			t.Errorf("the slow profile lacks %s", word)
		}
	}
}

func TestInitDocumentsTaint(t *testing.T) {
	p := params()
	for _, workloads := range []bool{false, true} {
		p.Workloads = workloads
		text, err := InitDocuments(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(text), "taints: []"); got != workloads {
			t.Errorf("workloads %t: an empty list of taints is there: %t", workloads, got)
		}
	}
}

func TestParamsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Params){
		"node name":         func(p *Params) { p.NodeName = "" },
		"advertise address": func(p *Params) { p.AdvertiseAddress = netip.IPv4Unspecified() },
		"service subnet":    func(p *Params) { p.ServiceSubnet = netip.Prefix{} },
		"pod subnet":        func(p *Params) { p.PodSubnet = netip.MustParsePrefix("fd00::/56") },
		"overlaps":          func(p *Params) { p.PodSubnet = netip.MustParsePrefix("10.97.0.0/16") },
		"profile":           func(p *Params) { p.Profile = "fast" },
	} {
		p := params()
		spoil(&p)
		if _, err := InitDocuments(p); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAddonsAreYAMLForTheCluster(t *testing.T) {
	p := params()
	p.Endpoint = "api.example:6443"
	for name, write := range map[string]func(Params) ([]byte, error){"kube-proxy": KubeProxy, "flannel": Flannel} {
		text, err := write(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(text), "\n---\n") {
			var object struct{ Kind string }
			if err := yaml.UnmarshalStrict([]byte(part), &map[string]any{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := yaml.Unmarshal([]byte(part), &object); err != nil || object.Kind == "" {
				t.Errorf("%s: a document without a kind: %v", name, err)
			}
		}
		for _, want := range []string{"api.example", "10.244.0.0/16", Repository + "/" + name + ":v"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: lacks %s", name, want)
			}
		}
	}
}

// TestVersionsAreThoseOfTheBundle holds the constants here to what is compiled.
func TestVersionsAreThoseOfTheBundle(t *testing.T) {
	for file, line := range map[string]string{
		"go.mod":         "k8s.io/kubernetes " + Version,
		"flannel/go.mod": "github.com/flannel-io/flannel " + FlannelVersion,
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "tools", "kubernetes", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("%s does not require %s", file, line)
		}
	}
}

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
	var got []Phase
	work := Work{Documents: []byte("document"), Addons: []byte("addon"), Retry: true, Report: func(p Phase) { got = append(got, p) }}
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
	want := []Phase{
		{"certs", "Using existing ca certificate authority"},
		{"bootstrap-token", "Using token: <token>"},
		{"addons", "daemonset.apps/flannel serverside-applied"},
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
			var got []Phase
			work := Work{Documents: []byte("d"), Addons: []byte("a"), Report: func(p Phase) { got = append(got, p) }}
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
			if len(got) == 0 || got[0] != (Phase{"addons", "Error from server (Timeout): too slow"}) {
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
