package export

import (
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/veraison/corim/comid"

	"github.com/hullmark/hullmark/pcrs"
)

// outerCoRIM is the unsigned-corim-map. Package corim of veraison/corim reads it too, but takes any tag for the right one, and
// a JOSE library along.
type outerCoRIM struct {
	ID   string     `cbor:"0,keyasint"`
	Tags []cbor.Tag `cbor:"1,keyasint"`
}

// openCoRIM checks the outer layer, and returns the one CoMID as veraison/corim decodes and validates it.
func openCoRIM(t *testing.T, content []byte) *comid.Comid {
	t.Helper()
	var tagged cbor.RawTag
	if err := cbor.Unmarshal(content, &tagged); err != nil || tagged.Number != 501 {
		t.Fatalf("tag %d: %v", tagged.Number, err)
	}
	var outer outerCoRIM
	if err := cbor.Unmarshal(tagged.Content, &outer); err != nil {
		t.Fatal(err)
	}
	if len(outer.Tags) != 1 || outer.Tags[0].Number != 506 {
		t.Fatalf("tags %v, want one of number 506", outer.Tags)
	}
	inner, ok := outer.Tags[0].Content.([]byte)
	if !ok {
		t.Fatalf("tag 506 holds a %T, want bytes", outer.Tags[0].Content)
	}
	c := comid.NewComid()
	if err := c.FromCBOR(inner); err != nil {
		t.Fatal(err)
	}
	if err := c.Valid(); err != nil {
		t.Fatal(err)
	}
	if id := c.TagIdentity.TagID.String(); id != outer.ID {
		t.Errorf("the CoMID is %q in the CoRIM %q", id, outer.ID)
	}
	return c
}

func readCoRIM(t *testing.T, files []File) map[pcrs.Bank]pcrs.Values {
	out := map[pcrs.Bank]pcrs.Values{}
	references := *openCoRIM(t, files[0].Content).Triples.ReferenceValues
	if len(references) != 1 {
		t.Fatalf("%d reference triples, want 1", len(references))
	}
	if model := references[0].Environment.Class.GetModel(); model != "node" {
		t.Errorf("the model is %q", model)
	}
	for _, m := range references[0].Measurements {
		number, err := m.Key.GetKeyUint()
		if err != nil {
			t.Fatal(err)
		}
		if len(*m.Val.Digests) != len(pcrs.PredictedBanks()) || m.Val.IntegrityRegisters != nil {
			t.Fatalf("PCR %d has %d digests", number, len(*m.Val.Digests))
		}
		for _, digest := range *m.Val.Digests {
			bank, ok := map[uint64]pcrs.Bank{1: pcrs.SHA256, 7: pcrs.SHA384, 8: pcrs.SHA512}[digest.HashAlgID]
			if !ok {
				t.Fatalf("hash algorithm %d", digest.HashAlgID)
			}
			put(out, bank, pcrs.Register(number), digest.HashValue)
		}
	}
	return out
}

// nodeClass is what Python's uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/hullmark/hullmark/image/node") gives.
const nodeClass = "046a599c-9868-5b0e-9504-a1c0bac02f6d"

// TestCoRIMNames checks that other registers are another CoRIM, and that all versions of an image are one class.
func TestCoRIMNames(t *testing.T) {
	d := document(t)
	next := document(t)
	next.Image.Version = "20260202"
	all, some, later := openCoRIM(t, exportOne(t, d, CoRIM)), openCoRIM(t, exportOne(t, d, CoRIM, 4, 11)), openCoRIM(t, exportOne(t, next, CoRIM))
	names := map[string]bool{}
	for _, c := range []*comid.Comid{all, some, later} {
		names[c.TagIdentity.TagID.String()] = true
		if class := (*c.Triples.ReferenceValues)[0].Environment.Class.ClassID.String(); class != nodeClass {
			t.Errorf("class %s", class)
		}
	}
	if len(names) != 3 {
		t.Errorf("%d names for three contents: %v", len(names), names)
	}
}
