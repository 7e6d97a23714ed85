package attest

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"hash"
	"testing"

	"github.com/google/go-tpm/tpm2"
)

// The digests of the profile follow from what it says of its policies (TPM 2.0 Part 3 §23.4 and §23.6).
func TestEKPolicies(t *testing.T) {
	for _, template := range ekTemplates {
		newHash := map[tpm2.TPMIAlgHash]func() hash.Hash{tpm2.TPMAlgSHA256: sha256.New, tpm2.TPMAlgSHA384: sha512.New384}[template.HashAlg]
		want := extended(newHash, extended(newHash, nil, tpm2.TPMCCPolicySecret, binary.BigEndian.AppendUint32(nil, uint32(tpm2.TPMRHEndorsement))), 0, nil)
		if branches := template.Branches.Digests; len(branches) > 0 {
			if !bytes.Equal(branches[0].Buffer, want) {
				t.Errorf("%s: PolicyA is %x, want %x", template.Name, branches[0].Buffer, want)
			}
			want = extended(newHash, nil, tpm2.TPMCCPolicyOR, append(bytes.Clone(branches[0].Buffer), branches[1].Buffer...))
		}
		if got := template.common.AuthPolicy.Buffer; !bytes.Equal(got, want) {
			t.Errorf("%s: the policy is %x, want %x", template.Name, got, want)
		}
	}
}

// extended is a policy's digest after a command: nil begins from zero, and 0 is no command but an empty policyRef.
func extended(newHash func() hash.Hash, digest []byte, command tpm2.TPMCC, parameters []byte) []byte {
	h := newHash()
	if digest == nil {
		digest = bytes.Repeat([]byte{0}, h.Size())
	}
	h.Write(digest)
	if command != 0 {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(command)))
	}
	h.Write(parameters)
	return h.Sum(nil)
}

// One key has one encoding, and one template.
func TestParseEK(t *testing.T) {
	for _, template := range EKTemplates() {
		part := bytes.Repeat([]byte{7}, template.size)
		short := template.with(part[1:], part)
		if template.common.Type == tpm2.TPMAlgECC {
			encoded, ok := template.Encode(&short)
			if public, _, known := ParseEK(encoded); !ok || !known || !bytes.Equal(tpm2.Marshal(public), encoded) {
				t.Errorf("%s: a coordinate that begins with a zero is not taken", template.Name)
			}
		}
		if _, _, ok := ParseEK(tpm2.Marshal(short)); ok {
			t.Errorf("%s: a part that is too short is taken", template.Name)
		}
		public := template.with(part, part)
		encoded := tpm2.Marshal(public)
		parsed, of, ok := ParseEK(encoded)
		if !ok || of.Name != template.Name || !bytes.Equal(tpm2.Marshal(parsed), encoded) {
			t.Errorf("%s: %v as %s", template.Name, ok, of.Name)
		}
		unique := 0
		for i := range encoded {
			changed := bytes.Clone(encoded)
			changed[i] ^= 1
			if _, of, ok := ParseEK(changed); ok {
				if unique++; of.Name != template.Name {
					t.Errorf("%s: byte %d changed makes one of %s", template.Name, i, of.Name)
				}
			}
		}
		parts := map[tpm2.TPMIAlgPublic]int{tpm2.TPMAlgRSA: 1, tpm2.TPMAlgECC: 2}[template.common.Type]
		if unique != parts*template.size {
			t.Errorf("%s: %d bytes may change, want %d", template.Name, unique, parts*template.size)
		}
		for name, other := range map[string][]byte{"cut off": encoded[:len(encoded)-1], "longer": append(bytes.Clone(encoded), 0), "the template": tpm2.Marshal(template.with(nil, nil))} {
			if _, _, ok := ParseEK(other); ok {
				t.Errorf("%s: %s is taken", template.Name, name)
			}
		}
	}
}
