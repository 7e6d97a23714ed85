// Package publish publishes signed measurement documents, with the images and the
// SBOMs that they name, and fetches them again: in a folder, from a
// tree that a web server shows, or in an OCI registry. Whoever serves is not
// trusted: nothing is handed on that the key did not sign.
package publish

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"

	"oras.land/oras-go/v2/errdef"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Limits of what is fetched, in bytes.
const (
	MaxImage = 16 << 30
)

var (
	digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	nameForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
)

// Source is where releases are fetched from.
type Source interface {
	// document returns the signed document that reference, a name or a digest, leads to; it may be anything.
	document(ctx context.Context, reference string) ([]byte, error)
	// content reads a file of the kind: n bytes from an offset on, or all that follow if n is negative. The former is errWhole of a
	// source that gives whole files alone.
	content(ctx context.Context, k kind, digest pcrs.Digest, offset, n int64) (io.ReadCloser, error)
	// provenances returns the signed provenances of the image with that disk; they may be anything.
	provenances(ctx context.Context, disk pcrs.Digest) ([][]byte, error)
}

// Store is a source where releases are published, too.
type Store interface {
	Source
	// check says why a release cannot be published there.
	check(r release) error
	// put publishes a release. What leads to the document comes last, when everything that it names is there; the document is written
	// with the signatures that are published by then (release.withPublished).
	put(ctx context.Context, r release) error
}

// kind is what a document names by digest, beside itself.
type kind struct {
	what, ending string
	// media is the type that a registry knows it by.
	media string
	limit int64
}

var (
	imageKind     = kind{"disk", lock.DiskEnding, diskLayer, MaxImage}
	sbomKind      = kind{"SBOM", lock.SPDXEnding, "application/spdx+json", lock.MaxSBOM}
	cycloneDXKind = kind{"CycloneDX SBOM", lock.CycloneDXEnding, "application/vnd.cyclonedx+json", lock.MaxSBOM}
)

// release is what is published together.
type release struct {
	document measurements.Document
	id       measurements.DocumentID
	// signed is by key, and by others perhaps.
	signed []byte
	key    crypto.PublicKey
	files  []file
	// provenance is signed, or empty.
	provenance []byte
}

// file is one that the document names by digest.
type file struct {
	kind
	path   string
	digest pcrs.Digest
}

// Files are what is published beside a document; each may be empty. The provenance is a signed one.
type Files struct{ Image, SBOM, CycloneDX, Provenance string }

// Release publishes a signed document, and the files that are named with it. All of them have to be what key signed. Signatures of the same
// document that others made and that are published there already stay.
func Release(ctx context.Context, to Store, signed []byte, key crypto.PublicKey, files Files) error {
	p, err := Prepare(ctx, to, signed, key, files)
	if err != nil {
		return err
	}
	return p.Publish(ctx)
}

// Prepared is a release against which nothing was found.
type Prepared struct {
	to      Store
	release release
}

// Prepare checks all that Release does, and writes nothing: for who does something between that cannot be undone.
func Prepare(ctx context.Context, to Store, signed []byte, key crypto.PublicKey, files Files) (Prepared, error) {
	r, err := newRelease(signed, key, files)
	if err == nil {
		err = to.check(r)
	}
	if err == nil {
		_, err = r.withPublished(ctx, to)
	}
	for _, f := range r.files {
		if err == nil {
			err = f.copyTo(io.Discard)
		}
	}
	if err != nil {
		return Prepared{}, fmt.Errorf("publish: %w", err)
	}
	return Prepared{to, r}, nil
}

// Publish publishes what was prepared.
func (p Prepared) Publish(ctx context.Context) error {
	if err := p.to.put(ctx, p.release); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// newRelease makes sure that all is what key signed, but for the content of files.
func newRelease(signed []byte, key crypto.PublicKey, files Files) (release, error) {
	document, err := measurements.Open(signed, key)
	if err != nil {
		return release{}, err
	}
	if !nameForm.MatchString(document.Image.ID) {
		return release{}, fmt.Errorf("the image's name %.80q cannot be a file's", document.Image.ID)
	}
	for _, register := range document.Registers {
		if slices.ContainsFunc(register.Events, func(e measurements.Event) bool { return e.Origin == pcrs.Node }) {
			return release{}, fmt.Errorf("%v holds the configuration of one node; measure the image without one", register.Register)
		}
	}
	id, err := document.Digest()
	if err != nil {
		return release{}, err
	}
	r := release{document: document, id: id, signed: signed, key: key}
	if files.Image != "" {
		r.files = append(r.files, file{imageKind, files.Image, document.Image.Disk})
	}
	for _, sbom := range []file{{sbomKind, files.SBOM, document.SBOM}, {cycloneDXKind, files.CycloneDX, document.CycloneDX}} {
		if sbom.path == "" {
			continue
		}
		if len(sbom.digest) == 0 {
			return release{}, fmt.Errorf("%s: the document names no %s", sbom.path, sbom.what)
		}
		r.files = append(r.files, sbom)
	}
	if files.Provenance != "" {
		if r.provenance, err = readProvenance(files.Provenance, document, key); err != nil {
			return release{}, fmt.Errorf("%s: %w", files.Provenance, err)
		}
	}
	return r, nil
}

// withPublished returns the signed document with the signatures of others that are published with it already. What is there and about
// anything else is replaced.
func (r release) withPublished(ctx context.Context, at Source) ([]byte, error) {
	there, err := at.document(ctx, r.id.String())
	if isAbsent(err) {
		return r.signed, nil
	}
	if err != nil {
		return nil, fmt.Errorf("what is published there of the document: %w", err)
	}
	merged, err := measurements.MergeOthers(r.signed, there, r.key)
	if errors.Is(err, measurements.ErrTooMuchSigned) {
		return nil, fmt.Errorf("with those that are published there: %w; remove that file first if some are of no use", err)
	}
	if err != nil {
		return r.signed, nil
	}
	return merged, nil
}

// isAbsent tells whether a source does not have what it was asked for.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errdef.ErrNotFound)
}

