// Package oci writes a container image as an archive that a container runtime imports: an OCI image layout (image-spec v1.1,
// image-layout.md) in a tar file; or one of several architectures as a layout. One image may stand in it under several names. The same
// image and names give the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
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

// Image is an image of one layer, for Linux.
type Image struct {
	// Architecture is as Go calls it; empty means amd64.
	Architecture string
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
	a := Layout{}
	manifest, err := a.addImage(image)
	if err == nil {
		err = a.finish(manifest, names)
	}
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return a.write(w)
}

// NewLayout returns the layout of one image that there is for several architectures, under every one of names, and the digest by which
// registries know it: that of the index of its architectures.
func NewLayout(images []Image, names []string) (Layout, digest.Digest, error) {
	a := Layout{}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, image := range images {
		manifest, err := a.addImage(image)
		if err != nil {
			return nil, "", fmt.Errorf("layout of image: %w", err)
		}
		manifest.Platform = new(platformOf(image))
		index.Manifests = append(index.Manifests, manifest)
	}
	text, err := json.Marshal(index)
	if err != nil {
		return nil, "", fmt.Errorf("layout of image: index: %w", err)
	}
	stored := a.add(v1.MediaTypeImageIndex, text)
	if err := a.finish(stored, names); err != nil {
		return nil, "", fmt.Errorf("layout of image: %w", err)
	}
	return a, stored.Digest, nil
}

// addImage stores an image, and describes its manifest.
func (a Layout) addImage(image Image) (d v1.Descriptor, err error) {
	layer, err := layerOf(image.Files)
	if err != nil {
		return d, fmt.Errorf("layer: %w", err)
	}
	stored := a.add(v1.MediaTypeImageLayer, layer)
	config, err := json.Marshal(configOf(image, stored.Digest))
	if err != nil {
		return d, fmt.Errorf("config: %w", err)
	}
	manifest, err := json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    a.add(v1.MediaTypeImageConfig, config),
		Layers:    []v1.Descriptor{stored},
	})
	if err != nil {
		return d, fmt.Errorf("manifest: %w", err)
	}
	return a.add(v1.MediaTypeImageManifest, manifest), nil
}

// finish adds what makes blobs a layout, in which d has names.
func (a Layout) finish(d v1.Descriptor, names []string) error {
	index, err := indexOf(d, names)
	if err != nil {
		return err
	}
	a[v1.ImageIndexFile], a[v1.ImageLayoutFile] = index, []byte(`{"imageLayoutVersion":"`+v1.ImageLayoutVersion+`"}`)
	return nil
}

func platformOf(image Image) v1.Platform {
	return v1.Platform{Architecture: cmp.Or(image.Architecture, "amd64"), OS: "linux"}
}

// configOf needs the digest of the uncompressed layer, which is how the layer is stored: what holds the archive is compressed already.
func configOf(image Image, layer digest.Digest) v1.Image {
	return v1.Image{
		Platform: platformOf(image),
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

// Layout is an OCI image layout: the names of its files, and their content.
type Layout map[string][]byte

// add stores content as a blob and describes it.
func (a Layout) add(mediaType string, content []byte) v1.Descriptor {
	d := digest.FromBytes(content)
	a[v1.ImageBlobsDir+"/sha256/"+d.Encoded()] = content
	return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}
}

func (a Layout) write(w io.Writer) error {
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
