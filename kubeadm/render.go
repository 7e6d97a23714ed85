package kubeadm

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

const etcdManifest = StaticPodsDir + "/etcd.yaml"

// emulatedVersion is the flag by which a program of the control plane behaves as an earlier minor release (k8s.io/component-base,
// compatibility).
const emulatedVersion = "emulated-version"

// staticPod is what of a static pod's manifest counts here.
type staticPod struct {
	// version is the one in its image's name; unknown if there is none of ours.
	version hullmark.Version
	flags   map[string]string
}

// readPod reads the manifest of one of StaticPods, or nothing.
func readPod(manifest []byte) (p staticPod, err error) {
	var pod struct {
		Spec struct {
			Containers []struct {
				Image   string
				Command []string
			}
		}
	}
	if err := yaml.Unmarshal(manifest, &pod); err != nil {
		return p, err
	}
	p.flags = map[string]string{}
	for _, c := range pod.Spec.Containers {
		for _, word := range c.Command {
			if name, value, ok := strings.Cut(strings.TrimPrefix(word, "--"), "="); ok {
				p.flags[name] = value
			}
		}
		if image, ours := strings.CutPrefix(c.Image, Repository+"/"); ours {
			_, tag, _ := strings.Cut(image, ":")
			p.version, _ = hullmark.ParseVersion("v" + strings.TrimPrefix(tag, "v"))
		}
	}
	return p, nil
}

// Rendered says by which release a control plane's static pods were written.
type Rendered struct {
	// Versions are that release's; unknown where a manifest is missing, or not of kubeadm.
	hullmark.Versions
	// Acts is the release that its API server behaves as: Kubernetes, or the first of an earlier minor release that it emulates.
	Acts hullmark.Version
	// Mixed says that the pods are not of one release: the power was cut while they were written.
	Mixed bool
}

// ReadRendered reads a control plane's static pods.
func ReadRendered(read func(path string) ([]byte, error)) (r Rendered, err error) {
	pods := map[string]staticPod{}
	for _, path := range StaticPods() {
		text, err := read(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return r, fmt.Errorf("%s: %w", path, err)
		}
		if pods[path], err = readPod(text); err != nil {
			return r, fmt.Errorf("%s: %w", path, err)
		}
	}
	server := pods[apiServerManifest]
	r.Kubernetes, r.Etcd, r.Acts = server.version, pods[etcdManifest].version, server.version
	if line := server.flags[emulatedVersion]; line != "" {
		if r.Acts, err = hullmark.ParseVersion("v" + line + ".0"); err != nil {
			return r, fmt.Errorf("%s: --%s: %w", apiServerManifest, emulatedVersion, err)
		}
	}
	for path, pod := range pods {
		if path != etcdManifest && (pod.version != server.version || pod.flags[emulatedVersion] != server.flags[emulatedVersion]) {
			r.Mixed = true
		}
	}
	return r, nil
}

// Rendering says how a control plane's static pods are to be written by the release that runs. What they are told of the cluster is its
// ClusterConfiguration; what differs between nodes, those say that are there.
type Rendering struct {
	// NodeName is the node's name.
	NodeName string
	// Version is the release that runs, and Acts the one that it is to behave as: itself, or one of an earlier minor release.
	Version, Acts hullmark.Version
	// ClusterConfiguration is the one that the cluster keeps, in YAML.
	ClusterConfiguration []byte
	// Read returns the content of a file by the path that programs see.
	Read func(path string) ([]byte, error)
}

// Documents returns those with which kubeadm writes the pods.
func (r Rendering) Documents() ([]byte, error) {
	documents, err := r.documents()
	if err != nil {
		return nil, fmt.Errorf("write static pods: %w", err)
	}
	return documents, nil
}

func (r Rendering) documents() ([]byte, error) {
	server, err := r.pod(apiServerManifest)
	if err != nil {
		return nil, err
	}
	member, err := r.pod(etcdManifest)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(server.flags["secure-port"], 10, 16)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver's --secure-port: %w", err)
	}
	if server.flags["advertise-address"] == "" {
		return nil, errors.New("kube-apiserver has no --advertise-address")
	}
	var cluster map[string]any
	if err := yaml.Unmarshal(r.ClusterConfiguration, &cluster); err != nil {
		return nil, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	if cluster["apiVersion"] != kubeadmAPI || cluster["kind"] != "ClusterConfiguration" {
		return nil, fmt.Errorf("ClusterConfiguration: want one of %s, got %.80v %.80v", kubeadmAPI, cluster["apiVersion"], cluster["kind"])
	}
	cluster["kubernetesVersion"] = r.Version.String()
	// With its data there etcd asks nobody for these; without, it must not begin a cluster of its own.
	for _, name := range []string{"initial-cluster", "initial-cluster-state"} {
		setArgument(below(cluster, "etcd", "local"), name, member.flags[name])
	}
	for _, component := range []string{"apiServer", "controllerManager", "scheduler"} {
		setArgument(below(cluster, component), emulatedVersion, r.emulated())
	}
	return stream(initConfiguration{
		meta:             meta{APIVersion: kubeadmAPI, Kind: "InitConfiguration"},
		NodeRegistration: registrationOf(r.NodeName, ""),
		LocalAPIEndpoint: endpoint{AdvertiseAddress: server.flags["advertise-address"], BindPort: int(port)},
		Patches:          directory{Directory: PatchesDir},
	}, cluster)
}

// emulated is what the programs are told to behave as; empty for what they are.
func (r Rendering) emulated() string {
	if r.Acts.SameLine(r.Version) {
		return ""
	}
	return r.Acts.Line()
}

func (r Rendering) pod(path string) (staticPod, error) {
	text, err := r.Read(path)
	if err != nil {
		return staticPod{}, err
	}
	pod, err := readPod(text)
	if err != nil {
		return staticPod{}, fmt.Errorf("%s: %w", path, err)
	}
	return pod, nil
}

// below returns an object inside of another, which is made if it is not there.
func below(object map[string]any, names ...string) map[string]any {
	for _, name := range names {
		next, ok := object[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[name] = next
		}
		object = next
	}
	return object
}

// setArgument gives a component a flag in the place of what its extraArgs say of that; empty leaves it out.
func setArgument(component map[string]any, name, value string) {
	list, _ := component["extraArgs"].([]any)
	list = slices.DeleteFunc(slices.Clone(list), func(a any) bool {
		argument, _ := a.(map[string]any)
		is, _ := argument["name"].(string)
		return strings.ReplaceAll(is, "_", "-") == name
	})
	if value != "" {
		list = append(list, map[string]any{"name": name, "value": value})
	}
	component["extraArgs"] = list
}

// Due reports whether the pods have to be written anew by the release that runs.
func (r Rendered) Due(runs hullmark.Version) bool { return r.Mixed || r.Kubernetes != runs }
