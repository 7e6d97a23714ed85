package lock

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// CycloneDX returns the SBOM that SPDX does, in CycloneDX 1.6's JSON form. It depends on l and c alone: its date is the lock's,
// and the serial number, which others draw at random, is made of its content.
func (l Lock) CycloneDX(c Contents) ([]byte, error) {
	components := []cdx.Component{}
	for _, in := range l.contained(c) {
		components = append(components, in.cycloneDX())
	}
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{
		Timestamp: l.date(),
		Tools:     &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "hullmark"}}},
		Component: &cdx.Component{Type: cdx.ComponentTypeOS, BOMRef: "image", Name: c.ID, Version: c.Version, Description: c.comment()},
	}
	b.Components = &components
	text, err := encodeCycloneDX(b)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // a UUID of version 8 (RFC 9562 §5.8)
	b.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	return encodeCycloneDX(b)
}

func encodeCycloneDX(b *cdx.BOM) ([]byte, error) {
	var text bytes.Buffer
	e := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON)
	e.SetPretty(true)
	e.SetEscapeHTML(false)
	if err := e.EncodeVersion(b, cdx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("write SBOM: %w", err)
	}
	return text.Bytes(), nil
}

func (c component) cycloneDX() cdx.Component {
	out := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: c.id(), Name: c.name, Version: c.version, Description: c.comment, PackageURL: c.purl}
	if c.sha256 != "" {
		out.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: c.sha256}}
	}
	if c.supplier != "" {
		out.Supplier = &cdx.OrganizationalEntity{Name: c.supplier}
	}
	out.Properties = &[]cdx.Property{{Name: "hullmark:source", Value: c.source}}
	return out
}
