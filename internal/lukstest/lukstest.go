// Package lukstest makes hostile LUKS2 headers out of a good one: everything
// that a host could write into one field, with checksums that fit.
package lukstest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// The layout of one of the two copies of a header (LUKS2 On-Disk Format Specification 1.1, §2.2).
const (
	copySize   = 16 << 10
	binarySize = 4096
	headerSize = 2 * copySize

	checksumField = "checksum"
	checksumAt    = 448
	checksumSize  = 64
)

type field struct {
	name     string
	at, size int
}

// binaryFields are all bytes of the binary header.
var binaryFields = []field{
	{"magic", 0, 6},
	{"version", 6, 2},
	{"header size", 8, 8},
	{"sequence", 16, 8},
	{"label", 24, 48},
	{"checksum algorithm", 72, 32},
	{"salt", 104, 64},
	{"uuid", 168, 40},
	{"subsystem", 208, 48},
	{"header offset", 256, 8},
	{"padding", 264, 184},
	{checksumField, checksumAt, checksumSize},
	{"padding to 4096", 512, binarySize - 512},
}

// Mutant is a header with hostile values, and correct checksums unless they are what was changed.
type Mutant struct {
	// Field is what was changed, Value how.
	Field, Value string
	Header       []byte
}

// Fields yields mutants of a good header: each field of the binary
// headers, of either and of both copies, and each value, member and list of the
// metadata, with one hostile value after the other.
func Fields(header []byte) iter.Seq[Mutant] {
	return func(yield func(Mutant) bool) {
		for _, f := range binaryFields {
			for name, copies := range map[string][]int{"first copy": {0}, "second copy": {1}, "both copies": {0, 1}} {
				for i, change := range binaryValues {
					m := Mutant{Field: f.name + ", " + name, Value: strconv.Itoa(i), Header: bytes.Clone(header)}
					for _, c := range copies {
						change(m.Header[c*copySize+f.at:][:f.size])
					}
					if f.name != checksumField {
						Seal(m.Header)
					}
					if !bytes.Equal(m.Header, header) && !yield(m) {
						return
					}
				}
			}
		}
		for field, document := range documents(Document(header)) {
			if !yield(Mutant{Field: "metadata" + field, Value: document, Header: WithDocument(header, document)}) {
				return
			}
		}
	}
}

// binaryValues each overwrite a field.
var binaryValues = []func([]byte){
	func(b []byte) { clear(b) },
	func(b []byte) { copy(b, bytes.Repeat([]byte{0xff}, len(b))) },
	func(b []byte) { b[0] ^= 0x80 },
	func(b []byte) { b[0] ^= 1 },
	func(b []byte) { b[len(b)-1]++ },
	func(b []byte) { b[len(b)-1] ^= 0x80 },
	func(b []byte) { slices.Reverse(b) },
	func(b []byte) { copy(b, strings.Repeat("A", len(b))) },
}

// Random returns one mutant with up to eight changes of all kinds: bytes anywhere in the header, and values of the
// metadata that are exchanged for others, lost, or doubled.
func Random(r *rand.Rand, header []byte) []byte {
	mutant := bytes.Clone(header)
	if r.IntN(4) > 0 {
		root := parse(Document(header))
		for range 1 + r.IntN(3) {
			root.scramble(r)
		}
		if document := root.String(); len(document) <= copySize-binarySize {
			mutant = WithDocument(header, document)
		}
	}
	for range r.IntN(6) {
		at, change := r.IntN(copySize), byte(1+r.IntN(255))
		if r.IntN(2) == 0 { // where something is
			at = r.IntN(512)
			if r.IntN(2) == 0 {
				at = binarySize + r.IntN(len(Document(header)))
			}
		}
		if which := r.IntN(3); which < 2 {
			mutant[which*copySize+at] ^= change
		} else {
			mutant[at] ^= change
			mutant[copySize+at] ^= change
		}
	}
	if r.IntN(16) > 0 {
		Seal(mutant)
	}
	return mutant
}

// Seal writes the checksums of both copies (§2.3).
func Seal(header []byte) {
	for b := range slices.Chunk(header[:headerSize], copySize) {
		stored := b[checksumAt : checksumAt+checksumSize]
		clear(stored)
		sum := sha256.Sum256(b)
		copy(stored, sum[:])
	}
}

// Document returns the metadata of the first copy.
func Document(header []byte) string {
	document, _, _ := bytes.Cut(header[binarySize:copySize], []byte{0})
	return string(document)
}

// WithDocument returns the header with other metadata in both copies, sealed.
func WithDocument(header []byte, document string) []byte {
	changed := bytes.Clone(header)
	for b := range slices.Chunk(changed[:headerSize], copySize) {
		clear(b[binarySize:])
		copy(b[binarySize:], document)
	}
	Seal(changed)
	return changed
}

// Equivalent says why a header that was accepted is not equal to a good one in all that an opened disk depends on, or returns nil. It reads
// metadata in another way than package luks2 does. Salts, the digest, the sequence and the UUID may differ.
func Equivalent(header, good []byte) error {
	first, second := header[:copySize], header[copySize:headerSize]
	if !bytes.Equal(first[binarySize:], second[binarySize:]) {
		return fmt.Errorf("the two copies' metadata differ")
	}
	for _, f := range binaryFields {
		switch f.name {
		case "salt", checksumField:
			continue
		case "sequence", "uuid":
			if !bytes.Equal(first[f.at:f.at+f.size], second[f.at:f.at+f.size]) {
				return fmt.Errorf("the two copies' %s differ", f.name)
			}
			continue
		}
		for at := f.at; at < headerSize; at += copySize {
			if !bytes.Equal(header[at:at+f.size], good[at:at+f.size]) {
				return fmt.Errorf("%s at %d is %x", f.name, at, header[at:at+f.size])
			}
		}
	}
	got, err := values(Document(header))
	if err != nil {
		return err
	}
	want, err := values(Document(good))
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("the metadata are %s", Document(header))
	}
	return nil
}

// values decodes metadata, with 32 bytes of base64 made equal.
func values(document string) (any, error) {
	d := json.NewDecoder(strings.NewReader(document))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if key, repeated := parse(document).repeated(); repeated {
		return nil, fmt.Errorf("%q is repeated: readers disagree which one counts", key)
	}
	return neutral(v), nil
}

func neutral(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = neutral(v[key])
		}
	case []any:
		for i := range v {
			v[i] = neutral(v[i])
		}
	case string:
		if b, err := base64.StdEncoding.DecodeString(v); err == nil && len(b) == sha256.Size {
			return "32 bytes"
		}
	}
	return v
}
