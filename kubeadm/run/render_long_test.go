//go:build long

package run_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// The real kubeadm writes a control plane's static pods without an API server, of what the cluster keeps and of the pods that an earlier
// release wrote; they behave as that until they are written again; and the real programs take all their flags.
func TestRender(t *testing.T) {
	bin, err := testenv.Programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "kubeadm")
	patches, err := filepath.Abs("../../tools/kubernetes/patches")
	if err != nil {
		t.Fatal(err)
	}
	here := func(documents []byte) []byte {
		return bytes.ReplaceAll(documents, []byte(kubeadm.PatchesDir), []byte(patches))
	}
	first := firstDocuments(t)
	stored, err := run.WouldStore(t.Context(), program, first)
	if err != nil {
		t.Fatal(err)
	}
	now, err := hullmark.ParseVersion(kubeadm.Version)
	if err != nil {
		t.Fatal(err)
	}
	// The pods that lie on the disk: an earlier patch's, in a cluster whose etcd this member had joined.
	disk, err := run.Render(t.Context(), program, t.TempDir(), here(bytes.Replace(first, []byte(kubeadm.Version), []byte("v1.36.0"), 1)))
	if err != nil {
		t.Fatal(err)
	}
	const etcd = kubeadm.StaticPodsDir + "/etcd.yaml"
	disk[etcd] = bytes.Replace(disk[etcd], []byte("- --initial-cluster=one="), []byte("- --initial-cluster-state=existing\n    - --initial-cluster=other=https://192.0.2.6:2380,one="), 1)
	read := func(name string) ([]byte, error) {
		text, ok := disk[name]
		if !ok {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		return text, nil
	}
	for _, acts := range []hullmark.Version{{Major: 1, Minor: 35}, now} {
		documents, err := kubeadm.Rendering{NodeName: "one", Version: now, Acts: acts, ClusterConfiguration: stored.ClusterConfiguration, Read: read}.Documents()
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Validate(t.Context(), program, here(documents)); err != nil {
			t.Error(err)
		}
		if disk, err = run.Render(t.Context(), program, t.TempDir(), here(documents)); err != nil {
			t.Fatal(err)
		}
		r, err := kubeadm.ReadRendered(read)
		if err != nil || r.Kubernetes != now || !r.Acts.SameLine(acts) || r.Mixed || !r.Etcd.SameLine(hullmark.Version{Major: 3, Minor: 6}) {
			t.Errorf("%+v, %v", r, err)
		}
		flags := commands(t, disk)
		if deprecated, err := run.CheckFlags(t.Context(), bin, flags); err != nil || len(deprecated) > 0 || len(flags) != 4 {
			t.Errorf("%q, %v; asked %d programs", deprecated, err, len(flags))
		}
		for name, wants := range map[string][]string{
			"kube-apiserver":          {"--advertise-address=192.0.2.7", "--service-cluster-ip-range=10.96.0.0/16", "--kubelet-certificate-authority=", "mountPath: /usr/lib/kubernetes/bin", "value: \"400\""},
			"kube-controller-manager": {"--cluster-signing-duration=72h0m0s", "--leader-elect=false"},
			"etcd":                    {"--initial-cluster=other=https://192.0.2.6:2380,one=https://192.0.2.7:2380", "--initial-cluster-state=existing", "--heartbeat-interval=500", "--name=one"},
		} {
			for _, want := range wants {
				if text := string(disk[path.Join(kubeadm.StaticPodsDir, name+".yaml")]); !strings.Contains(text, want) {
					t.Errorf("%s lacks %q:\n%s", name, want, text)
				}
			}
		}
	}
}
