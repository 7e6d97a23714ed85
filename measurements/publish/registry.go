package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/hullmark/hullmark/internal/remotefile"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// What a release is called in a registry.
const (
	imageArtifact    = "application/vnd.hullmark.image.v1"
	diskLayer        = "application/vnd.hullmark.disk.v1+raw"
	documentArtifact = "application/vnd.hullmark.measurement.v1"
	envelopeLayer    = "application/vnd.dsse.envelope.v1+json"
	// provenanceArtifact is a signed provenance; its layer is an envelope, as a document's.
	provenanceArtifact = "application/vnd.hullmark.provenance.v1"
	// documentTag and a document's digest are the tag that leads to it; documentOfTag and the image's tag lead to the document that was
	// published last. What else refers to an image may be anybody's who writes no tags.
	documentTag   = "document-"
	documentOfTag = "document-of-"
	latestTag     = "latest"
	maxTag        = 128 - len(documentOfTag)
)

// Limits of what a registry may say.
const (
	maxManifest      = 1 << 20 // bytes
	maxReferrers     = 32      // that are looked at
	maxReferrerPages = 8
	// uploadTimeout is how long a registry may think about what it was given.
	uploadTimeout = 5 * time.Minute
)

// Registry is a repository of an OCI registry (distribution-spec 1.1), by the address oci://HOST/NAME:TAG; without a tag it is latest.
// Credential returns what to log in with, if the registry wants it; it may be nil.
//
// The tag leads to the image, an artifact whose one layer is the disk. Documents and SBOMs are artifacts that refer to it; a document
// also has the tag document-DIGEST, and the one that was published last document-of-TAG. Only a registry on this machine is spoken to
// without TLS. Blobs may be redirected to another host by https, because registries keep them in object stores, and are held by their
// digest; nothing else may.
func Registry(address string, credential auth.CredentialFunc) (Store, error) {
	name, ok := strings.CutPrefix(address, "oci://")
	reference, err := registry.ParseReference(name)
	if err != nil || !ok || strings.Contains(name, "@") {
		return nil, errors.Join(fmt.Errorf("registry %.200q: want an address oci://HOST/NAME:TAG", address), err)
	}
	tag := reference.Reference
	if tag == "" {
		tag = latestTag
	}
	if len(tag) > maxTag {
		return nil, fmt.Errorf("registry %.200q: want a tag of at most %d characters", address, maxTag)
	}
	reference.Reference = ""
	here := remotefile.IsHere(reference.Host())
	transport := remotefile.Private{RoundTripper: remotefile.NewTransport(uploadTimeout), Here: here}
	client := &auth.Client{
		Client:     &http.Client{Transport: remotefile.Patient{RoundTripper: transport}, CheckRedirect: remotefile.BlobsMayMove},
		Credential: credential, Cache: auth.NewCache(), ClientID: "hullmark",
	}
	return &ociPlace{
		repository: &remote.Repository{
			Reference: reference, Client: client, PlainHTTP: here, ReferrerListMaxPages: maxReferrerPages, SkipReferrersGC: true,
		},
		client: client, tag: tag,
	}, nil
}

type ociPlace struct {
	repository *remote.Repository
	client     *auth.Client
	tag        string
}

// check is Store's.
func (p *ociPlace) check(r release) error {
	if len(r.files) == 0 || r.files[0].kind != imageKind {
		return errors.New("a document in a registry refers to its image: name the image, too")
	}
	return nil
}

func (p *ociPlace) put(ctx context.Context, r release) error {
	image, err := p.putFile(ctx, r.files[0], imageArtifact, imageKind.media, r.document.Image.ID, nil)
	if err != nil {
		return err
	}
	for _, f := range r.files[1:] {
		if _, err := p.putFile(ctx, f, f.media, f.media, r.document.Image.ID, &image); err != nil {
			return err
		}
	}
	if len(r.provenance) > 0 {
		name := r.document.Image.ID + provenanceEnding
		if _, err := p.putEnvelope(ctx, r.provenance, provenanceArtifact, measurements.ProvenanceType, name, "", image); err != nil {
			return err
		}
	}
	// A registry has no way to write a tag only if it is as it was. So what was published meanwhile is looked for as late as can be.
	signed, err := r.withPublished(ctx, p)
	if err != nil {
		return err
	}
	document, err := p.putEnvelope(ctx, signed, documentArtifact, measurements.PredicateType, r.document.Image.ID+".dsse", documentTag+r.id.String(), image)
	if err != nil {
		return err
	}
	if err := p.repository.Tag(ctx, image, p.tag); err != nil {
		return err
	}
	return p.repository.Tag(ctx, document, documentOfTag+p.tag)
}

