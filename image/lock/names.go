package lock

import "strings"

// What a build leaves beside each other has the image's name and these endings.
const (
	// DiskEnding ends the name of the raw disk.
	DiskEnding = ".raw"
	// SPDXEnding and CycloneDXEnding end the names of the SBOMs, as their makers recommend.
	SPDXEnding      = ".spdx.json"
	CycloneDXEnding = ".cdx.json"
	// ProvenanceEnding ends the name of the provenance that is not signed yet.
	ProvenanceEnding = ".provenance.json"
	// DocumentEnding ends the name of the measurement document that is not signed yet.
	DocumentEnding = ".json"
	// JoinServiceEnding ends the name of the archive with the join service.
	JoinServiceEnding = ".joinservice.tar"
)

// MaxSBOM is the largest SBOM that is read, in bytes.
const MaxSBOM = 16 << 20

// Endings returns all of them. What else has the image's name, such as a signed document, is others'.
func Endings() []string {
	return []string{DiskEnding, JoinServiceEnding, SPDXEnding, CycloneDXEnding, DocumentEnding, ProvenanceEnding}
}

// Beside names the file with an ending that lies beside a raw disk.
func Beside(disk, ending string) string { return strings.TrimSuffix(disk, DiskEnding) + ending }
