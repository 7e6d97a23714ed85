package kubeadmspec

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/measurements"
)

// use honours a value: it puts pieces, or says why it cannot.
type use func(m *mapping, f Field, at place, value any, beside map[string]any) error

// keep takes a value as it is.
func keep(m *mapping, f Field, at place, value any, _ map[string]any) error {
	if err := checkText(value); err != nil {
		return err
	}
	m.put(f, at, value)
	return nil
}

// begin makes a list that is there, even if it is empty; what it holds follows.
func begin(m *mapping, f Field, at place, _ any, _ map[string]any) error {
	m.put(f, at, []any{})
	return nil
}

// seconds turns a number into a duration of kubeadm.
func seconds(m *mapping, f Field, at place, value any, _ map[string]any) error {
	n, _ := value.(float64)
	if n < 0 {
		return fmt.Errorf("%v seconds: want none or more", n)
	}
	m.put(f, at, (time.Duration(n) * time.Second).String())
	return nil
}

// nodeLabels is the argument of the kubelet that is the pool's labels.
const nodeLabels = "node-labels"

func isNodeLabels(argument map[string]any) bool {
	name, _ := argument["name"].(string)
	return strings.ReplaceAll(name, "_", "-") == nodeLabels
}

// argumentName keeps the name of an argument of the kubelet, unless its value becomes labels.
func argumentName(m *mapping, f Field, at place, value any, beside map[string]any) error {
	if isNodeLabels(beside) {
		return nil
	}
	return keep(m, f, at, value, beside)
}

// argumentValue keeps the value of an argument of the kubelet, or turns it into labels, as the kubelet reads them.
func argumentValue(m *mapping, f Field, at place, value any, beside map[string]any) error {
	if !isNodeLabels(beside) {
		f.agrees = false
		return keep(m, f, at, value, beside)
	}
	if err := checkText(value); err != nil {
		return err
	}
	text, _ := value.(string)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok && text != "" {
			return fmt.Errorf("%.80q: want key=value, with commas between several", pair)
		}
		label := piece{unit: at.unit, to: []any{"pool", "labels", strings.TrimSpace(key)}, value: strings.TrimSpace(value), agrees: f.agrees}
		if slices.ContainsFunc(m.pieces, label.samePlace) {
			return fmt.Errorf("%.80s: named twice", key)
		}
		if text != "" {
			m.pieces = append(m.pieces, label)
		}
	}
	return nil
}

func (p piece) samePlace(other piece) bool {
	return p.agrees == other.agrees && slices.Equal(p.to, other.to)
}

// few refuses more files than a node takes before it looks at them.
func few(_ *mapping, _ Field, _ place, value any, _ map[string]any) error {
	if files, _ := value.([]any); len(files) > measurements.MaxFiles {
		return fmt.Errorf("%d files, a node takes at most %d: put more into fewer, or into the image", len(files), measurements.MaxFiles)
	}
	return nil
}

// example is a file that every node takes.
var example = measurements.PlacedFile{Path: "/etc/kubernetes/example", Mode: "0644"}

func checkFile(f measurements.PlacedFile) error {
	err := measurements.CheckPlaced([]measurements.PlacedFile{f}, nil)
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

func filePath(m *mapping, f Field, at place, value any, beside map[string]any) error {
	file := example
	file.Path, _ = value.(string)
	if err := checkFile(file); err != nil {
		return err
	}
	return keep(m, f, at, value, beside)
}

// permissions are three or four octal digits; a leading 0 may be left out.
func permissions(m *mapping, f Field, at place, value any, beside map[string]any) error {
	file := example
	file.Mode, _ = value.(string)
	if len(file.Mode) == 3 {
		file.Mode = "0" + file.Mode
	}
	if err := checkFile(file); err != nil {
		return err
	}
	return keep(m, f, at, file.Mode, beside)
}

var encodings = []bootstrapv1.Encoding{bootstrapv1.Base64, bootstrapv1.Gzip, bootstrapv1.GzipBase64}

// encoding is heeded by content.
func encoding(_ *mapping, _ Field, _ place, value any, _ map[string]any) error {
	text, _ := value.(string)
	if !slices.Contains(encodings, bootstrapv1.Encoding(text)) {
		return fmt.Errorf("%.80q: want one of %q, or none", text, encodings)
	}
	return nil
}

// content takes the file's bytes from the spec itself: JSON has no bytes that are not text.
func content(m *mapping, f Field, at place, _ any, _ map[string]any) error {
	from := m.spec.Files[at.index[0]]
	text, err := decode(from.Content, from.Encoding)
	if err != nil {
		return err
	}
	if !utf8.Valid(text) {
		return errors.New("want text in UTF-8: a policy names the content, and is text")
	}
	file := example
	file.Content = string(text)
	if err := checkFile(file); err != nil {
		return err
	}
	if from.Encoding == "" {
		return keep(m, f, at, file.Content, nil)
	}
	m.put(f, at, file.Content)
	return nil
}

func decode(content string, encoding bootstrapv1.Encoding) ([]byte, error) {
	text := []byte(content)
	if encoding == bootstrapv1.Base64 || encoding == bootstrapv1.GzipBase64 {
		var err error
		if text, err = base64.StdEncoding.DecodeString(content); err != nil {
			return nil, err
		}
	}
	if encoding == bootstrapv1.Gzip || encoding == bootstrapv1.GzipBase64 {
		return unzip(text)
	}
	return text, nil
}

// unzip unpacks no more than a whole cluster document may have.
func unzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, render.MaxCluster+1))
	if err != nil {
		return nil, err
	}
	if len(text) > render.MaxCluster {
		return nil, fmt.Errorf("it unpacks to more than %d bytes, which is more than all files together may have", render.MaxCluster)
	}
	return text, nil
}
