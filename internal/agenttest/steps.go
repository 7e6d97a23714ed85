package agenttest

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// Steps are the programs of an image, and the cluster that they see, as far as a step from one release to another needs them. Its
// fields are set before the agent begins, or within Change.
type Steps struct {
	// Refused is what CheckFlags returns, and Down, if set, what everything does that asks an API server.
	Refused, Down error
	// Recorded is the release that kubeadm keeps of the cluster, and ControlPlanes and Nodes are as they are seen.
	Recorded      string
	ControlPlanes []step.Plane
	Nodes         []step.Seen
	// Stale says that CoreDNS is of another release.
	Stale bool
	// Config is the kubelet's configuration as KubeletConfig makes it.
	Config string

	mutex sync.Mutex
	tasks []string
}

// Change changes what the agent sees.
func (s *Steps) Change(edit func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	edit()
}

// Tasks returns what was done, in its order: "check PROGRAM…", "render VERSION as LINE", "record VERSION", "dns VERSION" and "kubelet".
func (s *Steps) Tasks() []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.tasks)
}

func (s *Steps) did(format string, a ...any) { s.tasks = append(s.tasks, fmt.Sprintf(format, a...)) }

// CheckFlags takes all flags, or none.
func (s *Steps) CheckFlags(_ context.Context, flags map[string][]string) ([]string, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var programs []string
	for program := range flags {
		programs = append(programs, program)
	}
	slices.Sort(programs)
	s.did("check %s", strings.Join(programs, " "))
	return nil, s.Refused
}

// Render makes pods that say what the documents say of version, address and the release that they behave as.
func (s *Steps) Render(_ context.Context, _ string, documents []byte) (map[string][]byte, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var cluster struct {
		KubernetesVersion string
		APIServer         struct {
			ExtraArgs []struct{ Name, Value string }
		}
	}
	var node struct {
		LocalAPIEndpoint struct {
			AdvertiseAddress string
			BindPort         int
		}
	}
	if err := kubeadm.Find(documents, "ClusterConfiguration", &cluster); err != nil {
		return nil, err
	}
	if err := kubeadm.Find(documents, "InitConfiguration", &node); err != nil {
		return nil, err
	}
	flags, line := "", strings.Join(strings.Split(strings.TrimPrefix(cluster.KubernetesVersion, "v"), ".")[:2], ".")
	for _, a := range cluster.APIServer.ExtraArgs {
		if a.Name == "emulated-version" {
			flags, line = ", --emulated-version="+a.Value, a.Value
		}
	}
	s.did("render %s as %s", cluster.KubernetesVersion, line)
	return Pods(cluster.KubernetesVersion, fmt.Sprintf("--advertise-address=%s, --secure-port=%d%s", node.LocalAPIEndpoint.AdvertiseAddress, node.LocalAPIEndpoint.BindPort, flags)), nil
}

// Pods are a control plane's static pods of a release, by their paths, with further flags.
func Pods(version, flags string) map[string][]byte {
	pods := map[string][]byte{}
	for _, name := range kubeadm.StaticPods() {
		program, tag := strings.TrimSuffix(path.Base(name), ".yaml"), version
		if program == "etcd" {
			tag = "3.6.8-0"
		}
		pods[name] = fmt.Appendf(nil, "spec:\n  containers:\n  - image: localhost/hullmark/%s:%s\n    command: [%s, --service-cluster-ip-range=10.96.0.0/12, %s]\n", program, tag, program, flags)
	}
	return pods
}

// Stored returns a configuration of the release that is recorded.
func (s *Steps) Stored(context.Context, run.Access) (run.Stored, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return run.Stored{ClusterConfiguration: ClusterConfiguration(s.Recorded)}, s.Down
}

// ClusterConfiguration is what a cluster of a release keeps.
func ClusterConfiguration(version string) []byte {
	return []byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: " + version + "\n")
}

// Planes returns them.
func (s *Steps) Planes(context.Context, run.Access) ([]step.Plane, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.ControlPlanes), s.Down
}

// Kubelets returns them.
func (s *Steps) Kubelets(context.Context, run.Access) ([]step.Seen, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.Nodes), s.Down
}

// OldDNS says it.
func (s *Steps) OldDNS(context.Context, run.Access, hullmark.Version) (bool, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.Stale, s.Down
}

// Upgrade does to the cluster what kubeadm does.
func (s *Steps) Upgrade(_ context.Context, documents []byte, _ func(kubeadm.Phase)) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var wanted struct {
		Apply struct {
			KubernetesVersion string
			SkipPhases        []string
		}
	}
	if err := kubeadm.Find(documents, "UpgradeConfiguration", &wanted); err != nil {
		return err
	}
	if s.Down != nil {
		return s.Down
	}
	if !slices.Contains(wanted.Apply.SkipPhases, "upload-config") {
		s.did("record %s", wanted.Apply.KubernetesVersion)
		s.Recorded = wanted.Apply.KubernetesVersion
	}
	if !slices.Contains(wanted.Apply.SkipPhases, "addon/coredns") {
		s.did("dns %s", wanted.Apply.KubernetesVersion)
		s.Stale = false
	}
	return nil
}

// KubeletConfig makes it.
func (s *Steps) KubeletConfig(context.Context, func(kubeadm.Phase)) ([]byte, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.did("kubelet")
	return []byte(s.Config), s.Down
}
