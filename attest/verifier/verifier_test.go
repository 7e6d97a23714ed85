package verifier_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

func TestHonestMachine(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	claims, err := s.honest(t)
	if err != nil {
		t.Fatal(err)
	}
	if claims.EKID != s.prover.Node() || claims.Certified || claims.Platform.Trust != hullmark.TrustTPM {
		t.Errorf("claims name node %s, certified %v, trust %q", claims.EKID, claims.Certified, claims.Platform.Trust)
	}
	if claims.Registers[11] != attest.Extended([]byte("image")) {
		t.Error("PCR 11 in the claims is not the machine's")
	}
	if claims.Config.StateDisk.Serial != "state" || claims.Disk.State != hullmark.DiskBlank {
		t.Error("the claims lost the node config or the disk")
	}
}

// TestOneTPM shares one emulator among the cases that leave its registers alone.
func TestOneTPM(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	if _, err := s.honest(t); err != nil {
		t.Fatalf("the positive control of every case below: %v", err)
	}
	if err := s.prover.Close(); err != nil { // A TPM has room for three keys.
		t.Fatal(err)
	}
	const unbound, selection = "the quote was not made for this channel, this challenge and this first message", "the quote covers other registers than SHA-256 0-9 and 11-15"
	for name, c := range map[string]struct {
		code, says string
		run        func(*testing.T, *scene) error
	}{
		"another EK than the named one":        {"ek-unexpected", "another endorsement key than the named one", otherEK},
		"no EK named":                          {"ek-not-named", "no endorsement key was named", noAnchor},
		"EK of another template":               {"ek-template", "not one of the TCG's templates", otherTemplate},
		"another version":                      {"version-unsupported", "another version of the exchange", otherVersion},
		"node config with an unknown field":    {"message-malformed", `node config: json: unknown field "role"`, unknownConfigField},
		"Hello with an unknown field":          {"message-malformed", "Hello: unknown field", unknownHelloField},
		"oversize Hello":                       {"message-malformed", "Hello: ", oversizeHello},
		"AK that signs anything":               {"ak-attributes", "the attestation key could sign what is not a quote", unrestrictedAK},
		"software AK":                          {"quote-not-bound", unbound, softwareAK},
		"quote from another channel":           {"quote-not-bound", unbound, otherChannel},
		"quote for an earlier challenge":       {"quote-not-bound", unbound, replayed},
		"Hello changed after the quote":        {"quote-not-bound", unbound, changedHello},
		"fewer registers":                      {"quote-selection", selection, fewerRegisters},
		"an extra bank":                        {"quote-selection", selection, extraBank},
		"another bank":                         {"quote-selection", selection, otherBank},
		"wide selection bytes":                 {"quote-selection", selection, extraRegister},
		"register values of another boot":      {"quote-digest", "the shown register values are not the quoted ones", otherValues},
		"signature with a flipped bit":         {"quote-signature", "the quote was not signed by the attestation key", flippedSignature},
		"statement with a flipped bit":         {"quote-signature", "the quote was not signed by the attestation key", flippedStatement},
		"empty proof":                          {"message-malformed", "Proof: ", emptyProof},
		"node config that PCR 8 does not hold": {"config-mismatch", "PCR 8 does not hold the node config that the node shows", otherConfig},
	} {
		t.Run(name, func(t *testing.T) {
			fresh := arrive(t, s.tpm)
			defer func() { _ = fresh.prover.Close() }()
			wantCode(t, c.run(t, fresh), c.code, c.says)
		})
	}
}

func begin(t *testing.T, s *scene, anchor verifier.Anchor) error {
	t.Helper()
	_, err := verifier.Begin(s.encoded(t), s.channelKey, verifier.Demands{Roots: testRoots, Anchor: anchor})
	return err
}

func otherEK(t *testing.T, s *scene) error {
	return begin(t, s, verifier.Anchor{EKID: &hullmark.EKID{1}})
}

func noAnchor(t *testing.T, s *scene) error { return begin(t, s, verifier.Anchor{}) }

func otherTemplate(t *testing.T, s *scene) error {
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](s.hello.EkPublic)
	if err != nil {
		t.Fatal(err)
	}
	public.ObjectAttributes.UserWithAuth = true
	s.hello.EkPublic = tpm2.Marshal(public)
	return begin(t, s, s.anchor())
}

func otherVersion(t *testing.T, s *scene) error {
	s.hello.Version = 2
	return begin(t, s, s.anchor())
}

func unknownConfigField(t *testing.T, s *scene) error {
	s.hello.NodeConfig = []byte(strings.Replace(testConfig, `"version":1`, `"version":1,"role":"control-plane"`, 1))
	return begin(t, s, s.anchor())
}

func unknownHelloField(t *testing.T, s *scene) error {
	_, err := verifier.Begin(append(s.encoded(t), 0x42, 0), s.channelKey, verifier.Demands{Roots: testRoots, Anchor: s.anchor()}) // field 8, empty
	return err
}

func oversizeHello(_ *testing.T, s *scene) error {
	_, err := verifier.Begin(make([]byte, wire.MaxHello+1), s.channelKey, verifier.Demands{Roots: testRoots, Anchor: s.anchor()})
	return err
}

