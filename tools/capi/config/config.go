// Package config holds what installs the providers: CRDs and roles, which controller-gen makes of the code, and the objects around
// them. It makes of these the files that clusterctl reads (Cluster API book, "clusterctl provider contract").
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

	"github.com/hullmark/hullmark/tools/capi/infrastructure"
)

// Provider is one provider, as clusterctl installs it.
type Provider struct {
	// Label is the value of the label cluster.x-k8s.io/provider of all its objects, and its folder's name in a clusterctl repository.
	Label string
	// Type is its type in clusterctl's configuration.
	Type string
	// ComponentsFile is the name of the file of its objects in a release's folder.
	ComponentsFile string
	// parts are patterns of the files that its objects are read of.
	parts []string
	// more returns further objects; nil if there are none.
	more func() ([]byte, error)
}

// Name is how clusterctl calls each provider, beside its type.
const Name = "hullmark"

// The providers.
var (
	Bootstrap = Provider{
		Label: "bootstrap-" + Name, Type: "BootstrapProvider", ComponentsFile: "bootstrap-components.yaml",
		parts: []string{"manager/bootstrap.yaml", "rbac/bootstrap.yaml", "crd/bootstrap.cluster.x-k8s.io_*.yaml"},
	}
	ControlPlane = Provider{
		Label: "control-plane-" + Name, Type: "ControlPlaneProvider", ComponentsFile: "control-plane-components.yaml",
		parts: []string{"manager/control-plane.yaml", "rbac/control-plane.yaml", "crd/controlplane.cluster.x-k8s.io_*.yaml"},
	}
	Infrastructure = Provider{
		Label: "infrastructure-" + Name, Type: "InfrastructureProvider", ComponentsFile: "infrastructure-components.yaml",
		parts: []string{"manager/infrastructure.yaml"}, more: infrastructure.CRDs,
	}
)

// Providers returns all of them.
func Providers() []Provider { return []Provider{Bootstrap, ControlPlane, Infrastructure} }

// MetadataFile is the name of the file that Metadata returns in a release's folder of a clusterctl repository.
const MetadataFile = "metadata.yaml"

//go:embed metadata.yaml manager crd rbac
var files embed.FS

// imagePattern is that of an image with its digest, or of one that clusterctl's variables name.
var imagePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:/_-]{0,254}(@sha256:[0-9a-f]{64})?$`)

// Metadata returns the release series of the providers and their contracts.
func Metadata() ([]byte, error) { return files.ReadFile(MetadataFile) }

// Objects returns all objects of the provider, each with the provider's label, with the manager's image in its Deployment.
func (p Provider) Objects(image string) ([]*unstructured.Unstructured, error) {
	if !imagePattern.MatchString(image) {
		return nil, fmt.Errorf("image %q: want NAME:TAG or NAME@sha256:DIGEST", image)
	}
	var objects []*unstructured.Unstructured
	add := func(name string, text []byte, err error) error {
		if err != nil {
			return err
		}
		read, err := p.read(text, image)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		objects = append(objects, read...)
		return nil
	}
	for _, pattern := range p.parts {
		names, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := files.ReadFile(name)
			if err := add(name, text, err); err != nil {
				return nil, err
			}
		}
	}
	if p.more == nil {
		return objects, nil
	}
	text, err := p.more()
	return objects, add(p.Label, text, err)
}

// read returns the objects of a YAML stream, labelled.
func (p Provider) read(text []byte, image string) (objects []*unstructured.Unstructured, err error) {
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
		labels[clusterv1.ProviderNameLabel] = p.Label
		o.SetLabels(labels)
		objects = append(objects, o)
	}
}

// Components returns the objects as clusterctl reads them.
func (p Provider) Components(image string) ([]byte, error) {
	objects, err := p.Objects(image)
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