// putFile stores a file as the one layer of an artifact that may refer to another.
func (p *ociPlace) putFile(ctx context.Context, f file, artifactType, mediaType, name string, subject *ocispec.Descriptor) (ocispec.Descriptor, error) {
	var none ocispec.Descriptor
	in, err := os.Open(f.path)
	if err != nil {
		return none, err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return none, err
	}
	layer := ocispec.Descriptor{
		MediaType: mediaType, Digest: digest.NewDigestFromEncoded(digest.SHA256, f.digest.String()), Size: info.Size(),
		Annotations: map[string]string{ocispec.AnnotationTitle: name + f.ending},
	}
	if err := p.putBlob(ctx, layer, in); err != nil {
		return none, err
	}
	return p.putManifest(ctx, artifact(artifactType, layer, subject), "")
}

// putEnvelope stores a signed statement as an artifact that refers to the image, under a tag if there is one.
func (p *ociPlace) putEnvelope(ctx context.Context, signed []byte, artifactType, predicateType, name, tag string, image ocispec.Descriptor) (ocispec.Descriptor, error) {
	layer := content.NewDescriptorFromBytes(envelopeLayer, signed)
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: name}
	if err := p.putBlob(ctx, layer, bytes.NewReader(signed)); err != nil {
		return ocispec.Descriptor{}, err
	}
	m := artifact(artifactType, layer, &image)
	m.Annotations = map[string]string{"predicateType": predicateType}
	return p.putManifest(ctx, m, tag)
}

// artifact is a manifest around one layer (image-spec 1.1, "Guidelines for Artifact Usage"). It says nothing of when it was
// made, so the same content is the same manifest. The type is the configuration's, too, where registries of before 1.1 look for
// it.
func artifact(artifactType string, layer ocispec.Descriptor, subject *ocispec.Descriptor) ocispec.Manifest {
	config := content.NewDescriptorFromBytes(artifactType, ocispec.DescriptorEmptyJSON.Data)
	return ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType,
		Config: config, Layers: []ocispec.Descriptor{layer}, Subject: subject,
	}
}

// putManifest stores a manifest, under a tag if there is one.
func (p *ociPlace) putManifest(ctx context.Context, m ocispec.Manifest, tag string) (ocispec.Descriptor, error) {
	var none ocispec.Descriptor
	if err := p.putBlob(ctx, m.Config, bytes.NewReader(ocispec.DescriptorEmptyJSON.Data)); err != nil {
		return none, err
	}
	encoded, err := json.Marshal(m)
	if err != nil {
		return none, err
	}
	d := content.NewDescriptorFromBytes(m.MediaType, encoded)
	if tag == "" {
		err = p.repository.Push(ctx, d, bytes.NewReader(encoded))
	} else {
		err = p.repository.PushReference(ctx, d, bytes.NewReader(encoded), tag)
	}
	// A reference to it holds no more than this.
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, err
}

func (p *ociPlace) putBlob(ctx context.Context, d ocispec.Descriptor, in io.Reader) error {
	there, err := p.repository.Blobs().Exists(ctx, d)
	if err != nil || there {
		return err
	}
	return p.repository.Blobs().Push(ctx, d, in)
}

func (p *ociPlace) document(ctx context.Context, reference string) ([]byte, error) {
	tag := documentOfTag + p.tag
	if digestForm.MatchString(reference) {
		tag = documentTag + reference
	}
	found, err := p.repository.Resolve(ctx, tag)
	if err != nil {
		return nil, fmt.Errorf("tag %s: %w", tag, err)
	}
	signed, err := p.envelope(ctx, found)
	if err != nil {
		return nil, fmt.Errorf("tag %s leads to no document: %w", tag, err)
	}
	return signed, nil
}

// provenances looks at the image that the tag leads to; whether it has that disk, the provenance says.
func (p *ociPlace) provenances(ctx context.Context, _ pcrs.Digest) ([][]byte, error) {
	image, err := p.repository.Resolve(ctx, p.tag)
	if err != nil {
		return nil, fmt.Errorf("tag %s: %w", p.tag, err)
	}
	artifacts, err := p.referrers(ctx, image, provenanceArtifact)
	if err != nil {
		return nil, err
	}
	signed, err := p.envelopes(ctx, artifacts)
	if len(signed) == 0 {
		return nil, errors.Join(err, fmt.Errorf("tag %s leads to no provenance", p.tag))
	}
	return signed, nil
}