func unrestrictedAK(t *testing.T, s *scene) error {
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](s.hello.AkPublic)
	if err != nil {
		t.Fatal(err)
	}
	public.ObjectAttributes.Restricted = false
	s.hello.AkPublic = tpm2.Marshal(public)
	exchange := s.begin(t)
	if _, _, err := exchange.Challenge(rand.Reader); err != nil {
		t.Fatal(err)
	}
	return second(exchange.Verify(s.prove(t, attest.Binding{})))
}

func second(_ attest.Claims, err error) error { return err }

// softwareAK shows a key that no TPM holds, with all the right attributes, and
// quotes with it whatever it likes; only S it cannot know.
func softwareAK(t *testing.T, s *scene) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](s.hello.AkPublic)
	if err != nil {
		t.Fatal(err)
	}
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: point[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: point[33:]},
	})
	s.hello.AkPublic = tpm2.Marshal(public)
	exchange := s.begin(t)
	credential, encrypted, err := exchange.Challenge(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.prover.Activate(credential, encrypted); err == nil {
		t.Fatal("the TPM activated a key that it does not hold")
	}
	guess := hullmark.NewSecret(make([]byte, attest.SecretSize))
	return second(exchange.Verify(forge(t, key, s.prove(t, s.bind(t, guess)))))
}

// forge signs a genuine statement again with another key.
func forge(t *testing.T, key *ecdsa.PrivateKey, proof *wire.Proof) *wire.Proof {
	t.Helper()
	digest := sha256.Sum256(proof.GetQuoted())
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	proof.Signature = tpm2.Marshal(tpm2.TPMTSignature{
		SigAlg: tpm2.TPMAlgECDSA,
		Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgECDSA, &tpm2.TPMSSignatureECC{
			Hash:       tpm2.TPMAlgSHA256,
			SignatureR: tpm2.TPM2BECCParameter{Buffer: r.Bytes()},
			SignatureS: tpm2.TPM2BECCParameter{Buffer: s.Bytes()},
		}),
	})
	return proof
}

func otherChannel(t *testing.T, s *scene) error {
	exchange := s.begin(t)
	secret := s.activate(t, exchange)
	s.channelKey = append([]byte{1}, s.channelKey[1:]...)
	return second(exchange.Verify(s.prove(t, s.bind(t, secret))))
}

func replayed(t *testing.T, s *scene) error {
	old := s.prove(t, s.bind(t, s.activate(t, s.begin(t))))
	exchange := s.begin(t)
	s.activate(t, exchange)
	return second(exchange.Verify(old))
}

func changedHello(t *testing.T, s *scene) error {
	exchange := s.begin(t)
	secret := s.activate(t, exchange)
	s.hello.Disk.Uuid[0]++
	return second(exchange.Verify(s.prove(t, s.bind(t, secret))))
}

func selected(t *testing.T, s *scene, selections ...tpm2.TPMSPCRSelection) error {
	t.Helper()
	exchange := s.begin(t)
	binding := s.bind(t, s.activate(t, exchange))
	return second(exchange.Verify(s.rogueQuote(t, binding, tpm2.TPMLPCRSelection{PCRSelections: selections})))
}

func fewerRegisters(t *testing.T, s *scene) error {
	return selected(t, s, tpm2.TPMSPCRSelection{Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{0xff, 0x7b, 0}})
}

func extraRegister(t *testing.T, s *scene) error {
	return selected(t, s, tpm2.TPMSPCRSelection{Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{0xff, 0xff, 0}})
}

func otherBank(t *testing.T, s *scene) error {
	return selected(t, s, tpm2.TPMSPCRSelection{Hash: tpm2.TPMAlgSHA384, PCRSelect: []byte{0xff, 0xfb, 0}})
}

func extraBank(t *testing.T, s *scene) error {
	return selected(t, s, tpm2.TPMSPCRSelection{Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{0xff, 0xfb, 0}},
		tpm2.TPMSPCRSelection{Hash: tpm2.TPMAlgSHA384, PCRSelect: []byte{0xff, 0xfb, 0}})
}

// edited makes a genuine proof and changes it before it is verified.
func edited(t *testing.T, s *scene, edit func(*wire.Proof)) error {
	t.Helper()
	exchange := s.begin(t)
	proof := s.prove(t, s.bind(t, s.activate(t, exchange)))
	edit(proof)
	return second(exchange.Verify(proof))
}

func otherValues(t *testing.T, s *scene) error {
	return edited(t, s, func(p *wire.Proof) { p.PcrValues[0] ^= 1 })
}

func flippedSignature(t *testing.T, s *scene) error {
	return edited(t, s, func(p *wire.Proof) { p.Signature[len(p.Signature)-1] ^= 1 })
}

func flippedStatement(t *testing.T, s *scene) error {
	return edited(t, s, func(p *wire.Proof) { p.Quoted[len(p.Quoted)-1] ^= 1 })
}

func emptyProof(t *testing.T, s *scene) error {
	return edited(t, s, func(p *wire.Proof) { p.Reset() })
}

