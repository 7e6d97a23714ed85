//go:build long

package build

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/measurements"
)

// renderSample renders one of the documents that package render is tested with, after some changes.
func renderSample(t *testing.T, name string, changes ...string) []render.Rendered {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "cluster", "render", "testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	document, err := render.Parse([]byte(strings.NewReplacer(changes...).Replace(string(text))))
	if err != nil {
		t.Fatal(err)
	}
	files, err := render.Render(document, measurements.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// judge lets kubeadm judge rendered files, as `hullmark render` does.
func judge(t *testing.T, program string, files []render.Rendered) (judged int, err error) {
	t.Helper()
	for _, f := range files {
		if !f.Kubeadm {
			continue
		}
		judged++
		if err := run.Validate(t.Context(), program, bytes.ReplaceAll(f.Content, []byte(kubeadm.DiscoveryFile), []byte("https://discovery.invalid/"))); err != nil {
			return judged, err
		}
	}
	return judged, nil
}

func TestKubeadmTakesWhatIsRendered(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm")
	for name, want := range map[string]int{"small": 2, "rich": 4} {
		if judged, err := judge(t, program, renderSample(t, name)); err != nil || judged != want {
			t.Errorf("%s: %d documents of %d: %v", name, judged, want, err)
		}
	}
}

// TestKubeadmRefusesOverrides has overrides that only kubeadm knows to be wrong.
func TestKubeadmRefusesOverrides(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm")
	for old, spoilt := range map[string]string{
		"maxPods: 60":            "maximumPods: 60",
		"dnsDomain: prod":        "dnsDomains: prod",
		"imagePullPolicy: Never": "imagePullPolicy: Sometimes",
		"kubeletHealthCheck: 8m": "kubeletHealthCheck: soon",
		"readOnly: true":         "readonly: true",
	} {
		if _, err := judge(t, program, renderSample(t, "rich", old, spoilt)); err == nil {
			t.Errorf("%s: kubeadm takes it", spoilt)
		} else {
			t.Log(err)
		}
	}
}

func TestKubeadmSaysWhatItWouldStore(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm")
	for _, f := range renderSample(t, "rich") {
		if f.Name != render.InitFile {
			continue
		}
		stored, err := run.WouldStore(t.Context(), program, f.Content)
		if err != nil {
			t.Fatal(err)
		}
		for want, document := range map[string][]byte{
			"dnsDomain: prod.internal": stored.ClusterConfiguration, "certificatesDir: /etc/kubernetes/pki": stored.ClusterConfiguration,
			"maxPods: 60": stored.KubeletConfiguration, "clusterDomain: prod.internal": stored.KubeletConfiguration, "- 10.68.0.10": stored.KubeletConfiguration,
		} {
			if !bytes.Contains(document, []byte(want)) {
				t.Errorf("%q is not in\n%s", want, document)
			}
		}
	}
}
