package kubeadm

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

// pods are a control plane's manifests, each with its image's tag and further flags.
func pods(kubernetes string, flags ...string) map[string]string {
	pod := func(name, tag string, flags ...string) string {
		return fmt.Sprintf("spec:\n  containers:\n  - image: localhost/hullmark/%s:%s\n    command: [%s]\n", name, tag, strings.Join(append([]string{name}, flags...), ", "))
	}
	return map[string]string{
		apiServerManifest: pod("kube-apiserver", kubernetes, append([]string{"--advertise-address=192.0.2.7", "--secure-port=6443"}, flags...)...),
		StaticPodsDir + "/kube-controller-manager.yaml": pod("kube-controller-manager", kubernetes, flags...),
		StaticPodsDir + "/kube-scheduler.yaml":          pod("kube-scheduler", kubernetes, flags...),
		etcdManifest:                                    pod("etcd", "3.6.8-0", `"--initial-cluster=a=https://192.0.2.6:2380,b=https://192.0.2.7:2380"`, "--initial-cluster-state=existing"),
	}
}

func reading(files map[string]string) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		text, ok := files[path]
		if !ok {
			return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
		}
		return []byte(text), nil
	}
}

func TestReadRendered(t *testing.T) {
	torn, old := pods("v1.36.3", "--emulated-version=1.35"), pods("v1.35.4")
	torn[StaticPodsDir+"/kube-scheduler.yaml"] = old[StaticPodsDir+"/kube-scheduler.yaml"]
	gone := pods("v1.36.3")
	delete(gone, StaticPodsDir+"/kube-scheduler.yaml")
	foreign := pods("v1.36.3")
	for path, text := range foreign {
		foreign[path] = strings.ReplaceAll(text, Repository, "registry.k8s.io")
	}
	for name, c := range map[string]struct {
		files      map[string]string
		kubernetes string
		acts       string
		mixed, due bool
	}{
		"as it should be":       {pods("v1.36.3"), "v1.36.3", "v1.36.3", false, false},
		"by an earlier release": {old, "v1.35.4", "v1.35.4", false, true},
		"on trial":              {pods("v1.36.3", "--emulated-version=1.35"), "v1.36.3", "v1.35.0", false, false},
		"cut short":             {torn, "v1.36.3", "v1.35.0", true, true},
		"one is gone":           {gone, "v1.36.3", "v1.36.3", true, true},
		"none is there":         {nil, "unknown", "unknown", false, true},
		"somebody else's":       {foreign, "unknown", "unknown", false, true},
	} {
		r, err := ReadRendered(reading(c.files))
		if err != nil || r.Kubernetes.String() != c.kubernetes || r.Acts.String() != c.acts || r.Mixed != c.mixed || r.Due(hullmark.Version{Major: 1, Minor: 36, Patch: 3}) != c.due {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if r, err := ReadRendered(reading(pods("v1.36.3"))); err != nil || !r.Etcd.SameLine(hullmark.Version{Major: 3, Minor: 6}) {
		t.Errorf("etcd is %v, %v", r.Etcd, err)
	}
	for _, bad := range []map[string]string{pods("v1.36.3", "--emulated-version=old"), {apiServerManifest: "\t"}} {
		if r, err := ReadRendered(reading(bad)); err == nil {
			t.Errorf("read %+v", r)
		}
	}
}

const keptCluster = `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.35.4
imageRepository: localhost/hullmark
apiServer:
  extraArgs: [{name: kubelet-certificate-authority, value: /ca.crt}, {name: emulated_version, value: "1.34"}]
  certSANs: [192.0.2.7]
scheduler: {}
etcd: {local: {dataDir: /var/lib/etcd, extraArgs: [{name: heartbeat-interval, value: "500"}]}}
`

func TestRendering(t *testing.T) {
	version := func(text string) hullmark.Version {
		v, err := hullmark.ParseVersion(text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for acts, flag := range map[string]string{"v1.35.4": "--emulated-version=1.35", "v1.36.3": "", "v1.36.0": ""} {
		r := Rendering{NodeName: "b", Version: version("v1.36.3"), Acts: version(acts), ClusterConfiguration: []byte(keptCluster), Read: reading(pods("v1.35.4"))}
		documents, err := r.Documents()
		if err != nil {
			t.Fatal(err)
		}
		var node initConfiguration
		var cluster map[string]any
		if err := Find(documents, "InitConfiguration", &node); err != nil || node.LocalAPIEndpoint != (endpoint{"192.0.2.7", 6443}) || node.NodeRegistration.Name != "b" || node.Patches.Directory != PatchesDir {
			t.Errorf("%+v, %v", node, err)
		}
		if err := Find(documents, "ClusterConfiguration", &cluster); err != nil || cluster["kubernetesVersion"] != "v1.36.3" {
			t.Errorf("%v, %v", cluster, err)
		}
		text, err := yaml.Marshal(cluster)
		if err != nil {
			t.Fatal(err)
		}
		flags, err := ProgramFlags(text)
		if err != nil {
			t.Fatal(err)
		}
		for program, own := range map[string]string{"kube-apiserver": "--kubelet-certificate-authority=/ca.crt ", "kube-controller-manager": "", "kube-scheduler": ""} {
			if got := strings.Join(flags[program], " "); got != strings.TrimSpace(own+flag) {
				t.Errorf("%s: %q, want %q", program, got, own+flag)
			}
		}
		if got := strings.Join(flags["etcd"], " "); got != "--heartbeat-interval=500 --initial-cluster=a=https://192.0.2.6:2380,b=https://192.0.2.7:2380 --initial-cluster-state=existing" {
			t.Errorf("etcd: %q", got)
		}
	}
	for what, r := range map[string]Rendering{
		"no pods":       {ClusterConfiguration: []byte(keptCluster), Read: reading(nil)},
		"no address":    {ClusterConfiguration: []byte(keptCluster), Read: reading(map[string]string{apiServerManifest: "spec: {containers: [{command: [a, --secure-port=6443]}]}", etcdManifest: ""})},
		"another kind":  {ClusterConfiguration: []byte("kind: Pod"), Read: reading(pods("v1.35.4"))},
		"another form":  {ClusterConfiguration: []byte("\t"), Read: reading(pods("v1.35.4"))},
		"an old schema": {ClusterConfiguration: []byte(strings.Replace(keptCluster, "v1beta4", "v1beta3", 1)), Read: reading(pods("v1.35.4"))},
	} {
		if documents, err := r.Documents(); err == nil {
			t.Errorf("%s: %s", what, documents)
		}
	}
}
