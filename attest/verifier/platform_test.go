package verifier_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/pcrs"
)

// madeUp is a kind of platform whose report is right if it says so, and whose returned report is the binding.
type madeUp struct {
	kind  string
	shown []evidence.Shown
}

func (m *madeUp) Verify(shown evidence.Shown, at time.Time) (evidence.Proven, error) {
	m.shown = append(m.shown, shown)
	var reasons evidence.Reasons
	if string(shown.Report) != "genuine" {
		reasons.Add(evidence.Signature, "the report is not genuine")
	}
	if !bytes.Equal(shown.Returned, shown.Binding) {
		reasons.Add(evidence.NotBound, "the report was made for another exchange")
	}
	if at.IsZero() {
		reasons.Add(evidence.Expired, "no time was given")
	}
	return evidence.Proven{
		Claims: hullmark.PlatformClaims{Trust: hullmark.TrustTestConfidential, Platform: m.kind, Product: "Made-up"}, Instance: "chip 7",
		Measured: pcrs.Values{pcrs.LaunchDigest: make([]byte, 48)},
	}, reasons.Refusal("made-up")
}

// exchangeOn runs an exchange in which the machine shows evidence of its platform; change may forge it.
func (s *scene) exchangeOn(t *testing.T, platform evidence.Platform, change func(*wire.Proof)) (attest.Claims, error) {
	t.Helper()
	demands := verifier.Demands{Roots: testRoots, Anchor: s.anchor()}
	if platform != nil {
		demands.Platform = func(node hullmark.EKID, kind string) evidence.Platform {
			if node != s.prover.Node() || kind != "made-up" {
				return nil
			}
			return platform
		}
	}
	exchange, err := verifier.Begin(s.encoded(t), s.channelKey, demands)
	if err != nil {
		t.Fatal(err)
	}
	binding := s.bind(t, s.activate(t, exchange))
	proof := s.prove(t, binding)
	proof.PlatformReport = binding[:]
	change(proof)
	return exchange.Verify(proof)
}

func TestPlatformEvidence(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	genuine, same := &wire.Platform{Kind: "made-up", Report: []byte("genuine")}, func(*wire.Proof) {}
	s.hello.Platform = genuine
	verdict := &madeUp{kind: "made-up"}
	claims, err := s.exchangeOn(t, verdict, same)
	if err != nil || claims.Platform.Trust != hullmark.TrustTestConfidential || claims.Instance != "chip 7" || len(claims.Measured[pcrs.LaunchDigest]) != 48 {
		t.Fatalf("the positive control: %+v, %v", claims.Platform, err)
	}
	if shown := verdict.shown[0]; !bytes.Equal(shown.EKPublic, s.hello.EkPublic) || !bytes.Equal(shown.AKPublic, s.hello.AkPublic) ||
		!bytes.Equal(shown.Registers[attest.ConfigRegister], claims.Registers[attest.ConfigRegister][:]) {
		t.Error("the platform is shown other keys or registers than the exchange's")
	}

	other := make([]byte, 32)
	_, err = s.exchangeOn(t, verdict, func(p *wire.Proof) { p.PlatformReport = other })
	wantCode(t, err, "platform-refused", "made for another exchange")
	s.hello.Platform = &wire.Platform{Kind: "made-up", Report: []byte("forged")}
	_, err = s.exchangeOn(t, verdict, func(p *wire.Proof) { p.PlatformReport = other })
	wantCode(t, err, "platform-refused", "the report is not genuine", "made for another exchange")

	// Evidence of another kind than its verifier says is none.
	s.hello.Platform = genuine
	_, err = s.exchangeOn(t, &madeUp{kind: "other"}, same)
	wantCode(t, err, "platform-refused", "the evidence is of kind other")
	verdict.shown = nil
	s.hello.Platform = nil
	_, err = s.exchangeOn(t, verdict, same)
	wantCode(t, err, "message-malformed", "Hello named no platform")
	if len(verdict.shown) > 0 {
		t.Error("a platform was judged that was not named")
	}
}

