package measurements

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hullmark/hullmark/pcrs"
)

func testProvenance(t testing.TB, d Document) Provenance {
	t.Helper()
	p, err := NewProvenance(BuildDefinition{
		Parameters: BuildParameters{ImageID: "node", Profiles: []string{"azure"}},
		Dependencies: []Resource{
			{Name: SourcesName, URI: "git+https://example.org/sources", Digest: map[string]string{"gitCommit": strings.Repeat("a", 40)}},
			{Name: LockName, Digest: map[string]string{"sha256": d.Lock.String()}},
		},
	}, RunDetails{Builder: ProvenanceBuilder{ID: LocalBuilder}, Metadata: &BuildMetadata{InvocationID: "https://example.org/runs/7"}}, []string{"node.raw"}, []pcrs.Digest{d.Image.Disk})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func encoded(t testing.TB, p Provenance) []byte {
	t.Helper()
	text, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// in-toto's own library reads the statement, and SLSA's predicate in it, and misses nothing.
func TestOthersReadTheProvenance(t *testing.T) {
	text := encoded(t, testProvenance(t, testDocument(t, "image")))
	var statement intoto.Statement
	if err := protojson.Unmarshal(text, &statement); err != nil {
		t.Fatal(err)
	}
	if err := statement.Validate(); err != nil {
		t.Error(err)
	}
	predicate, err := json.Marshal(statement.GetPredicate().AsMap())
	if err != nil {
		t.Fatal(err)
	}
	var provenance slsa.Provenance
	if err := protojson.Unmarshal(predicate, &provenance); err != nil {
		t.Fatal(err)
	}
	if err := provenance.Validate(); err != nil {
		t.Error(err)
	}
	definition, run := provenance.GetBuildDefinition(), provenance.GetRunDetails()
	if statement.GetPredicateType() != ProvenanceType || definition.GetBuildType() != BuildType || len(definition.GetResolvedDependencies()) != 2 ||
		run.GetBuilder().GetId() != LocalBuilder || run.GetMetadata().GetInvocationId() != "https://example.org/runs/7" {
		t.Errorf("they read %v", &statement)
	}
}

func TestSignedProvenanceOpens(t *testing.T) {
	d := testDocument(t, "image")
	p := testProvenance(t, d)
	for name, key := range releaseKeys(t) {
		signed, err := SignProvenance(key, p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := OpenProvenance(signed, key.Public())
		if err != nil || !bytes.Equal(encoded(t, got), encoded(t, p)) || d.CheckProvenance(got) != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Open(signed, key.Public()); err == nil {
			t.Errorf("%s: a provenance was taken for a measurement document", name)
		}
		if _, err := OpenProvenance(sign(t, key, d), key.Public()); err == nil {
			t.Errorf("%s: a measurement document was taken for a provenance", name)
		}
		for other, stranger := range releaseKeys(t) {
			if _, err := OpenProvenance(signed, stranger.Public()); err == nil {
				t.Errorf("%s: opened with another key, %s", name, other)
			}
		}
	}
}

func TestParseProvenanceRefuses(t *testing.T) {
	p := testProvenance(t, testDocument(t, "image"))
	good := string(encoded(t, p))
	for name, c := range map[string]struct{ from, to, want string }{
		"another predicate": {ProvenanceType, "https://slsa.dev/provenance/v0.2", "want"},
		"another build":     {BuildType, "https://example.org/make", "build type"},
		"no builder":        {LocalBuilder, "", "no builder"},
		"a short digest":    {p.Disk().String(), "00", "no SHA-256"},
		"an unknown field":  {`"invocationId"`, `"startedOn"`, "unknown field"},
		"reformatted":       {"  ", " ", "canonical"},
		"cut off":           {good[len(good)/2:], "", "cut off"},
		"empty":             {good, "", "empty"},
	} {
		if _, err := ParseProvenance([]byte(strings.ReplaceAll(good, c.from, c.to))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestCheckProvenance(t *testing.T) {
	d := testDocument(t, "image")
	p := testProvenance(t, d)
	for name, change := range map[string]func(*Document){
		"another disk": func(d *Document) { d.Image.Disk = make(pcrs.Digest, 32) },
		"another lock": func(d *Document) { d.Lock = make(pcrs.Digest, 32) },
	} {
		other := d
		change(&other)
		if err := other.CheckProvenance(p); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func FuzzParseProvenance(f *testing.F) {
	f.Add(encoded(f, testProvenance(f, testDocument(f, "image"))))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParseProvenance(text)
		if err != nil {
			return
		}
		if again, err := p.Encode(); err != nil || !bytes.Equal(again, text) {
			t.Errorf("read what is not written so: %v", err)
		}
	})
}
