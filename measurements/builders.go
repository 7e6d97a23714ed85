package measurements

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// Limits of a policy's builders.
const (
	// MaxBuilders is how many builders a policy may name.
	MaxBuilders = maxSignatures
	// maxSignature is the longest signature of an envelope or a builder, in bytes: ECDSA's by P-256 has at most 72, Ed25519's 64.
	maxSignature = 128
)

// Builder is somebody who builds releases of the same sources and signs the document of what came out (Sign).
type Builder struct {
	// Name is what people call the builder: a DNS label of at most 63 characters.
	Name string `json:"name"`
	// Key is the public key, ECDSA P-256 or Ed25519, as a SubjectPublicKeyInfo in DER (RFC 5280 §4.1.2.7).
	Key []byte `json:"key"`
}

// Builders say how many of which builders have to have signed the same document. The zero value demands nothing.
type Builders struct {
	// Threshold is how many have to, from 1 to len(Of).
	Threshold int `json:"threshold"`
	// Of are the builders. None has another's name or key, so that none counts twice.
	Of []Builder `json:"of"`
}

// NewBuilder names who holds a public key's private part.
func NewBuilder(name string, public crypto.PublicKey) (Builder, error) {
	key, err := KeyInfo(public)
	if err != nil {
		return Builder{}, fmt.Errorf("builder %.80q: %w", name, err)
	}
	return Builder{name, key}, nil
}

// public returns the key. Each key has one form only: a second one would be a second builder.
func (b Builder) public() (crypto.PublicKey, error) {
	if point, ok := bytes.CutPrefix(b.Key, []byte(spkiP256)); ok {
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
		if err != nil {
			return nil, fmt.Errorf("builder %.80q: key: %w", b.Name, err)
		}
		return public, nil
	}
	if key, ok := bytes.CutPrefix(b.Key, []byte(spkiEd25519)); ok {
		if err := CheckEd25519(key); err != nil {
			return nil, fmt.Errorf("builder %.80q: %w", b.Name, err)
		}
		return ed25519.PublicKey(key), nil
	}
	return nil, fmt.Errorf("builder %.80q: the key is none of ECDSA P-256 or Ed25519 in DER's one form", b.Name)
}

// Check says why these are no builders that a threshold can count.
func (b Builders) Check() error {
	if b.Threshold < 1 || b.Threshold > len(b.Of) || len(b.Of) > MaxBuilders {
		return fmt.Errorf("builders: %d of %d have to sign, want at least 1, no more than there are, and at most %d of these", b.Threshold, len(b.Of), MaxBuilders)
	}
	for i, builder := range b.Of {
		if !hullmark.ValidNodeName(builder.Name) {
			return fmt.Errorf("builders: name %.80q: want a DNS label: at most 63 lower-case letters, digits and hyphens", builder.Name)
		}
		if _, err := builder.public(); err != nil {
			return fmt.Errorf("builders: %w", err)
		}
		for _, other := range b.Of[:i] {
			if other.Name == builder.Name {
				return fmt.Errorf("builders: %s is there twice", builder.Name)
			}
			if bytes.Equal(other.Key, builder.Key) {
				return fmt.Errorf("builders: %s and %s have the same key, which would count twice", other.Name, builder.Name)
			}
		}
	}
	return nil
}

// isZero reports whether no builder is demanded.
func (b Builders) isZero() bool { return b.Threshold == 0 && len(b.Of) == 0 }

// Agreement says which builders signed a document. The zero value is that of a policy that demands none.
type Agreement struct {
	// Threshold is how many have to.
	Threshold int `json:"threshold"`
	// Signed and Missing are the names of those who did and did not, in the policy's order.
	Signed  []string `json:"signed"`
	Missing []string `json:"missing"`
}

// Met reports whether enough have signed.
func (a Agreement) Met() bool { return len(a.Signed) >= a.Threshold }

// String says who signed and who did not, in one line.
func (a Agreement) String() string {
	list := func(names []string) string {
		if len(names) == 0 {
			return "none"
		}
		return strings.Join(names, ", ")
	}
	text := fmt.Sprintf("%d of %d builders signed it, %d have to: %s", len(a.Signed), len(a.Signed)+len(a.Missing), a.Threshold, list(a.Signed))
	if len(a.Missing) > 0 {
		text += "; not " + list(a.Missing)
	}
	return text
}