// TestPlatformAfterTheQuote holds the order: what a Hello says of a platform is looked at only when the machine's quote is verified.
func TestPlatformAfterTheQuote(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	s.hello.Platform = &wire.Platform{Kind: "made-up", Report: []byte("genuine")}
	verdict := &madeUp{kind: "made-up"}
	_, err := s.exchangeOn(t, verdict, func(p *wire.Proof) {
		p.Signature = append([]byte{}, p.Signature...)
		p.Signature[len(p.Signature)-1] ^= 1
	})
	wantCode(t, err, "quote-signature")
	if len(verdict.shown) > 0 {
		t.Error("a platform was judged before the quote")
	}
}

// TestPlatformNobodyAskedFor wants evidence that the verifier does not demand to count for nothing.
func TestPlatformNobodyAskedFor(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	for _, kind := range []string{"made-up", "unheard-of"} {
		s.hello.Platform = &wire.Platform{Kind: kind, Report: []byte("forged")}
		var platform evidence.Platform
		if kind == "unheard-of" {
			platform = &madeUp{kind: kind}
		}
		claims, err := s.exchangeOn(t, platform, func(*wire.Proof) {})
		if err != nil || claims.Platform != (hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}) || claims.Instance != "" || claims.Measured != nil {
			t.Errorf("%s: %+v, %v", kind, claims.Platform, err)
		}
	}
}

func TestPlatformLimits(t *testing.T) {
	s := newScene(t, tpmtest.New(t))
	for name, platform := range map[string]*wire.Platform{
		"no kind":               {Report: []byte("x")},
		"a long kind":           {Kind: string(make([]byte, wire.MaxPlatformKind+1))},
		"an empty certificate":  {Kind: "made-up", Certificates: [][]byte{{1}, {}}},
		"too many certificates": {Kind: "made-up", Certificates: bytes.SplitAfter(make([]byte, wire.MaxPlatformCertificates+1), []byte{0})[:wire.MaxPlatformCertificates+1]},
		"too large in all":      {Kind: "made-up", Report: make([]byte, wire.MaxPlatform/2), Quote: make([]byte, wire.MaxPlatform/2)},
	} {
		s.hello.Platform = platform
		if _, err := wire.EncodeHello(s.hello); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	s.hello.Platform = &wire.Platform{Kind: "made-up", Report: make([]byte, wire.MaxPlatform/2), Certificates: [][]byte{make([]byte, wire.MaxCertificate)}}
	if _, err := wire.EncodeHello(s.hello); err != nil {
		t.Errorf("the positive control: %v", err)
	}
	if err := wire.CheckFromNode(&wire.FromNode{Message: &wire.FromNode_Proof{Proof: &wire.Proof{PcrValues: make([]byte, wire.PCRValues), PlatformReport: make([]byte, wire.MaxPlatformReport+1)}}}); err == nil {
		t.Error("a platform report of any size is accepted")
	}
}

func TestRefusalNamesEveryReason(t *testing.T) {
	var reasons evidence.Reasons
	if reasons.Refusal("x") != nil {
		t.Error("a refusal without a reason")
	}
	reasons.Add(evidence.Debug, "debug is on")
	reasons.Differ(evidence.TCB, 8, 7, "the firmware is old")
	var refusal *evidence.Refusal
	if err := reasons.Refusal("made-up"); !errors.As(err, &refusal) || !refusal.Has(evidence.Debug) || !refusal.Has(evidence.TCB) || refusal.Has(evidence.Chain) ||
		err.Error() != "made-up evidence: debug is on; the firmware is old (expected 8, got 7)" {
		t.Errorf("%v", refusal)
	}
	var h evidence.Hex
	for _, wrong := range []string{"AB", "a", "0x00", "zz"} {
		if h.UnmarshalText([]byte(wrong)) == nil {
			t.Errorf("%q is read as bytes", wrong)
		}
	}
	if err := h.UnmarshalText([]byte("00ff")); err != nil || h.String() != "00ff" || !evidence.Contains([]evidence.Hex{h}, []byte{0, 255}) || evidence.Contains(nil, nil) {
		t.Errorf("%v, %v", h, err)
	}
}
