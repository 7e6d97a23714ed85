package lock

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark"
)

const (
	spdxNamespace   = "https://github.com/hullmark/hullmark/sbom/"
	spdxDocumentRef = "SPDXRef-DOCUMENT"
	spdxUnsaid      = "NOASSERTION"
	spdxImage       = "SPDXRef-Image"
)

// The parts of an SPDX 2.3 document (spec, clauses 6, 7 and 11; JSON names from its schema) that are written here.
type (
	spdxDocument struct {
		SPDXID        string             `json:"SPDXID"`
		Version       string             `json:"spdxVersion"`
		DataLicense   string             `json:"dataLicense"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Comment       string             `json:"comment"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string          `json:"SPDXID"`
		Name             string          `json:"name"`
		Version          string          `json:"versionInfo"`
		FileName         string          `json:"packageFileName,omitempty"`
		Supplier         string          `json:"supplier"`
		DownloadLocation string          `json:"downloadLocation"`
		FilesAnalyzed    bool            `json:"filesAnalyzed"`
		Checksums        []spdxChecksum  `json:"checksums,omitempty"`
		SourceInfo       string          `json:"sourceInfo,omitempty"`
		Comment          string          `json:"comment,omitempty"`
		References       []spdxReference `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

// SPDX returns the SBOM of an image in SPDX 2.3's JSON form. It depends on l and c alone: its date is the lock's, and its namespace is made
// of its content.
func (l Lock) SPDX(c Contents) ([]byte, error) {
	image := spdxPackage{
		SPDXID: spdxImage, Name: c.ID, Version: c.Version, FileName: c.ID + DiskEnding, Supplier: spdxUnsaid, DownloadLocation: spdxUnsaid,
		Comment: c.comment(),
	}
	d := l.describe(c.ID+"-"+c.Version, image)
	d.Comment = "Made from the locked package set, and from what the Go programs say that they were compiled of."
	for _, in := range l.contained(c) {
		d.contain(image, in.spdx())
	}
	return d.named()
}

// describe begins an SBOM about one thing, with the lock's date.
func (l Lock) describe(name string, what spdxPackage) spdxDocument {
	return spdxDocument{
		SPDXID: spdxDocumentRef, Version: "SPDX-2.3", DataLicense: "CC0-1.0", Name: name,
		Creation:      spdxCreation{l.date(), []string{"Tool: hullmark"}},
		Packages:      []spdxPackage{what},
		Relationships: []spdxRelationship{{spdxDocumentRef, "DESCRIBES", what.SPDXID}},
	}
}

func (d *spdxDocument) contain(in, p spdxPackage) {
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, spdxRelationship{in.SPDXID, "CONTAINS", p.SPDXID})
}

// named encodes an SBOM under a namespace that is made of its content.
func (d spdxDocument) named() ([]byte, error) {
	text, err := encodeSPDX(d)
	if err != nil {
		return nil, fmt.Errorf("write SBOM: %w", err)
	}
	sum := sha256.Sum256(text)
	d.Namespace = spdxNamespace + hex.EncodeToString(sum[:])
	return encodeSPDX(d)
}

// encodeSPDX encodes an SBOM. Measurement documents name the digest of these bytes, so no other file shares this form.
func encodeSPDX(d spdxDocument) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.Bytes(), err
}

func (c component) spdx() spdxPackage {
	p := spdxPackage{
		SPDXID: "SPDXRef-Package-" + c.id(), Name: c.name, Version: c.version, FileName: c.file, Supplier: spdxUnsaid, DownloadLocation: spdxUnsaid,
		SourceInfo: c.source, Comment: c.comment, References: []spdxReference{{"PACKAGE-MANAGER", "purl", c.purl}},
	}
	if c.sha256 != "" {
		p.Checksums = []spdxChecksum{{"SHA256", c.sha256}}
	}
	if c.supplier != "" {
		p.Supplier = "Organization: " + c.supplier
	}
	return p
}

// Listed is something that an SBOM lists: a package by name and architecture or a module by its path, at a version.
type Listed struct{ Name, Version string }

// maxListed is how many things are read of an SBOM.
const maxListed = 1 << 16

// ReadSPDX returns what an SBOM that SPDX wrote lists, and the root hash in hex of the image that it is about.
func ReadSPDX(text []byte) (rootHash string, listed []Listed, err error) {
	var d spdxDocument
	if err := hullmark.DecodeStrict(text, len(text), &d); err != nil {
		return "", nil, fmt.Errorf("read SBOM: %w", err)
	}
	if len(d.Packages) == 0 || len(d.Packages) > maxListed || d.Packages[0].SPDXID != spdxImage {
		return "", nil, fmt.Errorf("read SBOM: %d packages, or none is the image: hullmark build writes it otherwise", len(d.Packages))
	}
	rootHash, ok := strings.CutPrefix(d.Packages[0].Comment, rootHashComment)
	if !ok {
		return "", nil, errors.New("read SBOM: it does not name the image's root hash")
	}
	for _, p := range d.Packages[1:] {
		name := p.Name
		if _, arch, ok := strings.Cut(p.purl(), "?arch="); ok {
			name += ":" + arch
		}
		listed = append(listed, Listed{name, p.Version})
	}
	return rootHash, listed, nil
}

func (p spdxPackage) purl() string {
	for _, r := range p.References {
		if r.Type == "purl" {
			return r.Locator
		}
	}
	return ""
}
