package nodetest

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
)

// Keys are a TPM's, as an exchange uses them: an emulator's, behind a prover.Prover, or Software's.
type Keys interface {
	Identity() prover.Identity
	Activate(credential, secret []byte) (hullmark.Secret, error)
	Prove(attest.Binding) (prover.Evidence, error)
}

// Software does in this process what a TPM does in an exchange. A machine with one costs some kilobytes, so that there can be thousands.
type Software struct {
	// Pause is how long it takes for each of its two operations; a TPM on a board needs some hundred milliseconds.
	Pause time.Duration

	ek        *rsa.PrivateKey
	ak        *ecdsa.PrivateKey
	identity  prover.Identity
	registers attest.Registers
}

// SoftwareKeys makes endorsement keys, each another one, of which each takes a product of two primes: a few primes are enough for
// thousands of keys that nobody has to fear for.
type SoftwareKeys struct {
	primes []*big.Int
	i, j   int
}

// exponent is that of a TPM's RSA keys (TPM 2.0 Part 2 §12.2.3.5).
const exponent = 65537

// Next returns a key of 2,048 bits that it has not returned before.
func (k *SoftwareKeys) Next() (*rsa.PrivateKey, error) {
	if k.i++; k.i >= k.j {
		k.i, k.j = 0, k.j+1
	}
	for len(k.primes) <= k.j {
		p, err := rand.Prime(rand.Reader, 1024)
		if err != nil {
			return nil, err
		}
		if new(big.Int).Mod(new(big.Int).Sub(p, big.NewInt(1)), big.NewInt(exponent)).Sign() != 0 {
			k.primes = append(k.primes, p)
		}
	}
	p, q := k.primes[k.i], k.primes[k.j]
	one := big.NewInt(1)
	phi := new(big.Int).Mul(new(big.Int).Sub(p, one), new(big.Int).Sub(q, one))
	key := &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{N: new(big.Int).Mul(p, q), E: exponent}, D: new(big.Int).ModInverse(big.NewInt(exponent), phi), Primes: []*big.Int{p, q},
	}
	key.Precompute()
	return key, nil
}

// NewSoftware returns the keys of a machine that measured a config and booted image, as Boot has it.
func NewSoftware(ek *rsa.PrivateKey, config []byte, image string) (*Software, error) {
	ak, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	s := &Software{ek: ek, ak: ak, identity: prover.Identity{EKPublic: EndorsementKey(ek.N.Bytes())}}
	if s.identity.AKPublic, err = AttestationKey(ak); err != nil {
		return nil, err
	}
	s.extend(attest.ConfigRegister, hullmark.ConfigEvent(config))
	for _, e := range boot(image) {
		s.extend(e.register, []byte(e.text))
	}
	return s, nil
}

func (s *Software) extend(register int, data []byte) {
	measured := sha256.Sum256(data)
	s.registers[register] = sha256.Sum256(append(s.registers[register][:], measured[:]...))
}

// NewWithSoftware returns a machine as New does, and as it is after Boot and Prepare, with keys in the place of a TPM that takes its
// time. It cannot reboot.
func NewWithSoftware(ek *rsa.PrivateKey, root hullmark.ClusterRoot, image string, pause time.Duration) (*Node, error) {
	n := &Node{Config: configOf(root), Disk: hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{7}}}
	keys, err := NewSoftware(ek, n.Config, image)
	if err != nil {
		return nil, err
	}
	keys.Pause = pause
	n.keys, n.ID = keys, hullmark.EKIDOf(keys.identity.EKPublic)
	return n, nil
}

// Identity returns the public halves of both keys.
func (s *Software) Identity() prover.Identity { return s.identity }

