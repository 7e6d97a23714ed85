package verifier

import (
	"errors"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/pcrs"
)

// verifyPlatform judges what the machine shows of its platform, once its quote is verified: what a Hello claims of a platform
// grants nothing before. Without evidence, or with that of a kind that is not demanded, the machine stays one of class tpm.
func (e *Exchange) verifyPlatform(claims *attest.Claims, proof *wire.Proof, binding attest.Binding) error {
	shown := e.message.GetPlatform()
	if shown == nil {
		if len(proof.GetPlatformReport()) > 0 {
			return malformed("Proof", errors.New("a platform's report, but Hello named no platform"))
		}
		return nil
	}
	if e.demands.Platform == nil {
		return nil
	}
	platform := e.demands.Platform(claims.EKID, shown.GetKind())
	if platform == nil {
		return nil
	}
	proven, err := platform.Verify(e.shown(shown, proof, binding, claims), time.Now())
	if err == nil && proven.Claims.Platform != shown.GetKind() {
		err = errors.New("the evidence is of kind " + proven.Claims.Platform)
	}
	if err != nil {
		return platformRefused(shown.GetKind(), err)
	}
	claims.Platform, claims.Measured, claims.Instance = proven.Claims, proven.Measured, proven.Instance
	return nil
}

// shown gathers what a platform's verifier needs of the exchange.
func (e *Exchange) shown(platform *wire.Platform, proof *wire.Proof, binding attest.Binding, claims *attest.Claims) evidence.Shown {
	registers := pcrs.Values{}
	for _, pcr := range attest.Quoted() {
		registers[pcrs.Register(pcr)] = claims.Registers[pcr][:]
	}
	return evidence.Shown{
		Report: platform.GetReport(), Quote: platform.GetQuote(), Certificates: platform.GetCertificates(),
		EKPublic: e.message.GetEkPublic(), AKPublic: e.akPublic,
		Returned: proof.GetPlatformReport(), Binding: binding[:], Registers: registers,
	}
}

// platformRefused is the condition of a platform's evidence that does not hold, with all reasons.
func platformRefused(kind string, cause error) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "platform-refused", Step: step, Title: "the evidence of the machine's platform is refused",
		Expected: "evidence of kind " + kind + " that the policy accepts", Got: cause.Error(),
		Next: "change the machine, its host or its firmware so that each reason falls away, or the policy if the reason is none",
	}
}