// by returns, for each builder in their order, the first of the signatures that is the builder's, or nil.
func (b Builders) by(message []byte, signatures [][]byte) ([][]byte, error) {
	found := make([][]byte, len(b.Of))
	for i, builder := range b.Of {
		public, err := builder.public()
		if err != nil {
			return nil, err
		}
		for _, s := range signatures {
			if verifyAny(public, message, []envelopeSignature{{Sig: s}}) == nil {
				found[i] = s
				break
			}
		}
	}
	return found, nil
}

// Agree says which of the builders made one of the signatures, each over the statement about d (Sign). A builder counts once,
// however many signatures it made; one that no builder made counts for nothing.
func (b Builders) Agree(d Document, signatures [][]byte) (Agreement, error) {
	a := Agreement{Threshold: b.Threshold, Signed: []string{}, Missing: []string{}}
	message, err := signedMessage(d)
	if err != nil {
		return a, err
	}
	found, err := b.by(message, signatures)
	for i, signature := range found {
		if signature == nil {
			a.Missing = append(a.Missing, b.Of[i].Name)
		} else {
			a.Signed = append(a.Signed, b.Of[i].Name)
		}
	}
	return a, err
}

// Keep returns one signature for each builder that made one, in the builders' order.
func (b Builders) Keep(d Document, signatures [][]byte) ([][]byte, error) {
	message, err := signedMessage(d)
	if err != nil {
		return nil, err
	}
	found, err := b.by(message, signatures)
	return slices.DeleteFunc(found, func(s []byte) bool { return s == nil }), err
}

// Signatures returns those of builders in an envelope about d. An envelope about anything else is an error, and so is one in which
// no builder signed: ErrUnsigned.
func (b Builders) Signatures(signed []byte, d Document) ([][]byte, error) {
	e, err := parseEnvelope(signed)
	if err != nil {
		return nil, fmt.Errorf("attestation: %w", err)
	}
	payload, err := hullmark.CanonicalJSON(statementOf(d))
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(e.Payload, payload) {
		return nil, fmt.Errorf("attestation: %s", differs(e.Payload, d))
	}
	var signatures [][]byte
	for _, s := range e.Signatures {
		signatures = append(signatures, s.Sig)
	}
	kept, err := b.Keep(d, signatures)
	if err == nil && len(kept) == 0 {
		err = fmt.Errorf("attestation: %w", ErrUnsigned)
	}
	return kept, err
}

// differs says what an attestation is about that is not about d. It is unverified.
func differs(payload []byte, d Document) string {
	var s statement
	if strict(payload, MaxEnvelope, &s) != nil || s.PredicateType != PredicateType {
		return "it is not about a measurement document"
	}
	for _, part := range []struct {
		what      string
		got, want string
	}{
		{"disk", s.Predicate.Image.Disk.String(), d.Image.Disk.String()},
		{"release", s.Predicate.Name, d.Name},
		{"security version", fmt.Sprint(s.Predicate.SVN), fmt.Sprint(d.SVN)},
		{"lock", s.Predicate.Lock.String(), d.Lock.String()},
	} {
		if part.got != part.want {
			return fmt.Sprintf("it is about another document: %s %.80q, and this one has %q", part.what, part.got, part.want)
		}
	}
	return "it is about another document of the same disk: of another machine, or another prediction"
}

// OpenAgreed returns the document in envelopes about one and the same document, and who of the builders signed it in any of
// them. Nothing of a payload is decoded before a builder's signature over it was found; ErrUnsigned says that there is none. Too few
// signatures are no error here: see Agreement.Met.
func (b Builders) OpenAgreed(signed []byte, more ...[]byte) (Document, Agreement, error) {
	envelopes := append([][]byte{signed}, more...)
	d, err := b.openAny(envelopes)
	if err != nil {
		return Document{}, Agreement{}, fmt.Errorf("open signed measurements: %w", err)
	}
	var signatures [][]byte
	for _, envelope := range envelopes {
		made, err := b.Signatures(envelope, d)
		if err != nil && !errors.Is(err, ErrUnsigned) {
			return Document{}, Agreement{}, err
		}
		signatures = append(signatures, made...)
	}
	a, err := b.Agree(d, signatures)
	return d, a, err
}

