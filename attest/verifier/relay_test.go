package verifier_test

import (
	"crypto/rand"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// TestTwoHonestMachines hands evidence on between two honest machines whose exchanges are under way at once. Each gets in by its own.
func TestTwoHonestMachines(t *testing.T) {
	a, b := newScene(t, tpmtest.New(t)), newScene(t, tpmtest.New(t))
	b.channelKey = append([]byte{1}, a.channelKey[1:]...)
	first, other := a.begin(t), b.begin(t)
	a.activate(t, first)
	theirs := b.prove(t, b.bind(t, b.activate(t, other)))
	wantCode(t, second(first.Verify(theirs)), "quote-signature", "the quote was not signed by the attestation key")

	// One's keys are shown on the other's channel, and its TPM answers what comes from there, bound to the channel that it has.
	relayed, err := verifier.Begin(b.encoded(t), a.channelKey, verifier.Demands{Roots: testRoots, Anchor: b.anchor()})
	if err != nil {
		t.Fatal(err)
	}
	answer := b.prove(t, b.bind(t, b.activate(t, relayed)))
	wantCode(t, second(relayed.Verify(answer)), "quote-not-bound", "the quote was not made for this channel")

	// The challenge for one's keys is no other TPM's to answer.
	credential, encrypted, err := b.begin(t).Challenge(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.prover.Activate(credential, encrypted); err == nil {
		t.Error("a TPM activated a credential for another one's keys")
	}

	if _, err := other.Verify(theirs); err != nil {
		t.Errorf("the one whose evidence was shown elsewhere: %v", err)
	}
	if _, err := a.honest(t); err != nil {
		t.Errorf("the one who tried: %v", err)
	}
}

// TestTwoTPMs shows one TPM's EK with another's AK: neither can answer.
func TestTwoTPMs(t *testing.T) {
	victim, attacker := newScene(t, tpmtest.New(t)), newScene(t, tpmtest.New(t))
	attacker.hello.EkPublic = victim.hello.EkPublic
	exchange, err := verifier.Begin(attacker.encoded(t), attacker.channelKey, verifier.Demands{Roots: testRoots, Anchor: victim.anchor()})
	if err != nil {
		t.Fatal(err)
	}
	credential, encrypted, err := exchange.Challenge(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*scene{"the EK's TPM": victim, "the AK's TPM": attacker} {
		if _, err := s.prover.Activate(credential, encrypted); err == nil {
			t.Errorf("%s activated a credential for keys of two TPMs", name)
		}
	}
	guess := attacker.bind(t, hullmark.NewSecret(make([]byte, attest.SecretSize)))
	wantCode(t, second(exchange.Verify(attacker.prove(t, guess))), "quote-not-bound", "the quote was not made for this channel")
}
