package measurements

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/pcrs"
)

// rebuilders are builders with their private keys: two with keys of one kind, and one with another.
func rebuilders(t testing.TB, threshold int) (Builders, []crypto.Signer) {
	t.Helper()
	keys := releaseKeys(t)
	another, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signers := []crypto.Signer{keys["ECDSA P-256"], keys["Ed25519"], another}
	b := Builders{Threshold: threshold}
	for i, name := range []string{"alice", "bob", "carol"} {
		builder, err := NewBuilder(name, signers[i].Public())
		if err != nil {
			t.Fatal(err)
		}
		b.Of = append(b.Of, builder)
	}
	return b, signers
}

// attested is a policy that accepts a document, with signatures of some.
func attested(t testing.TB, b Builders, d Document, envelopes ...[]byte) Policy {
	t.Helper()
	p := testPolicy(id(t, d))
	p.Builders = b
	for _, envelope := range envelopes {
		signatures, err := b.Signatures(envelope, d)
		if err != nil {
			t.Fatal(err)
		}
		p.Documents[0].Signatures = append(p.Documents[0].Signatures, signatures...)
	}
	encoded, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = ParsePolicy(encoded); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestThreshold has a boot that meets its document judged under each number of signatures.
func TestThreshold(t *testing.T) {
	d := testDocument(t, "image")
	b, signers := rebuilders(t, 2)
	alice, bob, carol := sign(t, signers[0], d), sign(t, signers[1], d), sign(t, signers[2], d)
	again := sign(t, signers[0], d) // ECDSA's signatures differ each time
	merged, err := Merge(alice, carol)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		envelopes [][]byte
		accepted  bool
		says      string
	}{
		"nobody":                          {nil, false, "0 of 3 builders signed it, 2 have to: none; not alice, bob, carol"},
		"one":                             {[][]byte{alice}, false, "1 of 3 builders signed it, 2 have to: alice; not bob, carol"},
		"one, who signed twice":           {[][]byte{alice, again}, false, "1 of 3 builders signed it, 2 have to: alice; not bob, carol"},
		"one, whose signature came twice": {[][]byte{bob, bob}, false, "1 of 3 builders signed it, 2 have to: bob; not alice, carol"},
		"two":                             {[][]byte{carol, bob}, true, ""},
		"two in one envelope":             {[][]byte{merged}, true, ""},
		"all":                             {[][]byte{alice, bob, carol}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(attested(t, b, d, c.envelopes...), []Document{d}, pcrs.SHA256, d.Values(pcrs.SHA256))
			if v.Accepted() != c.accepted {
				t.Fatalf("accepted: %t, %v", v.Accepted(), v)
			}
			if !c.accepted && (len(v.Reasons) != 1 || v.Reasons[0].Text != c.says || v.Reasons[0].Agreement == nil) {
				t.Errorf("reasons %+v, want %q", v.Reasons, c.says)
			}
		})
	}
}

// TestUnattestedThatDiffers says of another boot what differs, not who signed.
func TestUnattestedThatDiffers(t *testing.T) {
	d := testDocument(t, "image")
	b, _ := rebuilders(t, 1)
	v := Judge(attested(t, b, d), []Document{d}, pcrs.SHA256, testDocument(t, "other").Values(pcrs.SHA256))
	if v.Accepted() || len(v.Reasons) == 0 || v.Reasons[0].Agreement != nil || len(v.Reasons[0].Expected) == 0 {
		t.Errorf("%+v", v.Reasons)
	}
}

// TestSignatureOfAnother has a builder sign another document, and somebody sign who is no builder.
func TestSignatureOfAnother(t *testing.T) {
	d, other := testDocument(t, "image"), testDocument(t, "image")
	other.Image.Disk = bytes.Repeat([]byte{9}, len(other.Image.Disk))
	b, signers := rebuilders(t, 1)
	later := d
	later.SVN++
	for name, c := range map[string]struct {
		envelope []byte
		says     string
	}{
		"of another disk":             {sign(t, signers[0], other), "about another document: disk"},
		"of another security version": {sign(t, signers[0], later), "about another document: security version"},
		"by nobody who is named":      {sign(t, releaseKeys(t)["Ed25519"], d), "no signature is by a key that is named"},
		"no envelope":                 {[]byte(`{"payload":"AAAA"}`), "attestation:"},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := b.Signatures(c.envelope, d); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%d signatures, %v, want %q", len(s), err, c.says)
			}
		})
	}
	// A signature over the other document counts for nothing, whatever policy holds it.
	p := testPolicy(id(t, d))
	p.Builders = b
	var e envelope
	if err := json.Unmarshal(sign(t, signers[0], other), &e); err != nil {
		t.Fatal(err)
	}
	p.Documents[0].Signatures = [][]byte{e.Signatures[0].Sig}
	if v := Judge(p, []Document{d}, pcrs.SHA256, d.Values(pcrs.SHA256)); v.Accepted() {
		t.Error("a signature over another document was counted")
	}
}

