package measurements

import (
	"crypto"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/pcrs"
)

const (
	// ProvenanceType names SLSA's provenance among the predicates of in-toto statements.
	ProvenanceType = "https://slsa.dev/provenance/v1"
	// BuildType names how images are built, and with it what the parameters mean (docs/ci.md).
	BuildType = "https://github.com/hullmark/hullmark/build/v1"
	// LocalBuilder is the builder of who names none: nobody vouches for the machine.
	LocalBuilder = "https://github.com/hullmark/hullmark/builder/local"

	// MaxProvenance is the largest provenance statement that is read, in bytes.
	MaxProvenance = MaxDocument
)

// Provenance says what an image was made of, how, and by whom: an in-toto statement with SLSA's predicate
// (https://slsa.dev/spec/v1.0/provenance). It has no dates, so that the same build has the same provenance.
type Provenance struct {
	Type          string          `json:"_type"`
	Subject       []subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     BuildProvenance `json:"predicate"`
}

// BuildProvenance is SLSA's predicate.
type BuildProvenance struct {
	Definition BuildDefinition `json:"buildDefinition"`
	Run        RunDetails      `json:"runDetails"`
}

// BuildDefinition is all that decides what comes out.
type BuildDefinition struct {
	BuildType  string          `json:"buildType"`
	Parameters BuildParameters `json:"externalParameters"`
	// Dependencies are sources, lock, packages and Go modules.
	Dependencies []Resource `json:"resolvedDependencies"`
}

// BuildParameters are what a person chose: the flags of hullmark build.
type BuildParameters struct {
	ImageID           string   `json:"imageId"`
	Profiles          []string `json:"profiles"`
	WithoutKubernetes bool     `json:"withoutKubernetes"`
}

// Resource is an input with its digest (in-toto ResourceDescriptor; DigestSet v1.1 for the names of digests).
type Resource struct {
	Name        string            `json:"name,omitempty"`
	URI         string            `json:"uri,omitempty"`
	Digest      map[string]string `json:"digest,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// RunDetails say who built.
type RunDetails struct {
	Builder  ProvenanceBuilder `json:"builder"`
	Metadata *BuildMetadata    `json:"metadata,omitempty"`
}

// ProvenanceBuilder names who vouches for the provenance, by a URI, and the program that built.
type ProvenanceBuilder struct {
	ID      string            `json:"id"`
	Version map[string]string `json:"version,omitempty"`
}

// BuildMetadata names the run, as CI systems number theirs.
type BuildMetadata struct {
	InvocationID string `json:"invocationId"`
}

// NewProvenance describes how files came to be; their names and SHA-256 are in order, the disk first.
func NewProvenance(definition BuildDefinition, run RunDetails, names []string, digests []pcrs.Digest) (Provenance, error) {
	definition.BuildType = BuildType
	p := Provenance{Type: statementType, PredicateType: ProvenanceType, Predicate: BuildProvenance{definition, run}}
	for i, name := range names {
		p.Subject = append(p.Subject, subject{Name: name, Digest: map[string]pcrs.Digest{"sha256": digests[i]}})
	}
	return p, p.check()
}

// PackageResource is a locked package as an input.
func PackageResource(p lock.Package) Resource {
	return Resource{Name: string(p.Set) + "/" + p.Name, URI: p.PURL(), Digest: map[string]string{"sha256": p.SHA256}}
}

func (p Provenance) check() error {
	switch {
	case p.Type != statementType || p.PredicateType != ProvenanceType:
		return fmt.Errorf("%.80q of %.80q, want %q of %q", p.PredicateType, p.Type, ProvenanceType, statementType)
	case p.Predicate.Definition.BuildType != BuildType:
		return fmt.Errorf("build type %.80q, want %q", p.Predicate.Definition.BuildType, BuildType)
	case p.Predicate.Run.Builder.ID == "":
		return errors.New("no builder")
	case len(p.Subject) == 0:
		return errors.New("no subject")
	}
	for _, s := range p.Subject {
		if len(s.Digest["sha256"]) != 32 {
			return fmt.Errorf("subject %.80q has no SHA-256", s.Name)
		}
	}
	return nil
}

// Disk is the SHA-256 of the disk that it is about.
func (p Provenance) Disk() pcrs.Digest { return p.Subject[0].Digest["sha256"] }

// Lock is the SHA-256 of the lock that was built from, or empty.
func (p Provenance) Lock() string {
	for _, r := range p.Predicate.Definition.Dependencies {
		if r.Name == LockName {
			return r.Digest["sha256"]
		}
	}
	return ""
}

// Commit is the commit of the sources, and whether they differed from it; empty where there was no repository.
func (p Provenance) Commit() (commit string, changed bool) {
	for _, r := range p.Predicate.Definition.Dependencies {
		if r.Name == SourcesName {
			return r.Digest["gitCommit"], r.Annotations["changed"] != ""
		}
	}
	return "", false
}

// SourcesName is the name of the sources among them.
const SourcesName = "sources"

// LockName is the name of the lock among a provenance's dependencies, whatever its file is called.
const LockName = "hullmark.lock"

// Encode returns the one form of p that ParseProvenance reads.
func (p Provenance) Encode() ([]byte, error) { return hullmark.CanonicalJSON(p) }

// ParseProvenance strictly reads what Encode wrote, of at most MaxProvenance bytes.
func ParseProvenance(encoded []byte) (Provenance, error) {
	var p Provenance
	if err := strict(encoded, MaxProvenance, &p); err != nil {
		return Provenance{}, fmt.Errorf("provenance: %w", err)
	}
	if err := errors.Join(p.check(), hullmark.CheckCanonicalJSON(encoded, p)); err != nil {
		return Provenance{}, fmt.Errorf("provenance: %w", err)
	}
	return p, nil
}

// SignProvenance puts p into a DSSE envelope, as Sign does with a document.
func SignProvenance(signer crypto.Signer, p Provenance) ([]byte, error) {
	payload, err := p.Encode()
	if err != nil {
		return nil, fmt.Errorf("sign provenance: %w", err)
	}
	return seal(signer, payload, "sign provenance")
}

// OpenProvenance returns the provenance in an envelope that public signed, as Open does with a document. Whether it is about an
// image that one has, the caller compares.
func OpenProvenance(signed []byte, public crypto.PublicKey) (Provenance, error) {
	payload, err := unseal(signed, public)
	if err != nil {
		return Provenance{}, fmt.Errorf("open signed provenance: %w", err)
	}
	p, err := ParseProvenance(payload)
	if err != nil {
		return Provenance{}, fmt.Errorf("open signed provenance: %w", err)
	}
	return p, nil
}

// CheckProvenance says why p is not the provenance of d's image, or nil.
func (d Document) CheckProvenance(p Provenance) error {
	if !p.Disk().Equal(d.Image.Disk) {
		return fmt.Errorf("the provenance is about a disk with sha256 %v, the document about %v", p.Disk(), d.Image.Disk)
	}
	if len(d.Lock) > 0 && p.Lock() != d.Lock.String() {
		return fmt.Errorf("the provenance names the lock %.80q, the document %v", p.Lock(), d.Lock)
	}
	return nil
}
