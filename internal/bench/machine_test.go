package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"

	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// machine is what a machine with a rule sends. No TPM made it: that of each of hundreds would take longer than the service to be measured.
// Its evidence is as good for any number of exchanges, since their secret is constant's.
type machine struct {
	rule  measurements.Member
	hello []byte
	proof *wire.Proof
}

func newMachine(b *testing.B, name string, root hullmark.ClusterRoot, document measurements.Document, from *peer.Peer) *machine {
	b.Helper()
	ak, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	config := []byte(`{"version":1,"clusterRoot":"` + root.String() + `","stateDisk":{"serial":"state"}}`)
	ek := endorsementKey()
	m := &machine{rule: measurements.Member{EKID: hullmark.EKIDOf(ek), Role: hullmark.Worker, Name: name}}
	if m.hello, err = wire.EncodeHello(&wire.Hello{
		Version: attest.Version, EkPublic: ek, AkPublic: attestationKey(b, ak), NodeConfig: config,
		Disk: wire.FromDiskClaim(hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{7}}),
	}); err != nil {
		b.Fatal(err)
	}
	secret, err := hullmark.RandomSecret(constant{}, attest.SecretSize)
	if err != nil {
		b.Fatal(err)
	}
	channelKey, err := channel.Key(from)
	if err != nil {
		b.Fatal(err)
	}
	binding, err := attest.Bind(channelKey, secret, m.hello)
	if err != nil {
		b.Fatal(err)
	}
	var registers attest.Registers
	for register, value := range document.Values(pcrs.SHA256) {
		copy(registers[register][:], value)
	}
	registers[attest.ConfigRegister] = attest.Extended(hullmark.ConfigEvent(config))
	m.proof = quote(b, ak, binding, registers)
	return m
}

// endorsementKey is of the default template. Nobody decrypts with it, so that any odd number will do.
func endorsementKey() []byte {
	modulus := make([]byte, 256)
	_, _ = rand.Read(modulus) // never fails
	modulus[0] |= 0x80
	modulus[len(modulus)-1] |= 1
	return nodetest.EndorsementKey(modulus)
}

func attestationKey(b *testing.B, key *ecdsa.PrivateKey) []byte {
	b.Helper()
	public, err := nodetest.AttestationKey(key)
	if err != nil {
		b.Fatal(err)
	}
	return public
}

func quote(b *testing.B, key *ecdsa.PrivateKey, binding attest.Binding, registers attest.Registers) *wire.Proof {
	b.Helper()
	e, err := nodetest.QuoteOf(key, binding, registers)
	if err != nil {
		b.Fatal(err)
	}
	return &wire.Proof{Quoted: e.Quoted, Signature: e.Signature, PcrValues: e.Registers.Bytes()}
}
