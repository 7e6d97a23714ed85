// Package evidence holds what the verifiers of platforms share: what a machine shows, what is proven of it, and why it is refused.
// Each kind of platform has a package of its own beside this one, which decodes and judges the bytes of that kind, without a
// network, by what it is given.
package evidence

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/pcrs"
)

// Code names why evidence is refused, in lower-case words joined by hyphens. Codes are stable: programs may compare them.
type Code string

// The codes that every kind of evidence uses alike. A kind may add its own.
const (
	// Malformed is evidence that cannot be read, or can be read in two ways.
	Malformed Code = "evidence-malformed"
	// Unsupported is evidence of a version, an algorithm or a product that is not known here.
	Unsupported Code = "evidence-unsupported"
	// Signature is a signature that does not hold.
	Signature Code = "evidence-signature"
	// Chain is a certificate that no trusted root signed, or that is of another kind than it should be.
	Chain Code = "evidence-chain"
	// Expired is a certificate or a collateral outside of its time.
	Expired Code = "evidence-expired"
	// Revoked is a certificate that its issuer withdrew.
	Revoked Code = "evidence-revoked"
	// NoCollateral is collateral that is needed and was not given.
	NoCollateral Code = "collateral-missing"
	// NotBound is evidence that was made for something else: another key, another channel, another exchange.
	NotBound Code = "evidence-not-bound"
	// Measurement is a launch measurement, or a register, that is not among the accepted ones.
	Measurement Code = "launch-unknown"
	// Debug is a machine whose memory its host may read, or that may be moved to another one.
	Debug Code = "debug-allowed"
	// TCB is firmware of a platform that is older than is accepted, or withdrawn.
	TCB Code = "tcb-too-old"
	// Product is a product that is not accepted.
	Product Code = "product-refused"
	// Flags are settings of the machine or of its platform that are not accepted.
	Flags Code = "flags-refused"
	// Signer is a launch that nobody who is accepted signed.
	Signer Code = "signer-unknown"
	// Instance is a chip, a platform or an instance that is not on the list.
	Instance Code = "instance-unknown"
)

// Reason is one reason against evidence.
type Reason struct {
	Code Code `json:"code"`
	// Text says the reason in one line for people.
	Text string `json:"text"`
	// Expected and Got are the two sides of a comparison that failed; both may be empty.
	Expected string `json:"expected,omitempty"`
	Got      string `json:"got,omitempty"`
}

// String says the reason in one line.
func (r Reason) String() string {
	switch {
	case r.Expected != "" && r.Got != "":
		return fmt.Sprintf("%s (expected %s, got %s)", r.Text, r.Expected, r.Got)
	case r.Expected != "":
		return fmt.Sprintf("%s (expected %s)", r.Text, r.Expected)
	case r.Got != "":
		return fmt.Sprintf("%s (got %s)", r.Text, r.Got)
	}
	return r.Text
}

// Reasons gathers reasons, so that a verdict names all of them.
type Reasons []Reason

// Add adds one. format and arguments make its text.
func (r *Reasons) Add(code Code, format string, arguments ...any) {
	*r = append(*r, Reason{Code: code, Text: fmt.Sprintf(format, arguments...)})
}

// Differ adds a comparison that failed.
func (r *Reasons) Differ(code Code, expected, got any, format string, arguments ...any) {
	*r = append(*r, Reason{Code: code, Text: fmt.Sprintf(format, arguments...), Expected: fmt.Sprint(expected), Got: fmt.Sprint(got)})
}

// Refusal returns nil without reasons, otherwise a *Refusal of the platform's evidence.
func (r Reasons) Refusal(platform string) error {
	if len(r) == 0 {
		return nil
	}
	return &Refusal{Platform: platform, Reasons: slices.Clone(r)}
}

// Refusal is evidence that is refused, with every reason that was found.
type Refusal struct {
	// Platform is the kind of the evidence.
	Platform string
	// Reasons has at least one.
	Reasons []Reason
}

// Error names every reason in one line.
func (r *Refusal) Error() string {
	texts := make([]string, len(r.Reasons))
	for i, reason := range r.Reasons {
		texts[i] = reason.String()
	}
	return fmt.Sprintf("%s evidence: %s", r.Platform, strings.Join(texts, "; "))
}

// Has reports whether a reason of that code is among the reasons.
func (r *Refusal) Has(code Code) bool {
	return slices.ContainsFunc(r.Reasons, func(reason Reason) bool { return reason.Code == code })
}

// Refuse returns a *Refusal with one reason. cause may be nil.
func Refuse(platform string, code Code, text string, cause error) error {
	if cause != nil {
		text += ": " + cause.Error()
	}
	return &Refusal{Platform: platform, Reasons: []Reason{{Code: code, Text: text}}}
}

// Hex are bytes that people and policies write in lower-case hexadecimal digits.
type Hex []byte

// String returns the digits.
func (h Hex) String() string { return hex.EncodeToString(h) }

// MarshalText writes the digits.
func (h Hex) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes, and nothing else.
func (h *Hex) UnmarshalText(text []byte) error {
	decoded, err := hex.DecodeString(string(text))
	if err != nil {
		return err
	}
	if hex.EncodeToString(decoded) != string(text) {
		return fmt.Errorf("want lower-case hexadecimal digits, got %.80q", text)
	}
	*h = decoded
	return nil
}

// Contains reports whether one of the list equals value.
func Contains(list []Hex, value []byte) bool {
	return slices.ContainsFunc(list, func(h Hex) bool { return string(h) == string(value) })
}

// Shown is what a machine shows of its platform in one exchange, undecoded and within the limits of the exchange.
type Shown struct {
	// Report is the evidence that does not depend on the exchange, and Quote what a part outside of the machine signed over it
	// (TDX on Azure); either may be empty.
	Report, Quote []byte
	// Certificates are those that the machine has for its evidence, in DER.
	Certificates [][]byte
	// EKPublic and AKPublic are the TPM's keys, each a TPMT_PUBLIC.
	EKPublic, AKPublic []byte
	// Returned is the evidence that was made for this exchange, over Binding; empty for platforms that have none.
	Returned []byte
	// Binding ties evidence to this channel, this secret and the node's first message (attest.Bind).
	Binding []byte
	// Registers are the values of the TPM's registers that a quote of this exchange showed, under AKPublic.
	Registers pcrs.Values
}

// Proven is what verified evidence establishes.
type Proven struct {
	// Claims names class, platform, product and TCB.
	Claims hullmark.PlatformClaims
	// Measured are the registers that the platform's hardware signed, beside those of a TPM.
	Measured pcrs.Values
	// Instance identifies the machine where the platform does: a chip, a platform instance or a provider's name of it, in
	// printable form; empty where nothing does.
	Instance string
	// Notes say what was not checked, and what else a reader should know.
	Notes []string
}

// Platform verifies one kind of platform's evidence within an exchange, by what an operator demands of it.
type Platform interface {
	// Verify judges what a machine shows. at is the time by which certificates and collateral are judged. It returns a *Refusal
	// for evidence that does not hold.
	Verify(shown Shown, at time.Time) (Proven, error)
}
