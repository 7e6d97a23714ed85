package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func example() Image {
	return Image{
		Files: []File{
			{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			{Name: "bin", Mode: fs.ModeSymlink | 0o777, Content: []byte("usr/bin")},
			{Name: "pause", Mode: 0o755, Content: []byte("program")},
		},
		Path:       "/usr/bin",
		Entrypoint: []string{"/pause"},
	}
}

func written(t *testing.T, image Image, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, image, names); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestWriteIsReproducible(t *testing.T) {
	reordered := example()
	slices.Reverse(reordered.Files)
	if !bytes.Equal(written(t, example(), "r/a:1"), written(t, reordered, "r/a:1")) {
		t.Error("the order of files changes the archive")
	}
}

// TestLayoutIsWhole follows every descriptor as an importer does.
func TestLayoutIsWhole(t *testing.T) {
	names := []string{"localhost/x/a:1", "localhost:5000/x/b:2"}
	files := untar(t, written(t, example(), names...))
	var i v1.Index
	decode(t, files["index.json"], &i)
	var got []string
	for _, d := range i.Manifests {
		got = append(got, d.Annotations["io.containerd.image.name"])
		var m v1.Manifest
		decode(t, blob(t, files, d), &m)
		var c v1.Image
		decode(t, blob(t, files, m.Config), &c)
		layer := untar(t, blob(t, files, m.Layers[0]))
		if c.RootFS.DiffIDs[0] != m.Layers[0].Digest || c.Config.Entrypoint[0] != "/pause" || string(layer["pause"]) != "program" {
			t.Errorf("config %+v, layer %v", c, layer)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("names: got %v", got)
	}
}

// TestArchitectures follows a layout of two architectures from its name, as a registry's client does.
func TestArchitectures(t *testing.T) {
	arm := example()
	arm.Architecture = "arm64"
	files, known, err := NewLayout([]Image{example(), arm}, []string{"r/a:1"})
	if err != nil {
		t.Fatal(err)
	}
	var top, index v1.Index
	decode(t, files["index.json"], &top)
	if len(top.Manifests) != 1 || top.Manifests[0].Digest != known || top.Manifests[0].MediaType != v1.MediaTypeImageIndex || top.Manifests[0].Annotations[v1.AnnotationRefName] != "1" {
		t.Fatalf("index.json %+v, want the digest %s", top, known)
	}
	decode(t, blob(t, files, top.Manifests[0]), &index)
	var got []string
	for _, d := range index.Manifests {
		var m v1.Manifest
		decode(t, blob(t, files, d), &m)
		var c v1.Image
		decode(t, blob(t, files, m.Config), &c)
		if c.Architecture != d.Platform.Architecture || c.OS != "linux" || d.Platform.OS != "linux" {
			t.Errorf("platform %+v of an image for %s/%s", d.Platform, c.OS, c.Architecture)
		}
		got = append(got, c.Architecture)
	}
	if !slices.Equal(got, []string{"amd64", "arm64"}) {
		t.Errorf("architectures %q", got)
	}
	if again, same, err := NewLayout([]Image{example(), arm}, []string{"r/a:1"}); err != nil || same != known || !maps.EqualFunc(again, files, bytes.Equal) {
		t.Errorf("another layout of the same images: %s, %v", same, err)
	}
	if _, _, err := NewLayout([]Image{arm}, []string{"untagged"}); err == nil {
		t.Error("a name without a tag was taken")
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Image) string{
		"name":  func(*Image) string { return "localhost:5000/untagged" },
		"path":  func(i *Image) string { i.Files[0].Name = "../up"; return "r/a:1" },
		"mode ": func(i *Image) string { i.Files[0].Mode = fs.ModeDevice; return "r/a:1" },
	} {
		image := example()
		ref := spoil(&image)
		if err := Write(io.Discard, image, []string{ref}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func blob(t *testing.T, files map[string][]byte, d v1.Descriptor) []byte {
	t.Helper()
	content := files["blobs/"+strings.Replace(d.Digest.String(), ":", "/", 1)]
	sum := sha256.Sum256(content)
	if int64(len(content)) != d.Size || "sha256:"+hex.EncodeToString(sum[:]) != d.Digest.String() {
		t.Fatalf("%s: %d bytes of another digest", d.Digest, len(content))
	}
	return content
}

func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}