func readProvenance(path string, document measurements.Document, key crypto.PublicKey) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	signed, err := io.ReadAll(io.LimitReader(in, measurements.MaxEnvelope+1))
	if err != nil {
		return nil, err
	}
	return signed, checkProvenance(signed, document, key)
}

// checkProvenance makes sure that key signed a provenance of the document's image.
func checkProvenance(signed []byte, document measurements.Document, key crypto.PublicKey) error {
	p, err := measurements.OpenProvenance(signed, key)
	if err != nil {
		return err
	}
	return document.CheckProvenance(p)
}

// copyTo copies the file while it is hashed, and fails if it is not what was signed.
func (f file) copyTo(w io.Writer) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(in, f.limit+1))
	if err != nil {
		return err
	}
	if n > f.limit {
		return fmt.Errorf("%s: a %s has at most %d bytes, or nobody could fetch it", f.path, f.what, f.limit)
	}
	if got := h.Sum(nil); !f.digest.Equal(got) {
		return fmt.Errorf("%s: signed is a %s with sha256 %v, this one has %x", f.path, f.what, f.digest, got)
	}
	return nil
}

// Fetch returns the document that reference names, an image's name or a
// document's digest, with the bytes that were signed. The document is checked as
// measurements.Open does, has to be the one that was asked for, and may not have
// a security version below minimum: a name says nothing of which release it leads to.
func Fetch(ctx context.Context, from Source, reference string, key crypto.PublicKey, minimum uint32) ([]byte, measurements.Document, error) {
	var none measurements.Document
	if !digestForm.MatchString(reference) && !nameForm.MatchString(reference) {
		return nil, none, fmt.Errorf("fetch %.80q: want an image's name or a document's digest", reference)
	}
	signed, err := from.document(ctx, reference)
	if err != nil {
		return nil, none, fmt.Errorf("fetch %s: %w", reference, err)
	}
	d, err := open(signed, reference, key, minimum)
	if err != nil {
		return nil, none, fmt.Errorf("fetch %s: %w", reference, err)
	}
	return signed, d, nil
}

// open opens a document that has to be the one that is meant.
func open(signed []byte, reference string, key crypto.PublicKey, minimum uint32) (measurements.Document, error) {
	d, err := measurements.Open(signed, key)
	if err != nil {
		return d, err
	}
	id, err := d.Digest()
	if err != nil {
		return d, err
	}
	if reference != id.String() && reference != d.Image.ID {
		return d, fmt.Errorf("the source gave the document %v of image %.80q instead", id, d.Image.ID)
	}
	if d.SVN < minimum {
		return d, fmt.Errorf("its security version is %d, wanted is at least %d: the source shows an old release", d.SVN, minimum)
	}
	return d, nil
}

// FetchImage fetches a document's image into the file to, which has its name
// only when its content is what was signed. What an interrupted fetch left in
// to.part is gone on with. What is zero between the parts of a disk is not fetched, where the source gives parts of files. Progress is told
// how many bytes are there; it may be nil.
func FetchImage(ctx context.Context, from Source, d measurements.Document, to string, progress func(done int64)) error {
	return fetchFile(ctx, from, file{imageKind, to, d.Image.Disk}, progress)
}

// FetchSBOM fetches a document's SBOM as FetchImage fetches its image.
func FetchSBOM(ctx context.Context, from Source, d measurements.Document, to string) error {
	return fetchSBOM(ctx, from, file{sbomKind, to, d.SBOM})
}

// FetchCycloneDX fetches a document's SBOM in CycloneDX's form.
func FetchCycloneDX(ctx context.Context, from Source, d measurements.Document, to string) error {
	return fetchSBOM(ctx, from, file{cycloneDXKind, to, d.CycloneDX})
}

func fetchSBOM(ctx context.Context, from Source, f file) error {
	if len(f.digest) == 0 {
		return fmt.Errorf("fetch %s: the document names none", f.what)
	}
	return fetchFile(ctx, from, f, nil)
}

// FetchProvenance returns a provenance of a document's image that key signed. Others may have put theirs beside it.
func FetchProvenance(ctx context.Context, from Source, d measurements.Document, key crypto.PublicKey) ([]byte, error) {
	candidates, err := from.provenances(ctx, d.Image.Disk)
	if err != nil {
		return nil, fmt.Errorf("fetch provenance: %w", err)
	}
	refused := []error{errors.New("none that is there will do")}
	for _, signed := range candidates {
		if err = checkProvenance(signed, d, key); err == nil {
			return signed, nil
		}
		refused = append(refused, err)
	}
	return nil, fmt.Errorf("fetch provenance: %w", errors.Join(refused...))
}
