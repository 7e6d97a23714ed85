package export

import (
	"crypto/sha1" // RFC 9562 names a UUID by it; no decision rests on it
	"strings"

	"github.com/fxamacker/cbor/v2"

	"github.com/hullmark/hullmark/pcrs"
)

// CBOR tags (draft-ietf-rats-corim-10 §12.2; 37 is RFC 9562's).
const (
	tagUUID  = 37
	tagCoRIM = 501
	tagCoMID = 506
)

// hashAlgorithms are the numbers of the IANA registry of named information hashes.
var hashAlgorithms = map[pcrs.Bank]uint64{pcrs.SHA256: 1, pcrs.SHA384: 7, pcrs.SHA512: 8}

// corimMap is an unsigned-corim-map. The keys of this and the following maps are those of draft-ietf-rats-corim-10 §12.3 to §12.9.
type corimMap struct {
	ID   string     `cbor:"0,keyasint"`
	Tags []cbor.Tag `cbor:"1,keyasint"`
}

// comidMap is a concise-mid-tag.
type comidMap struct {
	Identity comidIdentity `cbor:"1,keyasint"`
	Triples  comidTriples  `cbor:"4,keyasint"`
}

type comidIdentity struct {
	ID string `cbor:"0,keyasint"`
}

type comidTriples struct {
	References []referenceTriple `cbor:"0,keyasint"`
}

// referenceTriple is a reference-triple-record: what is measured, and the values it should have.
type referenceTriple struct {
	_           struct{} `cbor:",toarray"`
	Environment environment
	Claims      []claim
}

type environment struct {
	Class class `cbor:"0,keyasint"`
}

type class struct {
	// ID is a tagged UUID.
	ID    cbor.Tag `cbor:"0,keyasint"`
	Model string   `cbor:"2,keyasint"`
}

// claim is a measurement-map: the number of a TPM's register, and its values. Another register has a name among its values, since
// readers of today take numbers alone as keys.
type claim struct {
	Register *uint64     `cbor:"0,keyasint,omitempty"`
	Values   claimValues `cbor:"1,keyasint"`
}

type claimValues struct {
	Digests []claimDigest `cbor:"2,keyasint"`
	Name    string        `cbor:"11,keyasint,omitempty"`
}

type claimDigest struct {
	_         struct{} `cbor:",toarray"`
	Algorithm uint64
	Value     []byte
}

// writeCoRIM writes each register as a measurement whose key is its number and whose digests are its values. That is how
// verifiers read PCRs today (veraison/services, scheme parsec-tpm; Trustee's CoRIM extractor); neither reads
// integrity-registers.
func writeCoRIM(r reference) ([]File, error) {
	mode, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		return nil, err
	}
	id := corimID(r)
	comid, err := mode.Marshal(comidMap{
		Identity: comidIdentity{ID: id},
		Triples:  comidTriples{References: []referenceTriple{{Environment: imageEnvironment(r.image.ID), Claims: claims(r)}}},
	})
	if err != nil {
		return nil, err
	}
	content, err := mode.Marshal(cbor.Tag{Number: tagCoRIM, Content: corimMap{ID: id, Tags: []cbor.Tag{{Number: tagCoMID, Content: comid}}}})
	return []File{{Name: "hullmark.corim", Content: content}}, err
}

// corimID names the document and the registers, so that no two contents have one name.
func corimID(r reference) string {
	id := r.id.String()
	for _, register := range r.registers {
		id += "-" + strings.TrimPrefix(registerName(register.Register), "pcr")
	}
	return id
}

// registerName is a register's name for programs.
func registerName(r pcrs.Register) string {
	name, err := r.MarshalText()
	if err != nil {
		return r.String() // No document has it.
	}
	return string(name)
}

func claims(r reference) []claim {
	var out []claim
	for _, register := range r.registers {
		var c claim
		if number := uint64(register.Register); register.Register.PCR() {
			c.Register = &number
		} else {
			c.Values.Name = registerName(register.Register)
		}
		for _, bank := range register.Register.Banks() {
			c.Values.Digests = append(c.Values.Digests, claimDigest{Algorithm: hashAlgorithms[bank], Value: register.Values[bank]})
		}
		out = append(out, c)
	}
	return out
}

// imageEnvironment is the class of machines that boot an image of this name.
func imageEnvironment(image string) environment {
	id := classID(image)
	return environment{Class: class{ID: cbor.Tag{Number: tagUUID, Content: id[:]}, Model: image}}
}

// urlNamespace is the name space of UUIDs that URLs are hashed in (RFC 9562 §6.6).
var urlNamespace = []byte{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}

// classID is the class-id of the machines that boot an image of this name, whatever its version: a UUID of version 5 (RFC 9562 §5.5).
func classID(image string) [16]byte {
	sum := sha1.Sum(append(append([]byte{}, urlNamespace...), "https://github.com/hullmark/hullmark/image/"+image...))
	id := [16]byte(sum[:16])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}
