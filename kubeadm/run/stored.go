package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// Stored is what kubeadm keeps in the cluster of the documents that it was given, with every default written out: for later
// control planes and kubelets.
type Stored struct {
	// ClusterConfiguration and KubeletConfiguration are YAML.
	ClusterConfiguration, KubeletConfiguration []byte
}

// The objects in the namespace kube-system that kubeadm keeps them in.
const (
	kubeadmObject = "kubeadm-config"
	kubeletObject = "kubelet-config"
)

// configMap is the part of a ConfigMap that counts here.
type configMap struct {
	Kind     string                `json:"kind"`
	Metadata struct{ Name string } `json:"metadata"`
	Data     map[string]string     `json:"data"`
}

// take notes what a ConfigMap holds.
func (s *Stored) take(m configMap) {
	switch m.Metadata.Name {
	case kubeadmObject:
		s.ClusterConfiguration = []byte(m.Data["ClusterConfiguration"])
	case kubeletObject:
		s.KubeletConfiguration = []byte(m.Data["kubelet"])
	}
}

// whole reports an error unless both documents are there.
func (s *Stored) whole() error {
	if len(s.ClusterConfiguration) == 0 || len(s.KubeletConfiguration) == 0 {
		return fmt.Errorf("%s or %s: missing or empty", kubeadmObject, kubeletObject)
	}
	return nil
}

// Running reads what kubeadm keeps in a running cluster.
func Running(ctx context.Context, access Access) (Stored, error) {
	server := api{access: access}
	defer server.close()
	var s Stored
	for _, name := range []string{kubeadmObject, kubeletObject} {
		var m configMap
		if err := server.get(ctx, "/api/v1/namespaces/kube-system/configmaps/"+name, &m); err != nil {
			return s, fmt.Errorf("read the cluster's configuration: %s: %w", name, err)
		}
		s.take(m)
	}
	if err := s.whole(); err != nil {
		return s, fmt.Errorf("read the cluster's configuration: %w", err)
	}
	return s, nil
}

// noCluster is a kubeconfig for a dry run, which speaks to no API server.
const noCluster = `apiVersion: v1
kind: Config
clusters:
- name: none
  cluster:
    server: https://127.0.0.1:1
contexts:
- name: none
  context:
    cluster: none
    user: none
current-context: none
users:
- name: none
  user: {}
`

// WouldStore lets the kubeadm at program say what it would keep of the documents of an init. It changes nothing and speaks to no cluster.
func WouldStore(ctx context.Context, program string, documents []byte) (Stored, error) {
	s, err := wouldStore(ctx, program, documents)
	if err != nil {
		return Stored{}, fmt.Errorf("write out kubeadm's defaults: %w", err)
	}
	return s, nil
}

func wouldStore(ctx context.Context, program string, documents []byte) (s Stored, err error) {
	dir, err := os.MkdirTemp("", "kubeadm")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, "admin.conf"), []byte(noCluster), 0o600); err != nil {
		return s, err
	}
	cmd := exec.CommandContext(ctx, program, "init", "phase", "upload-config", "all", "--dry-run", "--config", "/dev/stdin")
	// In a dry run kubeadm looks for its administrator's kubeconfig there.
	cmd.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+dir)
	cmd.Stdin = bytes.NewReader(documents)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	said, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("%s: %w: %s", program, err, Cause(problems.String()))
	}
	for _, object := range attached(string(said)) {
		var m configMap
		if err := yaml.Unmarshal([]byte(object), &m); err != nil {
			return s, fmt.Errorf("%s: %w", program, err)
		}
		if m.Kind == "ConfigMap" {
			s.take(m)
		}
	}
	return s, s.whole()
}

// attached returns the objects that a dry run shows, each between a line that announces it and the next such line.
func attached(said string) []string {
	var objects []string
	for part := range strings.SplitSeq("\n"+said, "\n[") {
		if title, object, _ := strings.Cut(part, "\n"); title == "dryrun] Attached object:" {
			objects = append(objects, object)
		}
	}
	return objects
}