// TestBuildersAreCountedOnce refuses lists in which somebody could count twice, and thresholds that nobody can meet.
func TestBuildersAreCountedOnce(t *testing.T) {
	good, _ := rebuilders(t, 2)
	compressed := func(b *Builders) { // the same point, spelt otherwise
		public, err := x509.ParsePKIXPublicKey(b.Of[2].Key)
		if err != nil {
			t.Fatal(err)
		}
		point, err := public.(*ecdsa.PublicKey).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		var spki struct {
			Algorithm asn1.RawValue
			Key       asn1.BitString
		}
		if _, err := asn1.Unmarshal(b.Of[2].Key, &spki); err != nil {
			t.Fatal(err)
		}
		short := append([]byte{2 | point[64]&1}, point[1:33]...) // SEC 1 §2.3.3
		spki.Key = asn1.BitString{Bytes: short, BitLength: 8 * len(short)}
		if b.Of[2].Key, err = asn1.Marshal(spki); err != nil {
			t.Fatal(err)
		}
	}
	edwards := func(first, middle, last byte) func(*Builders) { // a point of Ed25519 by its y, little-endian, with x's sign on top
		key := bytes.Repeat([]byte{middle}, 32)
		key[0], key[31] = first, last
		return func(b *Builders) { b.Of[0].Key = append([]byte(spkiEd25519), key...) }
	}
	eight, err := hex.DecodeString("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
	if err != nil {
		t.Fatal(err)
	}
	orderEight := append([]byte(spkiEd25519), eight...)
	for name, c := range map[string]struct {
		change func(*Builders)
		says   string
	}{
		"threshold of none":        {func(b *Builders) { b.Threshold = 0 }, "0 of 3 have to sign"},
		"a threshold below":        {func(b *Builders) { b.Threshold = -1 }, "-1 of 3 have to sign"},
		"a threshold above":        {func(b *Builders) { b.Threshold = 4 }, "4 of 3 have to sign"},
		"a threshold of nobody":    {func(b *Builders) { b.Of = nil }, "2 of 0 have to sign"},
		"one key under two names":  {func(b *Builders) { b.Of[1].Key = b.Of[0].Key }, "alice and bob have the same key"},
		"one name twice":           {func(b *Builders) { b.Of[1].Name = "alice" }, "alice is there twice"},
		"no name":                  {func(b *Builders) { b.Of[1].Name = "" }, "want a DNS label"},
		"a name that is no label":  {func(b *Builders) { b.Of[1].Name = "bob, carol" }, "want a DNS label"},
		"a key with more behind":   {func(b *Builders) { b.Of[0].Key = append(slices.Clone(b.Of[0].Key), 0) }, "key"},
		"no key":                   {func(b *Builders) { b.Of[0].Key = nil }, "key"},
		"another spelling of one":  {compressed, "key"},
		"a key of another kind":    {func(b *Builders) { b.Of[0].Key = rsaKey(t) }, "none of ECDSA P-256 or Ed25519"},
		"a key on another curve":   {func(b *Builders) { b.Of[0].Key = p384Key(t) }, "none of ECDSA P-256 or Ed25519"},
		"a point of order 1":       {edwards(1, 0, 0), "small order"},
		"order 2":                  {edwards(0xec, 0xff, 0x7f), "small order"},
		"order 4":                  {edwards(0, 0, 0), "small order"},
		"order 8":                  {func(b *Builders) { b.Of[0].Key = orderEight }, "small order"},
		"a second spelling of 1":   {edwards(1, 0, 0x80), "one spelling"},
		"y of the prime and 1":     {edwards(0xee, 0xff, 0x7f), "one spelling"},
		"no point":                 {edwards(2, 0, 0), "one spelling"},
		"more than can be counted": {func(b *Builders) { b.Of = slices.Repeat(b.Of, 6) }, "at most 16"},
	} {
		t.Run(name, func(t *testing.T) {
			b := Builders{good.Threshold, slices.Clone(good.Of)}
			c.change(&b)
			if err := b.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			p := testPolicy(id(t, testDocument(t, "image")))
			p.Builders = b
			if _, err := p.Encode(); err == nil {
				t.Error("a policy with them is encoded")
			}
		})
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}

func rsaKey(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return spki(t, key.Public())
}

func p384Key(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return spki(t, key.Public())
}

func spki(t *testing.T, public crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// TestKeysAreAsX509Writes holds the form of keys to that of the standard library.
func TestKeysAreAsX509Writes(t *testing.T) {
	b, signers := rebuilders(t, 1)
	for i, signer := range signers {
		if !bytes.Equal(b.Of[i].Key, spki(t, signer.Public())) {
			t.Errorf("%s: %x, want %x", b.Of[i].Name, b.Of[i].Key, spki(t, signer.Public()))
		}
	}
	for _, key := range [][]byte{rsaKey(t), p384Key(t)} {
		public, err := x509.ParsePKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewBuilder("x", public); err == nil {
			t.Errorf("a builder with a key that is %s", KeyKind(public))
		}
	}
}

// TestOpenAgreed opens envelopes as a stranger does who has the builders' public keys alone.
func TestOpenAgreed(t *testing.T) {
	d := testDocument(t, "image")
	b, signers := rebuilders(t, 2)
	alice, bob := sign(t, signers[0], d), sign(t, signers[1], d)
	got, agreement, err := b.OpenAgreed(alice, bob)
	if err != nil || id(t, got) != id(t, d) || !agreement.Met() || !slices.Equal(agreement.Signed, []string{"alice", "bob"}) {
		t.Errorf("%+v, %v", agreement, err)
	}
	if _, agreement, err = b.OpenAgreed(alice); err != nil || agreement.Met() {
		t.Errorf("one of two: %+v, %v", agreement, err)
	}
	if _, _, err = b.OpenAgreed(alice, sign(t, signers[1], testDocument(t, "other"))); err == nil {
		t.Error("bob signed something else, and that is no error")
	}
	if _, agreement, err = b.OpenAgreed(sign(t, releaseKeys(t)["Ed25519"], d), bob); err != nil || len(agreement.Signed) != 1 {
		t.Errorf("the publisher, who is no builder, and bob: %+v, %v", agreement, err)
	}
	if _, _, err = b.OpenAgreed(sign(t, releaseKeys(t)["Ed25519"], d)); !errors.Is(err, ErrUnsigned) {
		t.Error("a first envelope by nobody who is named opens")
	}
	merged, err := Merge(alice, bob, alice)
	if err != nil {
		t.Fatal(err)
	}
	if _, agreement, err = b.OpenAgreed(merged); err != nil || len(agreement.Signed) != 2 {
		t.Errorf("merged: %+v, %v", agreement, err)
	}
	for _, key := range signers[:2] {
		if _, err := Open(merged, key.Public()); err != nil {
			t.Errorf("merged, by one key: %v", err)
		}
	}
	if _, err := Merge(alice, sign(t, signers[1], testDocument(t, "other"))); err == nil {
		t.Error("envelopes about two documents were merged")
	}
}

// TestPolicyWithBuildersReadsBack keeps builders and signatures, and none where there are none.
func TestPolicyWithBuildersReadsBack(t *testing.T) {
	d := testDocument(t, "image")
	b, signers := rebuilders(t, 2)
	p := attested(t, b, d, sign(t, signers[0], d), sign(t, signers[2], d))
	if a, err := p.Agreement(d); err != nil || !slices.Equal(a.Missing, []string{"bob"}) {
		t.Errorf("%+v, %v", a, err)
	}
	for _, size := range []int{0, maxSignature + 1} {
		p.Documents[0].Signatures = [][]byte{bytes.Repeat([]byte{1}, size)}
		if _, err := p.Encode(); err == nil {
			t.Errorf("a signature of %d bytes is encoded", size)
		}
	}
	p.Documents[0].Signatures = slices.Repeat([][]byte{{1}}, maxSignatures+1)
	if _, err := p.Encode(); err == nil {
		t.Error("too many signatures are encoded")
	}
	plain, err := testPolicy(id(t, d)).Encode()
	if err != nil || bytes.Contains(plain, []byte("builders")) || bytes.Contains(plain, []byte("signatures")) {
		t.Errorf("%v: a policy without builders names some:\n%s", err, plain)
	}
}
