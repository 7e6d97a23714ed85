package nodetest

import (
	"crypto/rand"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
)

// A secret for a machine's keys is read with them, and by no other machine's, and no two machines are one.
func TestSoftwareKeys(t *testing.T) {
	var source SoftwareKeys
	seen := map[hullmark.EKID]bool{}
	var machines []*Software
	for range 7 {
		ek, err := source.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := ek.Validate(); err != nil || ek.N.BitLen() != 2048 {
			t.Fatalf("a key of %d bits: %v", ek.N.BitLen(), err)
		}
		s, err := NewSoftware(ek, nil, "image")
		if err != nil {
			t.Fatal(err)
		}
		seen[hullmark.EKIDOf(s.Identity().EKPublic)] = true
		machines = append(machines, s)
	}
	if len(seen) != len(machines) {
		t.Errorf("%d machines have %d identities", len(machines), len(seen))
	}
	credential, secret := challenge(t, machines[0], "a secret of some bytes, 32 of them")
	if got, err := machines[0].Activate(credential, secret); err != nil || string(got.Expose()) != "a secret of some bytes, 32 of them" {
		t.Errorf("%q, %v", got.Expose(), err)
	}
	if _, err := machines[1].Activate(credential, secret); err == nil {
		t.Error("another machine read it")
	}
	credential[len(credential)-1] ^= 1
	if _, err := machines[0].Activate(credential, secret); err == nil {
		t.Error("what was changed was read")
	}
}

// challenge encrypts a secret to a machine as a verifier does.
func challenge(t *testing.T, s *Software, text string) (credential, secret []byte) {
	t.Helper()
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](s.Identity().EKPublic)
	if err != nil {
		t.Fatal(err)
	}
	key, err := tpm2.ImportEncapsulationKey(public)
	if err != nil {
		t.Fatal(err)
	}
	ak, err := tpm2.Unmarshal[tpm2.TPMTPublic](s.Identity().AKPublic)
	if err != nil {
		t.Fatal(err)
	}
	name, err := tpm2.ObjectName(ak)
	if err != nil {
		t.Fatal(err)
	}
	credential, secret, err = tpm2.CreateCredential(rand.Reader, key, name.Buffer, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return tpm2.Marshal(tpm2.TPM2BIDObject{Buffer: credential}), tpm2.Marshal(tpm2.TPM2BEncryptedSecret{Buffer: secret})
}
