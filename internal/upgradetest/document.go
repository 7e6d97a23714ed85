package upgradetest

import (
	"bytes"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Document describes a release, told apart by a number, on a kind of machine. It predicts nothing.
func Document(release, kind byte) measurements.Document {
	digest := func(b byte) pcrs.Digest { return bytes.Repeat([]byte{b}, 32) }
	return measurements.Document{
		Schema:    measurements.DocumentSchema,
		Image:     measurements.Image{ID: "node", Version: string('0' + release), Disk: digest(release), RootHash: digest(release), UKI: digest(release), Stub: "257.1"},
		Release:   measurements.Release{Name: string('0' + release), SVN: 1},
		Machine:   measurements.Machine{Firmware: digest(kind), Variables: digest(kind), OptionROMs: []pcrs.Digest{}},
		Registers: []measurements.Register{}, NotPredicted: []measurements.NotPredicted{},
	}
}

// ID is a document's digest.
func ID(d measurements.Document) hullmark.DocumentID {
	id, err := d.Digest()
	if err != nil {
		panic(err) // Document makes no other.
	}
	return id
}

// RootHash is that of a document's release.
func RootHash(d measurements.Document) hullmark.RootHash { return hullmark.RootHash(d.Image.RootHash) }
