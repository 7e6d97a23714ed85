package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"testing"

	"github.com/google/go-tpm/tpm2"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
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
	ek := endorsementKey(b)
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
func endorsementKey(b *testing.B) []byte {
	b.Helper()
	modulus := make([]byte, 256)
	_, _ = rand.Read(modulus) // never fails
	modulus[0] |= 0x80
	modulus[len(modulus)-1] |= 1
	public := tpm2.RSAEKTemplate
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus})
	return tpm2.Marshal(public)
}

// attestationKey is as the prover has the TPM make it.
func attestationKey(b *testing.B, key *ecdsa.PrivateKey) []byte {
	b.Helper()
	point, err := key.PublicKey.Bytes()
	if err != nil {
		b.Fatal(err)
	}
	public := attest.AKOf(point[1:33], point[33:])
	return tpm2.Marshal(public)
}

// quote composes and signs what a TPM does.
func quote(b *testing.B, key *ecdsa.PrivateKey, binding attest.Binding, registers attest.Registers) *wire.Proof {
	b.Helper()
	digest := registers.Digest()
	quoted := tpm2.Marshal(tpm2.TPMSAttest{
		Magic: tpm2.TPMGeneratedValue, Type: tpm2.TPMSTAttestQuote, ExtraData: tpm2.TPM2BData{Buffer: binding[:]},
		Attested: tpm2.NewTPMUAttest(tpm2.TPMSTAttestQuote, &tpm2.TPMSQuoteInfo{
			PCRSelect: attest.Selection(), PCRDigest: tpm2.TPM2BDigest{Buffer: digest[:]},
		}),
	})
	hash := sha256.Sum256(quoted)
	r, s, err := ecdsa.Sign(rand.Reader, key, hash[:])
	if err != nil {
		b.Fatal(err)
	}
	signature := tpm2.Marshal(tpm2.TPMTSignature{
		SigAlg: tpm2.TPMAlgECDSA,
		Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgECDSA, &tpm2.TPMSSignatureECC{
			Hash: tpm2.TPMAlgSHA256, SignatureR: tpm2.TPM2BECCParameter{Buffer: r.Bytes()}, SignatureS: tpm2.TPM2BECCParameter{Buffer: s.Bytes()},
		}),
	})
	return &wire.Proof{Quoted: quoted, Signature: signature, PcrValues: registers.Bytes()}
}