// openAny opens the first of the envelopes that one of the builders signed.
func (b Builders) openAny(envelopes [][]byte) (Document, error) {
	if err := b.Check(); err != nil {
		return Document{}, err
	}
	for _, signed := range envelopes {
		e, err := parseEnvelope(signed)
		if err != nil {
			return Document{}, err
		}
		message := preAuthentication(e.PayloadType, e.Payload)
		for _, builder := range b.Of {
			public, err := builder.public()
			if err != nil {
				return Document{}, err
			}
			if verifyAny(public, message, e.Signatures) == nil {
				return open(signed, public)
			}
		}
	}
	return Document{}, ErrUnsigned
}

// ErrTooMuchSigned is that the signatures of several envelopes do not fit into one that anybody reads.
var ErrTooMuchSigned = errors.New("more than one envelope holds")

// Merge returns one envelope with the signatures of several about the same document, each signature once. It checks none. What does not
// fit into one envelope is ErrTooMuchSigned.
func Merge(signed []byte, more ...[]byte) ([]byte, error) {
	return merge(func(envelope, envelopeSignature) bool { return true }, signed, more...)
}

// MergeOthers is Merge for who signed anew by key what is published: the published signatures by that key are left out, of which each
// is another if the key is ECDSA's.
func MergeOthers(signed, published []byte, key crypto.PublicKey) ([]byte, error) {
	return merge(func(e envelope, s envelopeSignature) bool {
		return verifyAny(key, preAuthentication(e.PayloadType, e.Payload), []envelopeSignature{s}) != nil
	}, signed, published)
}

// merge is Merge of the first envelope's signatures with those of the others that are wanted.
func merge(wanted func(envelope, envelopeSignature) bool, signed []byte, more ...[]byte) ([]byte, error) {
	e, err := parseEnvelope(signed)
	if err != nil {
		return nil, fmt.Errorf("merge signatures: %w", err)
	}
	for _, envelope := range more {
		other, err := parseEnvelope(envelope)
		if err != nil {
			return nil, fmt.Errorf("merge signatures: %w", err)
		}
		if !bytes.Equal(other.Payload, e.Payload) {
			return nil, errors.New("merge signatures: the envelopes are about different documents")
		}
		for _, s := range other.Signatures {
			known := slices.ContainsFunc(e.Signatures, func(known envelopeSignature) bool { return bytes.Equal(known.Sig, s.Sig) })
			if !known && wanted(other, s) {
				e.Signatures = append(e.Signatures, s)
			}
		}
	}
	merged, err := hullmark.CanonicalJSON(e)
	if err != nil {
		return nil, fmt.Errorf("merge signatures: %w", err)
	}
	if _, err := parseEnvelope(merged); err != nil {
		return nil, fmt.Errorf("merge signatures: %w: %w", ErrTooMuchSigned, err)
	}
	return merged, nil
}

// signedMessage is what signatures of the statement about d cover.
func signedMessage(d Document) ([]byte, error) {
	payload, err := hullmark.CanonicalJSON(statementOf(d))
	if err != nil {
		return nil, err
	}
	return preAuthentication(PayloadType, payload), nil
}

// Agreement says who of the policy's builders signed a document that it names.
func (p Policy) Agreement(d Document) (Agreement, error) {
	if p.Builders.isZero() {
		return Agreement{}, nil
	}
	id, err := d.Digest()
	if err != nil {
		return Agreement{}, err
	}
	var signatures [][]byte
	if i := slices.IndexFunc(p.Documents, func(a Accepted) bool { return a.Document == id }); i >= 0 {
		signatures = p.Documents[i].Signatures
	}
	return p.Builders.Agree(d, signatures)
}

func (p Policy) checkBuilders() error {
	for _, a := range p.Documents {
		if len(a.Signatures) > maxSignatures {
			return fmt.Errorf("document %v: %d signatures, want at most %d", a.Document, len(a.Signatures), maxSignatures)
		}
		for _, s := range a.Signatures {
			if len(s) == 0 || len(s) > maxSignature {
				return fmt.Errorf("document %v: a signature of %d bytes, want 1 to %d", a.Document, len(s), maxSignature)
			}
		}
	}
	if p.Builders.isZero() {
		return nil
	}
	return p.Builders.Check()
}