func otherConfig(t *testing.T, s *scene) error {
	s.hello.NodeConfig = []byte(strings.Replace(testConfig, `"state"`, `"other"`, 1))
	return second(s.honest(t))
}

func TestAnotherClustersNode(t *testing.T) {
	tpm := tpmtest.New(t)
	config := strings.Replace(testConfig, "c1", "c2", 1)
	tpm.Extend(t, attest.ConfigRegister, hullmark.ConfigEvent([]byte(config)))
	s := arrive(t, tpm)
	s.hello.NodeConfig = []byte(config)
	wantCode(t, second(s.honest(t)), "cluster-mismatch", "the node was configured for another cluster", testRoot.String())
	// To its own operator it is as good as any, and to one whose root its root has handed over to.
	for _, roots := range [][]hullmark.ClusterRoot{{{0xc2}}, {testRoot, {0xc2}}} {
		exchange, err := verifier.Begin(s.encoded(t), s.channelKey, verifier.Demands{Roots: roots, Anchor: s.anchor()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := exchange.Verify(s.prove(t, s.bind(t, s.activate(t, exchange)))); err != nil {
			t.Errorf("the positive control: %v", err)
		}
	}
}

func TestBlownFuse(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	if _, err := s.honest(t); err != nil {
		t.Fatalf("the positive control: %v", err)
	}
	s.tpm.Extend(t, attest.FuseRegister, hullmark.ClusterEvent(testRoot))
	wantCode(t, second(s.honest(t)), "fuse-blown", "already used a ticket in this boot: PCR 15 is not zero")
}

func TestCertifiedEK(t *testing.T) {
	s := newScene(t, tpmtest.NewCertified(t))
	anchor := s.anchor()
	anchor.Authorities = authorities(t, s.tpm.CA)
	exchange, err := verifier.Begin(s.encoded(t), s.channelKey, verifier.Demands{Roots: testRoots, Anchor: anchor})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := exchange.Verify(s.prove(t, s.bind(t, s.activate(t, exchange))))
	if err != nil || !claims.Certified {
		t.Fatalf("certified %v, error %v", claims.Certified, err)
	}
	other := tpmtest.NewCertified(t)
	anchor.Authorities = authorities(t, other.CA)
	wantCode(t, begin(t, s, anchor), "ek-uncertified", "no named authority vouches for the endorsement key")
	anchor.Authorities = authorities(t, s.tpm.CA)
	s.hello.EkCertificate = arrive(t, other).hello.EkCertificate
	wantCode(t, begin(t, s, anchor), "ek-uncertified", "no named authority vouches for the endorsement key")
	s.hello.EkCertificate = largerKey(t)
	wantCode(t, begin(t, s, anchor), "ek-uncertified", "no named authority vouches for the endorsement key")
	s.hello.EkCertificate = nil
	wantCode(t, begin(t, s, anchor), "ek-uncertified", "no named authority vouches for the endorsement key")
}

// largerKey is a certificate of a key that no EK has room for.
func largerKey(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// A verifier's own rules get the EK's certificate if it is of that very key, and nothing else.
func TestMembersSeeTheCertificate(t *testing.T) {
	s := newScene(t, tpmtest.NewCertified(t))
	var seen *ekcert.Certificate
	anchor := verifier.Anchor{Admits: func(node hullmark.EKID, ek *ekcert.Certificate) bool {
		seen = ek
		return node == s.prover.Node()
	}}
	exchange, err := verifier.Begin(s.encoded(t), s.channelKey, verifier.Demands{Roots: testRoots, Anchor: anchor})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := exchange.Verify(s.prove(t, s.bind(t, s.activate(t, exchange))))
	if err != nil || claims.Certified || claims.EKCertificate != seen || string(seen.Raw) != string(s.hello.EkCertificate) {
		t.Errorf("certified %v by %v, error %v", claims.Certified, seen, err)
	}
	for name, other := range map[string][]byte{"another key's": arrive(t, tpmtest.NewCertified(t)).hello.EkCertificate, "a larger key's": largerKey(t), "none": nil, "no certificate": []byte("x")} {
		s.hello.EkCertificate = other
		if err := begin(t, s, anchor); err != nil || seen != nil {
			t.Errorf("%s: the rules see %v, error %v", name, seen, err)
		}
	}
}

func TestAuthoritiesThatAreCutOff(t *testing.T) {
	data, err := os.ReadFile(tpmtest.NewCertified(t).CA)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := verifier.ParseAuthorities(append(data, data[:len(data)/2]...)); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("%d certificates, %v", len(parsed), err)
	}
	if parsed, err := verifier.ParseAuthorities(append(data, data...)); err != nil || len(parsed) != 2 {
		t.Errorf("%d certificates, %v", len(parsed), err)
	}
}

func authorities(t *testing.T, file string) []*x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := verifier.ParseAuthorities(data)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestBeginWantsARoot(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	if _, err := verifier.Begin(s.encoded(t), s.channelKey, verifier.Demands{Anchor: s.anchor()}); err == nil || !strings.Contains(err.Error(), "no cluster root") {
		t.Errorf("an exchange without a root: %v", err)
	}
}
