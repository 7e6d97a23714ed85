package verifier_test

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-tpm-tools/client"
	pb "github.com/google/go-tpm-tools/proto/attest"
	tpmpb "github.com/google/go-tpm-tools/proto/tpm"
	"github.com/google/go-tpm-tools/server"
	legacy "github.com/google/go-tpm/legacy/tpm2"
	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// akKey reads the attestation key's public half as the oracles want it.
func akKey(t *testing.T, encoded []byte) crypto.PublicKey {
	t.Helper()
	area, err := legacy.DecodePublic(encoded)
	if err != nil {
		t.Fatal(err)
	}
	key, err := area.Key()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// evidenceOf makes one honest proof and returns it with its binding.
func evidenceOf(t *testing.T) (*scene, *wire.Proof, attest.Binding) {
	t.Helper()
	s := newScene(t, tpmtest.New(t))
	exchange := s.begin(t)
	binding := s.bind(t, s.activate(t, exchange))
	proof := s.prove(t, binding)
	if _, err := exchange.Verify(proof); err != nil {
		t.Fatal(err)
	}
	return s, proof, binding
}

// toolsFormat lays register values out as tpm2-tools keep them in a file: the C
// structures TPML_PCR_SELECTION, a count, and that many TPML_DIGEST, little-endian.
func toolsFormat(values []byte) []byte {
	const (
		selections, selectionSize = 16, 8
		perList, digestRoom       = 8, 64
	)
	out := binary.LittleEndian.AppendUint32(nil, 1)
	selection := make([]byte, selections*selectionSize)
	binary.LittleEndian.PutUint16(selection, uint16(tpm2.TPMAlgSHA256))
	copy(selection[2:], []byte{3, 0xff, 0xfb, 0})
	out = binary.LittleEndian.AppendUint32(append(out, selection...), 2)
	for len(values) > 0 {
		n := min(perList, len(values)/sha256.Size)
		out = binary.LittleEndian.AppendUint32(out, uint32(n))
		for i := range perList {
			digest := make([]byte, 2+digestRoom)
			if i < n {
				binary.LittleEndian.PutUint16(digest, sha256.Size)
				copy(digest[2:], values[i*sha256.Size:(i+1)*sha256.Size])
			}
			out = append(out, digest...)
		}
		values = values[n*sha256.Size:]
	}
	return out
}

// TestCheckquoteAgrees holds our evidence to tpm2_checkquote, and a changed register value too.
func TestCheckquoteAgrees(t *testing.T) {
	if _, err := exec.LookPath("tpm2_checkquote"); err != nil {
		t.Fatal("tpm2_checkquote is missing: apt-get install tpm2-tools")
	}
	s, proof, binding := evidenceOf(t)
	spki, err := x509.MarshalPKIXPublicKey(akKey(t, s.hello.AkPublic))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"ak.pem": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}),
		"quote":  proof.GetQuoted(), "signature": proof.GetSignature(), "values": toolsFormat(proof.GetPcrValues()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func() ([]byte, error) {
		cmd := exec.Command("tpm2_checkquote", "-u", "ak.pem", "-m", "quote", "-s", "signature", "-g", "sha256",
			"-f", "values", "-q", hex.EncodeToString(binding[:]))
		cmd.Dir = dir
		return cmd.CombinedOutput()
	}
	if output, err := check(); err != nil {
		t.Fatalf("tpm2_checkquote refuses our evidence: %v\n%s", err, output)
	}
	proof.PcrValues[0] ^= 1
	if err := os.WriteFile(filepath.Join(dir, "values"), toolsFormat(proof.PcrValues), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := check(); err == nil {
		t.Errorf("tpm2_checkquote accepts other register values:\n%s", output)
	}
}

// TestVerifyAttestationAgrees holds our evidence to go-tpm-tools' verifier.
func TestVerifyAttestationAgrees(t *testing.T) {
	s, proof, binding := evidenceOf(t)
	registers, err := attest.ParseRegisters(proof.GetPcrValues())
	if err != nil {
		t.Fatal(err)
	}
	values := map[uint32][]byte{}
	for _, pcr := range attest.Quoted() {
		values[uint32(pcr)] = registers[pcr][:]
	}
	attestation := &pb.Attestation{AkPub: s.hello.AkPublic, Quotes: []*tpmpb.Quote{{
		Quote: proof.GetQuoted(), RawSig: proof.GetSignature(),
		Pcrs: &tpmpb.PCRs{Hash: tpmpb.HashAlgo_SHA256, Pcrs: values},
	}}}
	options := server.VerifyOpts{Nonce: binding[:], TrustedAKs: []crypto.PublicKey{akKey(t, s.hello.AkPublic)}}
	if _, err := server.VerifyAttestation(attestation, options); err != nil {
		t.Fatalf("VerifyAttestation refuses our evidence: %v", err)
	}
	options.Nonce = make([]byte, 32)
	if _, err := server.VerifyAttestation(attestation, options); err == nil {
		t.Error("VerifyAttestation accepts another binding")
	}
}

// TestDefaultEKsAgree compares the templates of the low range with go-tpm-tools' own copies of them. Those of the high range are held
// to what swtpm makes (TestEndorsementKeys).
func TestDefaultEKsAgree(t *testing.T) {
	rsa, ecc := client.DefaultEKTemplateRSA(), client.DefaultEKTemplateECC()
	rsa.RSAParameters.ModulusRaw = make([]byte, 256)
	for name, template := range map[string]legacy.Public{"rsa-2048": rsa, "ecc-p256": ecc} {
		encoded, err := template.Encode()
		if err != nil {
			t.Fatal(err)
		}
		public, own, ok := attest.ParseEK(encoded)
		if !ok || own.Name != name {
			t.Errorf("go-tpm-tools' template is taken for %q", own.Name)
			continue
		}
		if hullmark.EKIDOf(encoded) != hullmark.EKIDOf(tpm2.Marshal(public)) {
			t.Errorf("%s: the two encodings of the template differ", name)
		}
	}
}
