package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"
)

// Parse strictly decodes a cluster document: JSON, or one YAML document as Kubernetes reads YAML, of at most MaxCluster bytes,
// without unknown or doubled fields. An error names the field by its path and, where it is known, the line.
func Parse(data []byte) (Cluster, error) {
	c, err := parse(data)
	if err != nil {
		return Cluster{}, fmt.Errorf("cluster document: %w", err)
	}
	return c, nil
}

func parse(data []byte) (c Cluster, err error) {
	if len(data) > MaxCluster {
		return c, fmt.Errorf("%d bytes, at most %d are allowed", len(data), MaxCluster)
	}
	text := data
	if !json.Valid(data) {
		if text, err = toJSON(data); err != nil {
			return c, err
		}
	}
	problems, err := kjson.UnmarshalStrict(text, &c)
	if err != nil {
		return c, err
	}
	if len(problems) > 0 {
		return c, atLine(data, problems[0])
	}
	if c.Schema != Schema {
		return c, fmt.Errorf("schema: %q, want %q", c.Schema, Schema)
	}
	c.defaults()
	return c, c.check()
}

// toJSON reads one YAML document. Its aliases are written out, which must not make it longer than a document may be.
func toJSON(data []byte) ([]byte, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	if err := d.Decode(&document); errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty")
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document, want one")
	}
	text, err := kyaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxCluster {
		return nil, fmt.Errorf("%d bytes with its aliases written out, at most %d are allowed", len(text), MaxCluster)
	}
	return text, nil
}

// fieldPath is the path that sigs.k8s.io/json ends its complaints with.
var fieldPath = regexp.MustCompile(`"([^"]+)"$`)

// atLine adds the line to what the decoder says of a field. JSON without line breaks needs none.
func atLine(data []byte, problem error) error {
	found := fieldPath.FindStringSubmatch(problem.Error())
	var document yaml.Node
	if found == nil || yaml.Unmarshal(data, &document) != nil || len(document.Content) != 1 {
		return problem
	}
	if line := lineOf(document.Content[0], found[1]); line > 0 {
		return fmt.Errorf("line %d: %w", line, problem)
	}
	return problem
}

var step = regexp.MustCompile(`[^.\[\]]+|\[[0-9]+\]`)

// lineOf returns the line at which the field of a path such as pools[0].name stands, or 0.
func lineOf(node *yaml.Node, path string) (line int) {
	for _, s := range step.FindAllString(path, -1) {
		line, node = child(node, s)
		if node == nil {
			return 0
		}
	}
	return line
}

// child returns one step of a path, and the line at which its name stands; of a doubled name it is the last.
func child(node *yaml.Node, step string) (line int, found *yaml.Node) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind == yaml.SequenceNode && step[0] == '[' {
		if i, err := strconv.Atoi(step[1 : len(step)-1]); err == nil && i < len(node.Content) {
			return node.Content[i].Line, node.Content[i]
		}
	}
	if node.Kind != yaml.MappingNode {
		return 0, nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == step {
			line, found = node.Content[i].Line, node.Content[i+1]
		}
	}
	return line, found
}