// Activate does what TPM2_ActivateCredential does (TPM 2.0 Part 1 §24).
func (s *Software) Activate(credential, secret []byte) (hullmark.Secret, error) {
	time.Sleep(s.Pause)
	seed, err := tpm2.Unmarshal[tpm2.TPM2BEncryptedSecret](secret)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("activate: secret: %w", err)
	}
	blob, err := tpm2.Unmarshal[tpm2.TPM2BIDObject](credential)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("activate: credential: %w", err)
	}
	// A TPMS_ID_OBJECT: an HMAC, with its size before it, and what is encrypted.
	const head = 2 + sha256.Size
	content := blob.Buffer
	if len(content) < head || binary.BigEndian.Uint16(content) != sha256.Size {
		return hullmark.Secret{}, errors.New("activate: credential: it is no TPMS_ID_OBJECT")
	}
	shared, err := rsa.DecryptOAEP(sha256.New(), nil, s.ek, seed.Buffer, []byte("IDENTITY\x00"))
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("activate: secret: %w", err)
	}
	hash := sha256.Sum256(s.identity.AKPublic)
	name := append(binary.BigEndian.AppendUint16(nil, uint16(tpm2.TPMAlgSHA256)), hash[:]...)
	sealed := content[head:]
	mac := hmac.New(sha256.New, tpm2.KDFa(crypto.SHA256, shared, "INTEGRITY", nil, nil, 256))
	mac.Write(sealed)
	mac.Write(name)
	if !hmac.Equal(mac.Sum(nil), content[2:head]) {
		return hullmark.Secret{}, errors.New("activate: the credential is for another key")
	}
	block, err := aes.NewCipher(tpm2.KDFa(crypto.SHA256, shared, "STORAGE", name, nil, 128))
	if err != nil {
		return hullmark.Secret{}, err
	}
	plain, err := tpm2.Unmarshal[tpm2.TPM2BDigest](openCFB(block, sealed))
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("activate: %w", err)
	}
	return hullmark.NewSecret(bytes.Clone(plain.Buffer)), nil
}

// openCFB decrypts what a TPM encrypted: CFB, from zeros (TPM 2.0 Part 1 §11.4.5).
func openCFB(block cipher.Block, sealed []byte) (opened []byte) {
	before, mask := make([]byte, aes.BlockSize), make([]byte, aes.BlockSize)
	for piece := range slices.Chunk(sealed, aes.BlockSize) {
		block.Encrypt(mask, before)
		for i, b := range piece {
			opened = append(opened, b^mask[i])
		}
		before = piece // Only the last is shorter.
	}
	return opened
}

// Prove quotes the registers.
func (s *Software) Prove(binding attest.Binding) (prover.Evidence, error) {
	time.Sleep(s.Pause)
	return QuoteOf(s.ak, binding, s.registers)
}

// EndorsementKey is the TPMT_PUBLIC of a key of the default template with a modulus of 256 bytes.
func EndorsementKey(modulus []byte) []byte {
	public := tpm2.RSAEKTemplate
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus})
	return tpm2.Marshal(public)
}

// AttestationKey is the TPMT_PUBLIC of a key as the prover has the TPM make it.
func AttestationKey(key *ecdsa.PrivateKey) ([]byte, error) {
	point, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	public := attest.AKOf(point[1:33], point[33:])
	return tpm2.Marshal(public), nil
}

// QuoteOf composes and signs what a TPM does.
func QuoteOf(key *ecdsa.PrivateKey, binding attest.Binding, registers attest.Registers) (prover.Evidence, error) {
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
		return prover.Evidence{}, err
	}
	signature := tpm2.Marshal(tpm2.TPMTSignature{
		SigAlg: tpm2.TPMAlgECDSA,
		Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgECDSA, &tpm2.TPMSSignatureECC{
			Hash: tpm2.TPMAlgSHA256, SignatureR: tpm2.TPM2BECCParameter{Buffer: r.Bytes()}, SignatureS: tpm2.TPM2BECCParameter{Buffer: s.Bytes()},
		}),
	})
	return prover.Evidence{Quoted: quoted, Signature: signature, Registers: registers}, nil
}