// envelopes reads those of artifacts that can be read, and says what is wrong with the others.
func (p *ociPlace) envelopes(ctx context.Context, artifacts []ocispec.Descriptor) ([][]byte, error) {
	var signed [][]byte
	var errs []error
	for _, a := range artifacts {
		envelope, err := p.envelope(ctx, a)
		if err != nil {
			errs = append(errs, fmt.Errorf("artifact %.80s: %w", a.Digest, err))
			continue
		}
		signed = append(signed, envelope)
	}
	return signed, errors.Join(errs...)
}

// referrers lists the artifacts of a type that refer to an image, the first ones that the registry names: anybody may have put more there.
func (p *ociPlace) referrers(ctx context.Context, image ocispec.Descriptor, artifactType string) ([]ocispec.Descriptor, error) {
	var all []ocispec.Descriptor
	err := p.repository.Referrers(ctx, image, artifactType, func(some []ocispec.Descriptor) error {
		if all = append(all, some...); len(all) >= maxReferrers {
			all = all[:maxReferrers]
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return all, err
}

// envelope reads the one layer of an artifact, which is held by its digest.
func (p *ociPlace) envelope(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	if d.MediaType != ocispec.MediaTypeImageManifest || d.Size > maxManifest {
		return nil, fmt.Errorf("a %.80q of %d bytes, want a manifest of at most %d", d.MediaType, d.Size, maxManifest)
	}
	encoded, err := content.FetchAll(ctx, p.repository.Manifests(), d)
	if err != nil {
		return nil, err
	}
	var m ocispec.Manifest // read as OCI wants it, unknown fields and all: it decides nothing
	if err := json.Unmarshal(encoded, &m); err != nil {
		return nil, err
	}
	if len(m.Layers) != 1 || m.Layers[0].MediaType != envelopeLayer || m.Layers[0].Size > measurements.MaxEnvelope {
		return nil, fmt.Errorf("want one layer, a %s of at most %d bytes", envelopeLayer, measurements.MaxEnvelope)
	}
	return content.FetchAll(ctx, p.repository.Blobs(), m.Layers[0])
}

func (p *ociPlace) content(ctx context.Context, k kind, sum pcrs.Digest, offset, n int64) (io.ReadCloser, error) {
	blob := digest.NewDigestFromEncoded(digest.SHA256, sum.String())
	rest := n < 0
	if rest {
		d, err := p.repository.Blobs().Resolve(ctx, blob.String())
		if errors.Is(err, errdef.ErrNotFound) {
			return nil, fmt.Errorf("the registry has no %s %v", k.what, sum)
		}
		if err != nil {
			return nil, err
		}
		if offset >= d.Size {
			return http.NoBody, nil
		}
		if offset > 0 {
			n = d.Size - offset // Not every registry knows ranges without an end.
		}
	}
	reference := p.repository.Reference
	scheme := "https"
	if p.repository.PlainHTTP {
		scheme = "http"
	}
	address := scheme + "://" + reference.Host() + "/v2/" + reference.Repository + "/blobs/" + blob.String()
	return get(auth.AppendRepositoryScope(ctx, reference, auth.ActionPull), p.client, address, offset, n, rest)
}

// Blob fetches what a repository of a registry, by the address oci://HOST/NAME:TAG, keeps under a digest, of at most limit bytes. The
// tag is for people: the digest alone decides. Credential is as for Registry.
func Blob(ctx context.Context, address string, credential auth.CredentialFunc, sum pcrs.Digest, limit int64) ([]byte, error) {
	place, err := Registry(address, credential)
	if err != nil {
		return nil, err
	}
	in, err := place.content(ctx, kind{what: "blob", limit: limit}, sum, 0, -1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	var out bytes.Buffer
	_, err = io.Copy(&out, io.LimitReader(in, limit+1))
	if err == nil && int64(out.Len()) > limit {
		err = fmt.Errorf("it is longer than %d bytes", limit)
	}
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if got := sha256.Sum256(out.Bytes()); !sum.Equal(got[:]) {
		return nil, fmt.Errorf("%s: wanted is the blob with sha256 %v, the registry gave %x", address, sum, got)
	}
	return out.Bytes(), nil
}
