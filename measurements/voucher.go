package measurements

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
)

// VoucherSchema names the format of a Voucher.
const VoucherSchema = "hullmark.voucher/v1"

// MaxVoucher is the largest signed voucher, in bytes.
const MaxVoucher = 4096

// voucherKind is the kind of the signature of a voucher (hullmark.SigningInput).
const voucherKind = "voucher"

// Voucher is an enroller's word that a machine is to be a worker of a group: it stands in the place of a membership rule where
// nobody knows a machine before it is made. It is public. Whoever signs it says that the identity is that of a real TPM.
type Voucher struct {
	// Schema is VoucherSchema.
	Schema string `json:"schema"`
	// ClusterRoot is the first root of the cluster that it is for, which stays when roots are replaced.
	ClusterRoot hullmark.ClusterRoot `json:"clusterRoot"`
	// Group is the policy's group, one with enrollers.
	Group string `json:"group"`
	// EKID is the machine.
	EKID hullmark.EKID `json:"ekid"`
	// Name is the node's name: the group's name, a hyphen and more.
	Name string `json:"name"`
	// ProviderID is what the machine's infrastructure calls it (hullmark.ValidProviderID); empty means that it has no name there.
	ProviderID string `json:"providerID,omitempty"`
	// NotAfter is until when the machine has to come for the first time: UTC, in whole seconds.
	NotAfter time.Time `json:"notAfter"`
}

// signedVoucher is a voucher with what it takes to check it. JSON writes each field in base64.
type signedVoucher struct {
	// Voucher is the document as it was signed.
	Voucher []byte `json:"voucher"`
	// Enroller is the Ed25519 public key (RFC 8032 §5.1.5, 32 bytes) whose signature it is.
	Enroller []byte `json:"enroller"`
	// Signature is Ed25519 over hullmark.SigningInput of the kind "voucher", the voucher's root and the document.
	Signature []byte `json:"signature"`
}

// Check reports what keeps a voucher from being any group's.
func (v Voucher) Check() error {
	switch prefix := v.Group + "-"; {
	case v.Schema != VoucherSchema:
		return fmt.Errorf("schema %.80q, want %q", v.Schema, VoucherSchema)
	case v.ClusterRoot == hullmark.ClusterRoot{} || v.EKID == hullmark.EKID{}:
		return errors.New("it names no cluster, or no machine")
	case len(v.Group) > maxGroupName || !hullmark.ValidNodeName(v.Group):
		return fmt.Errorf("group %.80q: want a DNS label of at most %d characters", v.Group, maxGroupName)
	case !hullmark.ValidNodeName(v.Name) || !strings.HasPrefix(v.Name, prefix):
		return fmt.Errorf("name %.80q: want a DNS label that begins with %s", v.Name, prefix)
	case v.ProviderID != "" && !hullmark.ValidProviderID(v.ProviderID):
		return fmt.Errorf("provider ID %.80q: want SCHEME://…, of at most %d letters, digits and / . _ : + = @ -", v.ProviderID, hullmark.MaxProviderID)
	case v.NotAfter.Unix() <= 0 || v.NotAfter.Year() > 9999 || !v.NotAfter.Equal(v.NotAfter.Truncate(time.Second)) || v.NotAfter.Location() != time.UTC:
		return errors.New("notAfter: want a time in UTC and whole seconds")
	}
	return nil
}

// Member returns the rule that a voucher makes for its machine in its group.
func (v Voucher) Member(g Group) Member {
	return Member{EKID: v.EKID, Role: hullmark.Worker, Name: v.Name, Pool: g.Pool, ProviderID: v.ProviderID}
}

// SignVoucher signs a voucher with an enroller's Ed25519 key. The schema is set.
func SignVoucher(enroller crypto.Signer, v Voucher) ([]byte, error) {
	public, ok := enroller.Public().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("sign voucher: the key is %s, want Ed25519", KeyKind(enroller.Public()))
	}
	v.Schema = VoucherSchema
	if err := v.Check(); err != nil {
		return nil, fmt.Errorf("sign voucher: %w", err)
	}
	document, err := hullmark.CanonicalJSON(v)
	if err != nil {
		return nil, fmt.Errorf("sign voucher: %w", err)
	}
	signature, err := enroller.Sign(rand.Reader, hullmark.SigningInput(voucherKind, v.ClusterRoot, document), crypto.Hash(0))
	if err != nil {
		return nil, fmt.Errorf("sign voucher: %w", err)
	}
	return hullmark.CanonicalJSON(signedVoucher{Voucher: document, Enroller: public, Signature: signature})
}

