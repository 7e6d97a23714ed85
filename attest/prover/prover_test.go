package prover_test

import (
	"crypto/sha256"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

func open(t *testing.T, tpm *tpmtest.TPM) *prover.Prover {
	t.Helper()
	p, err := prover.Open(tpm, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestOpenMakesTheSameKeyAsThePersistentOne(t *testing.T) {
	tpm := tpmtest.NewCertified(t)
	persistent := open(t, tpm)
	if len(persistent.Identity().EKCertificate) == 0 {
		t.Error("the EK certificate of a certified TPM was not found")
	}
	made, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(tpm2.RSAEKTemplate),
	}.Execute(tpm)
	if err != nil {
		t.Fatal(err)
	}
	public, err := made.OutPublic.Contents()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(persistent.Identity().EKPublic), string(tpm2.Marshal(public)); got != want {
		t.Error("the persistent EK is not the template's key")
	}
	if _, ok := attest.ParseAK(persistent.Identity().AKPublic); !ok {
		t.Error("verifiers have to take the attestation key apart")
	}
}

func TestCloseFreesTheTPM(t *testing.T) {
	tpm := tpmtest.New(t)
	for range 8 { // A TPM without a resource manager has three slots.
		p, err := prover.Open(tpm, hullmark.EKID{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExtendEventReachesEveryBank(t *testing.T) {
	tpm := tpmtest.New(t)
	data := []byte("an event")
	if err := prover.ExtendEvent(tpm, attest.ConfigRegister, data); err != nil {
		t.Fatal(err)
	}
	registers, err := prover.ReadRegisters(tpm)
	if err != nil {
		t.Fatal(err)
	}
	if registers[attest.ConfigRegister] != attest.Extended(data) {
		t.Error("PCR 8 is not what Extended computes")
	}
	read, err := tpm2.PCRRead{PCRSelectionIn: tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{
		Hash: tpm2.TPMAlgSHA384, PCRSelect: []byte{0, 1, 0},
	}}}}.Execute(tpm)
	if err != nil {
		t.Fatal(err)
	}
	if got := read.PCRValues.Digests; len(got) != 1 || string(got[0].Buffer) == string(make([]byte, 48)) {
		t.Error("the SHA-384 bank was not extended")
	}
	if err := prover.ExtendEvent(tpm, 16, data); err == nil {
		t.Error("a register beyond 15 was extended")
	}
}

func TestProveStatesTheRegistersItReturns(t *testing.T) {
	tpm := tpmtest.New(t)
	tpm.Extend(t, 11, []byte("image"))
	p := open(t, tpm)
	evidence, err := p.Prove(attest.Binding(sha256.Sum256([]byte("binding"))))
	if err != nil {
		t.Fatal(err)
	}
	if evidence.Registers[11] != attest.Extended([]byte("image")) {
		t.Error("PCR 11 is not the value that was extended")
	}
	if got := p.Identity().EKCertificate; got != nil {
		t.Errorf("a TPM without certificates showed one of %d bytes", len(got))
	}
}

func TestActivateRefusesRubbish(t *testing.T) {
	p := open(t, tpmtest.New(t))
	for name, blob := range map[string][]byte{"empty": nil, "short": {0, 9, 1}, "zeros": make([]byte, 70)} {
		if _, err := p.Activate(blob, blob); err == nil {
			t.Errorf("%s: activated", name)
		}
	}
}
