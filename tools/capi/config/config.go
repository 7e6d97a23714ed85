// Package config holds what installs the bootstrap provider: CRDs and roles, which controller-gen makes of the code, and the objects
// around them. It makes of these the files that clusterctl reads (Cluster API book, "clusterctl provider contract").
package config

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	sigsyaml "sigs.k8s.io/yaml"
)

// Provider is the value of the label cluster.x-k8s.io/provider of all objects.
const Provider = "bootstrap-hullmark"

// The names of the files in a release's folder of a clusterctl repository.
const (
	ComponentsFile = "bootstrap-components.yaml"
	MetadataFile   = "metadata.yaml"
)

//go:embed manager.yaml metadata.yaml crd rbac
var files embed.FS

// imagePattern is that of an image with its digest, or of one that clusterctl's variables name.
var imagePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:/_-]{0,254}(@sha256:[0-9a-f]{64})?$`)

// Metadata returns the release series of the provider and their contracts.
func Metadata() ([]byte, error) { return files.ReadFile(MetadataFile) }

// Objects returns all objects of the provider, each with the provider's label, with the manager's image in the Deployment.
func Objects(image string) ([]*unstructured.Unstructured, error) {
	if !imagePattern.MatchString(image) {
		return nil, fmt.Errorf("image %q: want NAME:TAG or NAME@sha256:DIGEST", image)
	}
	var objects []*unstructured.Unstructured
	for _, pattern := range []string{"manager.yaml", "rbac/*.yaml", "crd/*.yaml"} {
		names, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			read, err := readObjects(name, image)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			objects = append(objects, read...)
		}
	}
	return objects, nil
}

func readObjects(name, image string) (objects []*unstructured.Unstructured, err error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	text = bytes.ReplaceAll(text, []byte("image: IMAGE\n"), []byte("image: "+image+"\n"))
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if len(o.Object) == 0 {
			continue
		}
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[clusterv1.ProviderNameLabel] = Provider
		o.SetLabels(labels)
		objects = append(objects, o)
	}
}

// Components returns the objects as clusterctl reads them.
func Components(image string) ([]byte, error) {
	objects, err := Objects(image)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, o := range objects {
		one, err := sigsyaml.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		text.WriteString("---\n")
		text.Write(one)
	}
	return text.Bytes(), nil
}
