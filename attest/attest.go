// Package attest holds what both ends of the exchange compute alike:
// which registers a quote covers, how evidence is bound to one TLS channel, and
// what a verified machine claims.
//
// Package prover produces evidence and package verifier judges whose it is;
// the two never import each other. Package channel has the TLS and the certificates
// by which either end knows the other. docs/protocol.md is the specification.
package attest

import (
	"crypto/sha256"
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/pcrs"
)

// Version is the version of the exchange that Hello carries.
const Version = 1

// OperatorPort is the TCP port at which a node without a ticket waits for its operator.
const OperatorPort = "7443"

// JoinPort is the TCP port at which a join service waits for nodes.
const JoinPort = "7444"

// ChannelKeySize is the length of the keying material exported from the TLS channel, in bytes.
const ChannelKeySize = 32

// SecretSize is the length of the secret S that a verifier sends under the
// node's EK: all that fits a credential for a SHA-256 name (TPM 2.0 Part 1 §24).
const SecretSize = 32

// The registers that the exchange itself gives a meaning.
const (
	// ConfigRegister holds the node configuration and nothing else.
	ConfigRegister = 8
	// FuseRegister is zero until a ticket was used in this boot.
	FuseRegister = 15
)

// unquoted is the one register below 16 that no quote covers: IMA extends it
// with a value that depends on the others' timing, and it adds nothing to them.
const unquoted = 10

// Registers holds the SHA-256 values of PCR 0 to 15 by number. Register 10 is
// never quoted and always zero here.
type Registers [16][sha256.Size]byte

// Quoted returns the numbers of the registers that every quote covers, in
// order: 0 to 9 and 11 to 15.
func Quoted() []int {
	quoted := make([]int, 0, len(Registers{})-1)
	for pcr := range len(Registers{}) {
		if pcr != unquoted {
			quoted = append(quoted, pcr)
		}
	}
	return quoted
}

// Selection returns the one PCR selection that a quote may have: the SHA-256
// bank with the selection bytes FF FB 00 (TPM 2.0 Part 2 §10.6.2).
func Selection() tpm2.TPMLPCRSelection {
	return tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{
		Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{0xff, 0xfb, 0x00},
	}}}
}

// ParseRegisters reads what Bytes writes: the quoted values in order, 480 bytes.
func ParseRegisters(values []byte) (Registers, error) {
	var r Registers
	if want := len(Quoted()) * sha256.Size; len(values) != want {
		return Registers{}, fmt.Errorf("registers: %d bytes, want %d", len(values), want)
	}
	for i, pcr := range Quoted() {
		copy(r[pcr][:], values[i*sha256.Size:])
	}
	return r, nil
}

// Bytes returns the quoted values in order, without separators.
func (r *Registers) Bytes() []byte {
	var values []byte
	for _, pcr := range Quoted() {
		values = append(values, r[pcr][:]...)
	}
	return values
}

// Digest returns the pcrDigest of a SHA-256 quote over these values (TPM 2.0 Part 3 §18.4).
func (r *Registers) Digest() [sha256.Size]byte { return sha256.Sum256(r.Bytes()) }

// Extended returns a register's SHA-256 value after one TPM2_PCR_Event with
// data, from zero: SHA-256(0³² ‖ SHA-256(data)).
func Extended(data []byte) [sha256.Size]byte {
	digest := sha256.Sum256(data)
	return sha256.Sum256(append(make([]byte, sha256.Size), digest[:]...))
}

// Binding is a quote's extraData. It ties the quote to one channel, to one
// activation of the EK, and to everything that the node said in Hello.
type Binding [sha256.Size]byte

// Bind returns SHA-256("hullmark/v1/attest\0" ‖ channelKey ‖ secret ‖
// SHA-256(hello)), where channelKey is ChannelKey's result, secret is S, and
// hello the bytes of Hello. It fails if a length is wrong, because then the
// concatenation could be read in two ways.
func Bind(channelKey []byte, secret hullmark.Secret, hello []byte) (Binding, error) {
	if len(channelKey) != ChannelKeySize || secret.Len() != SecretSize {
		return Binding{}, fmt.Errorf("bind: channel key of %d and secret of %d bytes, want %d and %d",
			len(channelKey), secret.Len(), ChannelKeySize, SecretSize)
	}
	h := sha256.New()
	h.Write([]byte("hullmark/v1/attest\x00"))
	h.Write(channelKey)
	h.Write(secret.Expose())
	helloDigest := sha256.Sum256(hello)
	h.Write(helloDigest[:])
	return Binding(h.Sum(nil)), nil
}

// Claims is what a verified exchange established about a machine. Nothing in
// it says that the machine is wanted: that is package joinservice's to decide.
type Claims struct {
	// EKID is the identity of the TPM that made the quote.
	EKID hullmark.EKID
	// Certified reports that a certificate authority which the verifier named vouches for the EK.
	Certified bool
	// EKCertificate is the certificate that the machine shows of its EK, with a chain; nil if it shows none of this very key. Unless
	// Certified is set, it is not known whether anybody who is trusted signed it.
	EKCertificate *ekcert.Certificate
	// Platform is what the evidence says of what the machine runs on, with its trust class.
	Platform hullmark.PlatformClaims
	// Measured are the registers that the platform's hardware signed, beside those of the TPM; nil where there are none.
	Measured pcrs.Values
	// Instance is what the platform calls the machine, in printable form; empty where it gives it no name.
	Instance string
	// Registers are the quoted values.
	Registers Registers
	// NodeConfig is the configuration that register 8 holds, as bytes and decoded.
	NodeConfig []byte
	// Config is NodeConfig, strictly decoded; its cluster root is the verifier's own, or one that has handed over to it.
	Config hullmark.NodeConfig
	// Disk is what the node says of its state disk; not evidence, but bound to the quote.
	Disk hullmark.DiskClaim
	// EventLog is what the node offers as an explanation of its registers; unverified, may be empty.
	EventLog []byte
}
