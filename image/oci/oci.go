// Package oci writes a container image as an archive that a container runtime imports: an OCI image layout (image-spec v1.1,
// image-layout.md) in a tar file. One image may stand in it under several names. The same image and names give the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// File is one entry of an image's only layer. Name is relative, with slashes. Content is a regular file's bytes or a symbolic
// link's target. Owner is root.
type File struct {
	Name    string
	Mode    fs.FileMode
	Content []byte
}

// Image is a linux/amd64 image of one layer.
type Image struct {
	// Files are written in the order of their names.
	Files []File
	// Path is the value of $PATH in a container.
	Path string
	// Entrypoint is the command of a container that names none.
	Entrypoint []string
	// User is the UID:GID of a container that names none; empty means root.
	User string
	// Env are further variables, as NAME=VALUE.
	Env []string
}

// Write writes image to w under every one of names, which are whole references: registry/repository:tag.
func Write(w io.Writer, image Image, names []string) error {
	layer, err := layerOf(image.Files)
	if err != nil {
		return fmt.Errorf("write image: layer: %w", err)
	}
	a := archive{}
	stored := a.add(v1.MediaTypeImageLayer, layer)
	config, err := json.Marshal(configOf(image, stored.Digest))
	if err != nil {
		return fmt.Errorf("write image: config: %w", err)
	}
	manifest, err := json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    a.add(v1.MediaTypeImageConfig, config),
		Layers:    []v1.Descriptor{stored},
	})
	if err != nil {
		return fmt.Errorf("write image: manifest: %w", err)
	}
	index, err := indexOf(a.add(v1.MediaTypeImageManifest, manifest), names)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	a[v1.ImageIndexFile], a[v1.ImageLayoutFile] = index, []byte(`{"imageLayoutVersion":"`+v1.ImageLayoutVersion+`"}`)
	return a.write(w)
}

// configOf needs the digest of the uncompressed layer, which is how the layer is stored: what holds the archive is compressed already.
func configOf(image Image, layer digest.Digest) v1.Image {
	return v1.Image{
		Platform: v1.Platform{Architecture: "amd64", OS: "linux"},
		Config: v1.ImageConfig{
			User:       image.User,
			Env:        append([]string{"PATH=" + image.Path}, image.Env...),
			Entrypoint: image.Entrypoint,
		},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{layer}},
	}
}

// indexOf names the manifest in both ways that importers know: containerd's annotation is the whole reference, the
// specification's is the tag.
func indexOf(m v1.Descriptor, names []string) ([]byte, error) {
	i := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, name := range names {
		repository, tag, tagged := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
		if !tagged || repository == "" || tag == "" {
			return nil, fmt.Errorf("name %q: want registry/repository:tag", name)
		}
		m.Annotations = map[string]string{"io.containerd.image.name": name, v1.AnnotationRefName: tag}
		i.Manifests = append(i.Manifests, m)
	}
	return json.Marshal(i)
}

func layerOf(files []File) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if !fs.ValidPath(f.Name) {
			return nil, fmt.Errorf("file %q: want a relative path without empty, single-dot or double-dot elements", f.Name)
		}
		if err := addFile(w, f); err != nil {
			return nil, fmt.Errorf("file %s: %w", f.Name, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func addFile(w *tar.Writer, f File) error {
	h := tar.Header{Name: f.Name, Mode: int64(f.Mode.Perm()), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch f.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, f.Name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(f.Content)
	case 0:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Content))
	default:
		return fmt.Errorf("mode %s: want a file, a folder or a symbolic link", f.Mode)
	}
	if err := w.WriteHeader(&h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	_, err := w.Write(f.Content)
	return err
}

// archive maps the names of a layout's files to their content.
type archive map[string][]byte

// add stores content as a blob and describes it.
func (a archive) add(mediaType string, content []byte) v1.Descriptor {
	d := digest.FromBytes(content)
	a[v1.ImageBlobsDir+"/sha256/"+d.Encoded()] = content
	return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}
}

func (a archive) write(w io.Writer) error {
	var names []string
	for name := range a {
		names = append(names, name)
	}
	slices.Sort(names)
	out := tar.NewWriter(w)
	for _, name := range names {
		if err := addFile(out, File{Name: name, Mode: 0o644, Content: a[name]}); err != nil {
			return fmt.Errorf("write image: %s: %w", name, err)
		}
	}
	return out.Close()
}
