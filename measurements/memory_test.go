package measurements

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/memtest"
	"github.com/hullmark/hullmark/pcrs"
)

// costLimit is how many bytes reading the largest document, envelope or policy may allocate, all together: it is
// decoded, and encoded again for comparison.
const costLimit = 64 << 20

// largeDocument has as many events as a document may have, with descriptions that fill it.
func largeDocument(t *testing.T) Document {
	t.Helper()
	d := testDocument(t, "image")
	p := d.Prediction()
	for i := range maxEvents - len(p.Log.Events) {
		p.Log.Events = append(p.Log.Events, pcrs.Event{
			Register: 4, Type: pcrs.EvEFIAction, Digests: pcrs.DigestsOf([]byte{byte(i)}, pcrs.PredictedBanks()...),
			Source: &pcrs.Source{Kind: pcrs.FromAction, Name: strings.Repeat("x", maxText-128)}, Origin: pcrs.Derived,
		})
	}
	large, err := New(d.Image, Release{SVN: 1}, pcrs.Machine{}, p)
	if err != nil {
		t.Fatal(err)
	}
	return large
}

// largePolicy has as many members and documents as a policy may have.
func largePolicy() (p Policy) {
	p.Version = 1
	for i := range maxMembers {
		id := hullmark.EKID{byte(i), byte(i >> 8)}
		p.Members = append(p.Members, Member{EKID: id, Role: hullmark.Worker, Name: fmt.Sprintf("node-%d", i)})
	}
	for i := range maxDocuments {
		p.Documents = append(p.Documents, Accepted{Document: DocumentID{byte(i)}})
	}
	return p
}

func TestLargeInputsCostLittle(t *testing.T) {
	document := encode(t, largeDocument(t))
	key, root := newRoot(t)
	policy, err := SignPolicy(key, root, largePolicy())
	if err != nil {
		t.Fatal(err)
	}
	signer := releaseKeys(t)["Ed25519"]
	read := map[string]func([]byte) error{
		"document": func(b []byte) error { _, err := Parse(b); return err },
		"envelope": func(b []byte) error { _, err := Open(b, signer.Public()); return err },
		"policy":   func(b []byte) error { _, err := OpenPolicy(b, root); return err },
	}
	brackets := func(n int) []byte { return bytes.Repeat([]byte("["), n) }
	for _, c := range []struct {
		kind, name string
		input      []byte
		good       bool
	}{
		{"document", "the largest", document, true},
		{"document", "nested", brackets(MaxDocument), false},
		{"document", "events without end", append([]byte(`{"registers":[{"events":[`), bytes.Repeat([]byte("{},"), MaxDocument/3-16)...), false},
		{"document", "events beyond the limit", list(`{"registers":[{"events":[`, "{}", "]}]}", MaxDocument), false},
		{"document", "events that take room", list(`{"registers":[{"events":[`, "{             }", "]}]}", MaxDocument), false},
		{"envelope", "the largest", sign(t, signer, largeDocument(t)), true},
		{"envelope", "nested", brackets(MaxEnvelope), false},
		{"envelope", "signatures without end", append([]byte(`{"signatures":[`), bytes.Repeat([]byte("{},"), MaxEnvelope/3-16)...), false},
		{"envelope", "signatures beyond the limit", list(`{"signatures":[`, "{}", "]}", MaxEnvelope), false},
		{"envelope", "signatures that take room", list(`{"signatures":[`, "{             }", "]}", MaxEnvelope), false},
		{"policy", "the largest", policy, true},
		{"policy", "nested", brackets(maxSigned), false},
	} {
		var err error
		spent := memtest.Cost(func() { err = read[c.kind](c.input) })
		t.Logf("%s, %s: %d allocated for %d bytes, error %t", c.kind, c.name, spent, len(c.input), err != nil)
		if (err == nil) != c.good {
			t.Errorf("%s, %s: %v", c.kind, c.name, err)
		}
		if spent > costLimit {
			t.Errorf("%s, %s: %d bytes cost %d bytes of memory, want at most %d", c.kind, c.name, len(c.input), spent, costLimit)
		}
	}
}

// list is valid JSON of at most size bytes, full of one element.
func list(start, element, end string, size int) []byte {
	b := append([]byte(start), bytes.Repeat([]byte(element+","), (size-len(start)-len(end))/(len(element)+1))...)
	return append(b[:len(b)-1], end...)
}
