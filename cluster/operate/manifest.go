package operate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// strictly decodes objects of Kubernetes' own kinds, and refuses a field that they do not have, or one that is there twice.
var strictly = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})

// checkManifest refuses a stream of YAML documents that kubectl could not apply, or that has a field which nobody reads: the node does
// not look for these (systemd/system/hullmark-addons.service). Of kinds that Kubernetes does not have itself, and of a List's items, it
// knows no fields.
func checkManifest(stream []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = checkObject(document)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// checkObject holds one document to its kind; one that has but comments is nothing.
func checkObject(document []byte) error {
	encoded, err := yaml.YAMLToJSON(document)
	if err != nil || string(encoded) == "null" {
		return err
	}
	if _, _, err = strictly.Decode(document, nil, nil); runtime.IsNotRegisteredError(err) {
		return nil
	}
	return err
}
