package lock

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"
)

// Contents names the image that a lock became.
type Contents struct {
	// ID and Version are IMAGE_ID and IMAGE_VERSION of os-release(5).
	ID, Version string
	// RootHash is the image's dm-verity root hash in hex.
	RootHash string
	// Kubernetes tells whether the bundle is in it.
	Kubernetes bool
}

// stubPackage is the one package of set Tools that leaves bytes in an image: the boot stub.
const stubPackage = "systemd-boot-efi"

const (
	spdxNamespace   = "https://github.com/hullmark/hullmark/sbom/"
	spdxDocumentRef = "SPDXRef-DOCUMENT"
	spdxUnsaid      = "NOASSERTION"
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

// SPDX returns the bill of materials of an image in SPDX 2.3's JSON form: the packages of set Root, the boot stub's, Go, and the modules that the
// Kubernetes bundle asks for. It depends on l and c alone: its date is the lock's, and its namespace is made of its content.
func (l Lock) SPDX(c Contents) ([]byte, error) {
	image := spdxPackage{
		SPDXID: "SPDXRef-Image", Name: c.ID, Version: c.Version, FileName: c.ID + ".raw", Supplier: spdxUnsaid, DownloadLocation: spdxUnsaid,
		Comment: "dm-verity root hash " + c.RootHash,
	}
	d := spdxDocument{
		SPDXID: spdxDocumentRef, Version: "SPDX-2.3", DataLicense: "CC0-1.0", Name: c.ID + "-" + c.Version,
		Creation:      spdxCreation{time.Unix(l.Time, 0).UTC().Format(time.RFC3339), []string{"Tool: hullmark"}},
		Comment:       "Made from the locked package set. What a Go module needs in turn is held by the go.sum files that the lock names, and not listed.",
		Packages:      []spdxPackage{image},
		Relationships: []spdxRelationship{{spdxDocumentRef, "DESCRIBES", image.SPDXID}},
	}
	for _, p := range l.contained(c.Kubernetes) {
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, spdxRelationship{image.SPDXID, "CONTAINS", p.SPDXID})
	}
	text, err := encodeSPDX(d)
	if err != nil {
		return nil, fmt.Errorf("write bill of materials: %w", err)
	}
	sum := sha256.Sum256(text)
	d.Namespace = spdxNamespace + hex.EncodeToString(sum[:])
	return encodeSPDX(d)
}

// encodeSPDX encodes a bill. Measurement documents name the digest of these bytes, so no other file shares this form.
func encodeSPDX(d spdxDocument) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.Bytes(), err
}

// contained lists what is in an image, in the lock's order.
func (l Lock) contained(kubernetes bool) []spdxPackage {
	var all []spdxPackage
	for _, p := range l.Packages {
		if p.Set == Root || p.Name == stubPackage {
			all = append(all, p.spdx())
		}
	}
	release := strings.TrimPrefix(l.Go, "go")
	all = append(all, goPackage("stdlib", release, "compiled by "+l.Go))
	if !kubernetes {
		return all
	}
	for _, m := range l.Kubernetes.Modules {
		all = append(all, goPackage(m.Path, m.Version, "go.sum "+m.Sum))
	}
	return all
}

func (p Package) spdx() spdxPackage {
	out := spdxPackage{
		Name: p.Name, Version: p.Version, FileName: path.Base(p.Path), Supplier: "Organization: Debian", DownloadLocation: spdxUnsaid,
		Checksums: []spdxChecksum{{"SHA256", p.SHA256}}, SourceInfo: p.Path,
	}
	if p.Set == Tools {
		out.Comment = "only its boot stub is in the image"
	}
	return out.located(p.PURL())
}

func goPackage(module, version, source string) spdxPackage {
	p := spdxPackage{Name: module, Version: version, Supplier: spdxUnsaid, DownloadLocation: spdxUnsaid, SourceInfo: source}
	return p.located(Module{Path: module, Version: version}.PURL())
}

// located adds a package URL, and the identifier that is made of it, because few characters are allowed there.
func (p spdxPackage) located(purl string) spdxPackage {
	sum := sha256.Sum256([]byte(purl))
	p.SPDXID = "SPDXRef-Package-" + hex.EncodeToString(sum[:8])
	p.References = []spdxReference{{"PACKAGE-MANAGER", "purl", purl}}
	return p
}
