package measurements

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/hullmark/hullmark"
)

// releaseKeys are one signer of each kind.
func releaseKeys(t testing.TB) map[string]crypto.Signer {
	t.Helper()
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]crypto.Signer{"ECDSA P-256": p256, "Ed25519": edwards}
}

func sign(t testing.TB, key crypto.Signer, d Document) []byte {
	t.Helper()
	signed, err := Sign(key, d)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func TestSignedDocumentOpens(t *testing.T) {
	d := testDocument(t, "image")
	for name, key := range releaseKeys(t) {
		got, err := Open(sign(t, key, d), key.Public())
		if err != nil || id(t, got) != id(t, d) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// stranger verifies as other people's programs do.
type stranger struct{ public crypto.PublicKey }

func (s stranger) KeyID() (string, error)   { return "", nil }
func (s stranger) Public() crypto.PublicKey { return s.public }

func (s stranger) Verify(_ context.Context, message, signature []byte) error {
	digest := sha256.Sum256(message)
	good := false
	switch key := s.public.(type) {
	case ed25519.PublicKey:
		good = ed25519.Verify(key, message, signature)
	case *ecdsa.PublicKey:
		good = ecdsa.VerifyASN1(key, digest[:], signature)
	}
	if !good {
		return errors.New("bad signature")
	}
	return nil
}

// Another implementation of DSSE accepts the envelope, and finds an in-toto statement about the disk in it.
func TestOthersOpenTheEnvelope(t *testing.T) {
	d := testDocument(t, "image")
	for name, key := range releaseKeys(t) {
		var e dsse.Envelope
		if err := json.Unmarshal(sign(t, key, d), &e); err != nil {
			t.Fatal(err)
		}
		verifier, err := dsse.NewEnvelopeVerifier(stranger{key.Public()})
		if err != nil {
			t.Fatal(err)
		}
		_, payload, err := verifier.VerifyAndDecode(t.Context(), &e)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var s struct {
			Type    string `json:"_type"`
			Subject []struct {
				Name   string
				Digest map[string]string
			}
		}
		if err := json.Unmarshal(payload, &s); err != nil || s.Type != statementType || s.Subject[0].Name != "node.raw" || s.Subject[0].Digest["sha256"] != d.Image.Disk.String() {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	keys := releaseKeys(t)
	key, other := keys["ECDSA P-256"], keys["Ed25519"]
	d := testDocument(t, "image")
	resign := func(change func(*statement)) []byte {
		s := statementOf(d)
		change(&s)
		payload, err := hullmark.CanonicalJSON(s)
		if err != nil {
			t.Fatal(err)
		}
		return wrap(t, key, PayloadType, payload)
	}
	payload, err := hullmark.CanonicalJSON(statementOf(d))
	if err != nil {
		t.Fatal(err)
	}
	good := sign(t, key, d)
	foreign, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Sign(foreign, d); err == nil || !strings.Contains(err.Error(), "want ECDSA P-256 or Ed25519") {
		t.Errorf("signed with RSA: %v", err)
	}
	for name, c := range map[string]struct {
		signed []byte
		public crypto.PublicKey
		want   string
	}{
		"another key":           {good, other.Public(), "no signature is by a key that is named"},
		"a key of another kind": {good, foreign.Public(), "want ECDSA P-256 or Ed25519"},
		"a key of small order":  {signedByNobody(t, payload), ed25519.PublicKey(append([]byte{1}, make([]byte, 31)...)), "no signature is by a key that is named"},
		"another payload type":  {wrap(t, key, "application/json", payload), key.Public(), "the payload is"},
		"a changed payload":     {bytes.Replace(good, []byte(`"payload": "ew`), []byte(`"payload": "eQ`), 1), key.Public(), "no signature is by a key that is named"},
		"no signature":          {wrap(t, nil, PayloadType, payload), key.Public(), "0 signatures"},
		"an unknown field":      {bytes.Replace(good, []byte(`{`), []byte(`{"more": 1,`), 1), key.Public(), "unknown field"},
		"cut off":               {good[:len(good)/2], key.Public(), "it was cut off"},
		"too large":             {bytes.Repeat([]byte{' '}, MaxEnvelope+1), key.Public(), "at most"},
		"reformatted":           {wrap(t, key, PayloadType, bytes.ReplaceAll(payload, []byte("  "), []byte(" "))), key.Public(), "canonical"},
		"another predicate":     {resign(func(s *statement) { s.PredicateType += "2" }), key.Public(), "statement"},
		"another subject":       {resign(func(s *statement) { s.Subject[0].Digest["sha256"] = make([]byte, 32) }), key.Public(), "canonical"},
		"values that do not follow from their events": {
			resign(func(s *statement) {
				s.Predicate.Registers = append([]Register{}, s.Predicate.Registers...)
				s.Predicate.Registers[0].Events = nil
			}), key.Public(), "measurement document",
		},
	} {
		if _, err := Open(c.signed, c.public); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// signedByNobody is an envelope with the signature that verifies any message, if a key is the point of order 1: that point, and zero.
func signedByNobody(t *testing.T, payload []byte) []byte {
	t.Helper()
	signature := append([]byte{1}, make([]byte, 63)...)
	signed, err := hullmark.CanonicalJSON(envelope{PayloadType: PayloadType, Payload: payload, Signatures: []envelopeSignature{{Sig: signature}}})
	if err != nil {
		t.Fatal(err)
	}
	if !ed25519.Verify(append([]byte{1}, make([]byte, 31)...), payload, signature) {
		t.Fatal("the signature is no danger")
	}
	return signed
}

// wrap signs any payload; without a key it leaves the signatures out.
func wrap(t testing.TB, key crypto.Signer, payloadType string, payload []byte) []byte {
	t.Helper()
	e := envelope{PayloadType: payloadType, Payload: payload, Signatures: []envelopeSignature{}}
	if key != nil {
		signature, err := signMessage(key, preAuthentication(payloadType, payload))
		if err != nil {
			t.Fatal(err)
		}
		e.Signatures = append(e.Signatures, envelopeSignature{Sig: signature})
	}
	signed, err := hullmark.CanonicalJSON(e)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// FuzzOpenStatement signs whatever it is given: what is behind the signature has to be refused for itself.
func FuzzOpenStatement(f *testing.F) {
	key := releaseKeys(f)["Ed25519"]
	payload, err := hullmark.CanonicalJSON(statementOf(testDocument(f, "image")))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[],"predicateType":"","predicate":{}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		d, err := Open(wrap(t, key, PayloadType, payload), key.Public())
		if err != nil {
			return
		}
		if again, err := hullmark.CanonicalJSON(statementOf(d)); err != nil || !bytes.Equal(again, payload) {
			t.Fatalf("two spellings of one statement: %v", err)
		}
	})
}

func FuzzOpen(f *testing.F) {
	key := releaseKeys(f)["Ed25519"]
	f.Add(sign(f, key, testDocument(f, "image")))
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"","signatures":[{"sig":""}]}`))
	f.Fuzz(func(t *testing.T, signed []byte) {
		if d, err := Open(signed, key.Public()); err == nil && d.check() != nil {
			t.Fatal("opened what it would not sign")
		}
	})
}

// signedBy is an envelope with one signature and hint, whatever they are.
func signedBy(t *testing.T, payload []byte, s envelopeSignature) []byte {
	t.Helper()
	signed, err := hullmark.CanonicalJSON(envelope{PayloadType: PayloadType, Payload: payload, Signatures: []envelopeSignature{s}})
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func TestSignaturesAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		signature, keyid int
		want             string
	}{
		"as long as can be": {128, 256, ""},
		"as short":          {1, 0, ""},
		"no signature":      {0, 0, "a signature of 0 bytes, want 1 to 128"},
		"a long signature":  {129, 0, "a signature of 129 bytes, want 1 to 128"},
		"a long keyid":      {64, 257, "a keyid of 257 bytes, want at most 256"},
	} {
		_, err := Merge(signedBy(t, []byte("{}"), envelopeSignature{KeyID: strings.Repeat("k", c.keyid), Sig: bytes.Repeat([]byte{1}, c.signature)}))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// TestMergeIsRead has envelopes merged that can be read each, and together not: too many signatures, too many bytes, and hints that look
// like more values than a file of that length holds.
func TestMergeIsRead(t *testing.T) {
	number := func(n int) envelopeSignature { return envelopeSignature{Sig: []byte{byte(n), 1}} }
	commas := func(n int) envelopeSignature {
		return envelopeSignature{KeyID: strings.Repeat(",", maxKeyID), Sig: []byte{byte(n), 1}}
	}
	room := MaxEnvelope - len(signedBy(t, []byte{}, number(0)))
	for name, c := range map[string]struct {
		payload  []byte
		sign     func(n int) envelopeSignature
		most     int
		together string
	}{
		"signatures": {[]byte("{}"), number, maxSignatures, "17 signatures"},
		"bytes":      {make([]byte, room/4*3), number, 1, "want at most"},
		"commas":     {make([]byte, 3000), commas, 1, "more values"},
	} {
		var all [][]byte
		for n := range c.most + 1 {
			all = append(all, signedBy(t, c.payload, c.sign(n)))
		}
		merged, err := Merge(all[0], all[1:c.most]...)
		if err != nil {
			t.Errorf("%s: %d of them: %v", name, c.most, err)
			continue
		}
		if _, err := Merge(merged); err != nil {
			t.Errorf("%s: what was merged cannot be read: %v", name, err)
		}
		if _, err := Merge(merged, all[c.most]); !errors.Is(err, ErrTooMuchSigned) || !strings.Contains(err.Error(), c.together) {
			t.Errorf("%s: one more: %v", name, err)
		}
	}
}

// Who signs anew leaves his own earlier signatures out, and nobody else's.
func TestMergeOthers(t *testing.T) {
	d := testDocument(t, "image")
	for name, key := range releaseKeys(t) {
		other := releaseKeys(t)["ECDSA P-256"]
		published, err := Merge(sign(t, key, d), sign(t, other, d))
		if err != nil {
			t.Fatal(err)
		}
		merged, err := MergeOthers(sign(t, key, d), published, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		var e envelope
		if err := json.Unmarshal(merged, &e); err != nil || len(e.Signatures) != 2 {
			t.Errorf("%s: %d signatures, want 2: %v", name, len(e.Signatures), err)
		}
		for _, signer := range []crypto.Signer{key, other} {
			if _, err := Open(merged, signer.Public()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := MergeOthers(sign(t, key, d), sign(t, other, testDocument(t, "other")), key.Public()); err == nil {
			t.Errorf("%s: another document's signatures are taken", name)
		}
	}
}