// OpenVoucher reads a signed voucher of at most MaxVoucher bytes and checks the signature by the key that it names, which it
// returns. Whether anybody trusts that key, for this group, trusted says beforehand: the document is not read if it says no.
func OpenVoucher(signed []byte, trusted func(enroller ed25519.PublicKey) bool) (Voucher, ed25519.PublicKey, error) {
	v, s, err := readVoucher(signed, trusted)
	if err == nil && !ed25519.Verify(s.Enroller, hullmark.SigningInput(voucherKind, v.ClusterRoot, s.Voucher), s.Signature) {
		err = errors.New("the signature is not the enroller's; the voucher was changed")
	}
	if err != nil {
		return Voucher{}, nil, fmt.Errorf("open voucher: %w", err)
	}
	return v, s.Enroller, nil
}

// ReadVoucher reads a signed voucher without looking at its signature: for whoever shows one, or took it before.
func ReadVoucher(signed []byte) (Voucher, ed25519.PublicKey, error) {
	v, s, err := readVoucher(signed, func(ed25519.PublicKey) bool { return true })
	if err != nil {
		return Voucher{}, nil, fmt.Errorf("read voucher: %w", err)
	}
	return v, s.Enroller, nil
}

// ErrEnroller says that a voucher is by a key that no group names.
var ErrEnroller = errors.New("no group's enroller has this key")

func readVoucher(signed []byte, trusted func(ed25519.PublicKey) bool) (v Voucher, s signedVoucher, err error) {
	if err := strict(signed, MaxVoucher, &s); err != nil {
		return v, s, err
	}
	if len(s.Enroller) != ed25519.PublicKeySize || len(s.Signature) != ed25519.SignatureSize {
		return v, s, fmt.Errorf("a key of %d and a signature of %d bytes, want Ed25519's %d and %d", len(s.Enroller), len(s.Signature), ed25519.PublicKeySize, ed25519.SignatureSize)
	}
	if !trusted(s.Enroller) {
		return v, s, fmt.Errorf("%w: %x", ErrEnroller, s.Enroller)
	}
	if err := strict(s.Voucher, MaxVoucher, &v); err != nil {
		return Voucher{}, s, err
	}
	if err := v.Check(); err != nil {
		return Voucher{}, s, err
	}
	return v, s, errors.Join(hullmark.CheckCanonicalJSON(s.Voucher, v), hullmark.CheckCanonicalJSON(signed, s))
}

// ParseEnrollers reads public keys in PEM (SubjectPublicKeyInfo, RFC 8410), at least one, as a Group has them.
func ParseEnrollers(text []byte) (keys [][]byte, err error) {
	for len(bytes.TrimSpace(text)) > 0 {
		block, rest := pem.Decode(text)
		if block == nil || block.Type != "PUBLIC KEY" || !bytes.HasPrefix(bytes.TrimSpace(text), []byte("-----BEGIN ")) {
			return nil, errors.New("enrollers: want public keys in PEM and nothing else")
		}
		public, ok := bytes.CutPrefix(block.Bytes, []byte(spkiEd25519))
		if !ok {
			return nil, errors.New("enrollers: a key of another kind than Ed25519")
		}
		if err := CheckEd25519(public); err != nil {
			return nil, fmt.Errorf("enrollers: %w", err)
		}
		keys, text = append(keys, public), rest
	}
	if len(keys) == 0 {
		return nil, errors.New("enrollers: no public key in PEM")
	}
	return keys, nil
}

// Enrolls reports whether a group names an enroller's key.
func (g Group) Enrolls(enroller ed25519.PublicKey) bool {
	return slices.ContainsFunc(g.Enrollers, func(key []byte) bool { return enroller.Equal(ed25519.PublicKey(key)) })
}

// Enrolls reports whether any group names an enroller's key.
func (p Policy) Enrolls(enroller ed25519.PublicKey) bool {
	return slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Enrolls(enroller) })
}

// Group returns the group of a name, and whether there is one.
func (p Policy) Group(name string) (Group, bool) {
	i := slices.IndexFunc(p.Groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return Group{}, false
	}
	return p.Groups[i], true
}

// GroupOfRecord returns the name of the group that a machine is of by what its record keeps: that of its voucher, and without one
// the group that gave it its name.
func GroupOfRecord(name string, ekid hullmark.EKID, voucher []byte) (group string, ok bool) {
	if len(voucher) == 0 {
		return GroupOf(name, ekid)
	}
	v, _, err := ReadVoucher(voucher)
	return v.Group, err == nil
}

// Recorded returns the policy's group that a machine is of by what its record keeps, if it still gives such names. Whether it admits
// the machine is for a join service to say.
func (p Policy) Recorded(name string, ekid hullmark.EKID, voucher []byte) (Group, bool) {
	of, ok := GroupOfRecord(name, ekid, voucher)
	g, exists := p.Group(of)
	if !ok || !exists || (len(g.Enrollers) > 0) != (len(voucher) > 0) {
		return Group{}, false
	}
	return g, true
}
