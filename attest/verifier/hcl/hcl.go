// Package hcl verifies evidence of confidential machines on Azure. Their TPM is in the paravisor, a program of Azure's inside of the
// machine (HCL, or OpenHCL), and the hardware's report binds that TPM's keys by the claims that the paravisor makes.
//
// The binding holds for a genuine paravisor alone: on any other machine it is the guest who says what a report binds. So what is
// demanded of the report has to name the paravisor, by the key that signed its launch (SNP) or by its measurement (TDX).
package hcl

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-tpm/tpm2"
	"sigs.k8s.io/json"
)

// Sizes in bytes (openvmm, igvm_attest/get.rs: IgvmAttestRequestHeader, IgvmAttestRequestData).
const (
	// MaxReport bounds what NV index 0x01400001 holds.
	MaxReport   = 8 << 10
	headerSize  = 32
	reportSize  = 1184
	requestSize = 20
)

// reportType says which hardware's report a paravisor's holds.
type reportType uint32

const (
	typeSNP reportType = 2
	typeTDX reportType = 4
)

// Report is what a paravisor says: the hardware's report, and claims to which that is bound. Nothing of it is verified.
type Report struct {
	kind reportType
	// Hardware is the hardware's report as it stands there: an SNP report, or a TDREPORT with zeros behind it.
	Hardware []byte
	claims   []byte
	// Keys are the TPM's, by their names in the claims.
	ek, ak []byte
}

// Bound returns what the hardware's report has to carry: SHA-256 of the claims, and zeros.
func (r Report) Bound() (data [64]byte) {
	digest := sha256.Sum256(r.claims)
	copy(data[:], digest[:])
	return data
}

// Claims returns the claims as they stand there.
func (r Report) Claims() []byte { return slices.Clone(r.claims) }

// Decode reads the content of NV index 0x01400001.
func Decode(raw []byte) (Report, error) {
	if len(raw) < headerSize+reportSize+requestSize || len(raw) > MaxReport {
		return Report{}, fmt.Errorf("%d bytes, want %d to %d", len(raw), headerSize+reportSize+requestSize, MaxReport)
	}
	le, header, request := binary.LittleEndian, raw[:headerSize], raw[headerSize+reportSize:]
	size, claims := le.Uint32(request), le.Uint32(request[16:])
	r := Report{kind: reportType(le.Uint32(request[8:])), Hardware: raw[headerSize:][:reportSize]}
	switch version, hash := le.Uint32(request[4:]), le.Uint32(request[12:]); {
	case string(header[:4]) != "HCLA":
		return Report{}, errors.New("it does not begin with HCLA")
	case version != 1:
		return Report{}, fmt.Errorf("request data of version %d, want 1", version)
	case r.kind != typeSNP && r.kind != typeTDX:
		return Report{}, fmt.Errorf("a report of type %d, want %d (SNP) or %d (TDX)", r.kind, typeSNP, typeTDX)
	case hash != 1:
		return Report{}, fmt.Errorf("claims are bound by hash %d, want 1 (SHA-256)", hash)
	case uint64(claims)+requestSize != uint64(size) || uint64(size) > uint64(len(request)):
		return Report{}, fmt.Errorf("claims of %d bytes in request data of %d, of which there are %d", claims, size, len(request))
	case le.Uint32(header[8:]) != headerSize+reportSize+size:
		return Report{}, fmt.Errorf("%d bytes by its header, %d by its parts", le.Uint32(header[8:]), headerSize+reportSize+size)
	case !zero(request[size:]):
		return Report{}, errors.New("data after its end")
	}
	r.claims = request[requestSize:size]
	return r, r.readClaims()
}

func zero(b []byte) bool {
	return !slices.ContainsFunc(b, func(b byte) bool { return b != 0 })
}

// key is one of the claims' keys (RFC 7517).
type key struct {
	ID         string   `json:"kid"`
	Operations []string `json:"key_ops"`
	Type       string   `json:"kty"`
	Exponent   string   `json:"e"`
	Modulus    string   `json:"n"`
}

// exponent65537 is how the claims write the only exponent that the TPM's keys have.
const exponent65537 = "AQAB"

// readClaims takes the keys. Each name stands once and in its exact case; paravisors may claim more than is read here.
func (r *Report) readClaims() error {
	var claims struct {
		Keys []key `json:"keys"`
	}
	strict, err := json.UnmarshalStrict(r.claims, &claims)
	if err != nil {
		return fmt.Errorf("claims: %w", err)
	}
	for _, wrong := range strict {
		if !strings.Contains(wrong.Error(), "unknown field") {
			return fmt.Errorf("claims: %w", wrong)
		}
	}
	for _, k := range claims.Keys {
		into := map[string]*[]byte{"HCLEkPub": &r.ek, "HCLAkPub": &r.ak}[k.ID]
		if into == nil {
			continue
		}
		if *into != nil {
			return fmt.Errorf("claims: %s is there twice", k.ID)
		}
		if k.Type != "RSA" || k.Exponent != exponent65537 {
			return fmt.Errorf("claims: %s is no RSA key with exponent 65537", k.ID)
		}
		if *into, err = base64.RawURLEncoding.Strict().DecodeString(k.Modulus); err != nil || len(*into) != 256 {
			return fmt.Errorf("claims: %s is no key of 2,048 bits", k.ID)
		}
	}
	return nil
}

// MatchEK reports why an endorsement key, a TPMT_PUBLIC, is not the one that the claims name.
func (r Report) MatchEK(public []byte) error {
	if r.ek == nil {
		return errors.New("the claims name no endorsement key, as those of paravisors before 2024: nothing binds the TPM")
	}
	return match("endorsement", r.ek, public)
}

// MatchAK reports why an attestation key, a TPMT_PUBLIC, is not the paravisor's own.
func (r Report) MatchAK(public []byte) error {
	if r.ak == nil {
		return errors.New("the claims name no attestation key")
	}
	return match("attestation", r.ak, public)
}

func match(what string, modulus, public []byte) error {
	decoded, err := tpm2.Unmarshal[tpm2.TPMTPublic](public)
	if err != nil {
		return fmt.Errorf("%s key: %w", what, err)
	}
	parameters, err := decoded.Parameters.RSADetail()
	if err != nil || parameters.Exponent != 0 && parameters.Exponent != 65537 {
		return fmt.Errorf("the %s key is no RSA key with exponent 65537", what)
	}
	unique, err := decoded.Unique.RSA()
	if err != nil || !bytes.Equal(unique.Buffer, modulus) {
		return fmt.Errorf("the %s key is another than the claims name: the report is another machine's", what)
	}
	return nil
}
