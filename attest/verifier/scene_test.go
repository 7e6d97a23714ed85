package verifier_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// testRoot is the verifier's cluster, whose root is the first of testRoots.
var (
	testRoot  = hullmark.ClusterRoot{0xc1}
	testRoots = []hullmark.ClusterRoot{testRoot}
)

const testConfig = `{"version":1,"clusterRoot":"c100000000000000000000000000000000000000000000000000000000000000","stateDisk":{"serial":"state"}}`

// scene is a machine that booted as it should, and one channel to it.
type scene struct {
	tpm        *tpmtest.TPM
	prover     *prover.Prover
	channelKey []byte
	hello      *wire.Hello
}

func newScene(t *testing.T, tpm *tpmtest.TPM) *scene {
	t.Helper()
	tpm.Extend(t, 4, []byte("boot"))
	tpm.Extend(t, 11, []byte("image"))
	tpm.Extend(t, attest.ConfigRegister, hullmark.ConfigEvent([]byte(testConfig)))
	return arrive(t, tpm)
}

// arrive opens the prover and prepares Hello, whatever the registers hold.
func arrive(t *testing.T, tpm *tpmtest.TPM) *scene {
	t.Helper()
	p, err := prover.Open(tpm, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	identity := p.Identity()
	return &scene{
		tpm: tpm, prover: p, channelKey: make([]byte, attest.ChannelKeySize),
		hello: &wire.Hello{
			Version: attest.Version, EkPublic: identity.EKPublic, EkCertificate: identity.EKCertificate, AkPublic: identity.AKPublic,
			NodeConfig: []byte(testConfig), Disk: wire.FromDiskClaim(hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{7}}),
		},
	}
}

// anchor names the scene's own TPM.
func (s *scene) anchor() verifier.Anchor {
	node := s.prover.Node()
	return verifier.Anchor{EKID: &node}
}

func (s *scene) encoded(t *testing.T) []byte {
	t.Helper()
	hello, err := wire.EncodeHello(s.hello)
	if err != nil {
		t.Fatal(err)
	}
	return hello
}

// begin does the verifier's first step.
func (s *scene) begin(t *testing.T) *verifier.Exchange {
	t.Helper()
	exchange, err := verifier.Begin(s.encoded(t), s.channelKey, verifier.Demands{Roots: testRoots, Anchor: s.anchor()})
	if err != nil {
		t.Fatal(err)
	}
	return exchange
}

// activate has the TPM answer the exchange's challenge.
func (s *scene) activate(t *testing.T, exchange *verifier.Exchange) hullmark.Secret {
	t.Helper()
	credential, encrypted, err := exchange.Challenge(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := s.prover.Activate(credential, encrypted)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// bind computes the extraData that the node's side would use.
func (s *scene) bind(t *testing.T, secret hullmark.Secret) attest.Binding {
	t.Helper()
	binding, err := attest.Bind(s.channelKey, secret, s.encoded(t))
	if err != nil {
		t.Fatal(err)
	}
	return binding
}

// prove quotes and returns Proof.
func (s *scene) prove(t *testing.T, binding attest.Binding) *wire.Proof {
	t.Helper()
	evidence, err := s.prover.Prove(binding)
	if err != nil {
		t.Fatal(err)
	}
	return proofOf(evidence)
}

func proofOf(evidence prover.Evidence) *wire.Proof {
	return &wire.Proof{Quoted: evidence.Quoted, Signature: evidence.Signature, PcrValues: evidence.Registers.Bytes()}
}

// honest runs the whole exchange as both sides should.
func (s *scene) honest(t *testing.T) (attest.Claims, error) {
	t.Helper()
	exchange := s.begin(t)
	return exchange.Verify(s.prove(t, s.bind(t, s.activate(t, exchange))))
}

// wantCode checks which condition an error carries, and that it says so in these words.
func wantCode(t *testing.T, err error, code string, says ...string) {
	t.Helper()
	var condition *hullmark.Condition
	if !errors.As(err, &condition) {
		t.Fatalf("got error %v, want condition %s", err, code)
	}
	if condition.Code != code {
		t.Fatalf("got %v, want condition %s", condition, code)
	}
	if condition.Step == "" || condition.Next == "" {
		t.Errorf("condition %s does not say its step and what to do next", code)
	}
	text := strings.Join([]string{condition.Title, condition.Expected, condition.Got}, "\n")
	for _, want := range says {
		if !strings.Contains(text, want) {
			t.Errorf("condition %s says %q, want %q", code, text, want)
		}
	}
}

// rogueQuote makes the prover's own AK quote with any selection, which the prover itself never does.
func (s *scene) rogueQuote(t *testing.T, binding attest.Binding, selection tpm2.TPMLPCRSelection) *wire.Proof {
	t.Helper()
	template, err := tpm2.Unmarshal[tpm2.TPMTPublic](s.prover.Identity().AKPublic)
	if err != nil {
		t.Fatal(err)
	}
	template.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{})
	ak, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(*template),
	}.Execute(s.tpm)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = tpm2.FlushContext{FlushHandle: ak.ObjectHandle}.Execute(s.tpm) }()
	quote, err := tpm2.Quote{
		SignHandle:     tpm2.AuthHandle{Handle: ak.ObjectHandle, Name: ak.Name, Auth: tpm2.PasswordAuth(nil)},
		QualifyingData: tpm2.TPM2BData{Buffer: binding[:]},
		InScheme:       tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgNull},
		PCRSelect:      selection,
	}.Execute(s.tpm)
	if err != nil {
		t.Fatal(err)
	}
	registers, err := prover.ReadRegisters(s.tpm)
	if err != nil {
		t.Fatal(err)
	}
	return &wire.Proof{Quoted: quote.Quoted.Bytes(), Signature: tpm2.Marshal(quote.Signature), PcrValues: registers.Bytes()}
}
