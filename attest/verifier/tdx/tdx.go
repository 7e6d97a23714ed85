package tdx

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/pcrs"
)

// intelRoot is the SHA-256 of the public key (SubjectPublicKeyInfo) of Intel's SGX Root CA, whose certificate was issued anew with the same
// key.
const intelRoot = "a0af031289f5d5d4132f9186068a7fc13628633ba235777472e29b6b6c67a49e"

// kind names the evidence in refusals.
const kind = hullmark.PlatformTDX

// The bits of a guest's attributes (Intel TDX Module Base Specification, ATTRIBUTES).
const (
	attributeDebug  = 0x01
	attributesTUD   = 0xff // all of the first byte make the guest untrusted
	septVEDisable   = 1 << 28
	attributesKnown = septVEDisable | 1<<29 | 1<<30 | 1<<31 | 1<<63 // and MIGRATABLE, PKS, KL, PERFMON
	migratable      = 1 << 29
)

// Demands say what a quote has to show. The zero value accepts no guest: it names no measurement.
type Demands struct {
	// MRTDs are the accepted measurements of the guest's firmware.
	MRTDs []evidence.Hex `json:"mrtds"`
	// RTMRs are the accepted values of the run-time registers: at each number a list, of which an empty one accepts any value.
	RTMRs [4][]evidence.Hex `json:"rtmrs,omitzero"`
	// MRConfigIDs, MROwners and MROwnerConfigs are the accepted identifiers that the host gave at launch; empty accepts any.
	MRConfigIDs    []evidence.Hex `json:"mrConfigIDs,omitempty"`
	MROwners       []evidence.Hex `json:"mrOwners,omitempty"`
	MROwnerConfigs []evidence.Hex `json:"mrOwnerConfigs,omitempty"`
	// Statuses are accepted beside UpToDate, and then only with Advisories.
	Statuses []Status `json:"statuses,omitempty"`
	// Advisories are those that may apply to firmware of such a status.
	Advisories []string `json:"advisories,omitempty"`
	// MinimumEvaluation is the least tcbEvaluationDataNumber of the collateral.
	MinimumEvaluation uint64 `json:"minimumEvaluation,omitempty"`
	// CollateralFrom is the earliest issue date of each part; CRLs have no numbers that rise.
	CollateralFrom time.Time `json:"collateralFrom,omitzero"`
	// Overdue is for how many days collateral may be used after the update that it announces.
	Overdue int `json:"overdueDays,omitempty"`
	// AllowSEPTVE accepts guests without SEPT_VE_DISABLE, as a paravisor's are.
	AllowSEPTVE bool `json:"allowSEPTVE,omitempty"`
	// AllowSMT accepts platforms with hyper-threading, and those of which it is not known.
	AllowSMT bool `json:"allowSMT,omitempty"`
	// FMSPCs and Instances are the accepted models and platform instances; empty accepts any.
	FMSPCs    []evidence.Hex `json:"fmspcs,omitempty"`
	Instances []evidence.Hex `json:"instances,omitempty"`
}

// Verifier verifies quotes; it is safe for concurrent use.
type Verifier struct {
	// TestRoots are certificates, in DER, of roots for tests, accepted beside Intel's.
	TestRoots [][]byte
}

// Verified is what a quote proves.
type Verified struct {
	Quote      Quote
	Status     Status
	Advisories []string
	// FMSPC is the platform's model; Instance identifies it, empty where its certificate does not.
	FMSPC, Instance evidence.Hex
	// Evaluation is the collateral's tcbEvaluationDataNumber.
	Evaluation uint64
	// TestRoot reports that the chain ends at a root for tests.
	TestRoot bool
}

// Measured returns the registers that the quote proves.
func (v Verified) Measured() pcrs.Values {
	values := pcrs.Values{pcrs.MRTD: v.Quote.MRTD[:]}
	for i := range v.Quote.RTMRs {
		values[pcrs.RTMR(i)] = v.Quote.RTMRs[i][:]
	}
	return values
}

// Verify holds a quote to Intel's signatures, to the collateral and to demands, at a time. reportData is what the quote has to carry.
// A refusal is an *evidence.Refusal with every reason that was found.
func (v *Verifier) Verify(raw []byte, collateral Collateral, demands Demands, reportData [64]byte, at time.Time) (Verified, error) {
	q, err := Parse(raw)
	if err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Malformed, "the quote cannot be read", err)
	}
	chain, testRoot, err := v.readChain(q.chain)
	if err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Chain, "the quote's certificates", err)
	}
	if err := q.checkSignatures(chain[0]); err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Signature, "the quote", err)
	}
	p, err := readPlatform(chain[0])
	if err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Malformed, "the quote's certificates", err)
	}
	verified := Verified{Quote: q, FMSPC: p.fmspc, Instance: p.instance, TestRoot: testRoot}
	var reasons evidence.Reasons
	if q.ReportData != reportData {
		reasons.Differ(evidence.NotBound, hex.EncodeToString(reportData[:]), hex.EncodeToString(q.ReportData[:]), "the quote was made for something else")
	}
	for _, certificate := range chain {
		if at.Before(certificate.NotBefore) || at.After(certificate.NotAfter) {
			reasons.Add(evidence.Expired, "the certificate of %.60q holds from %s to %s", certificate.Subject.CommonName, certificate.NotBefore.Format(time.DateOnly), certificate.NotAfter.Format(time.DateOnly))
		}
	}
	demands.judgeGuest(&q, &reasons)
	demands.judgePlatform(p, &reasons)
	v.judgeFirmware(&verified, p, chain, collateral, demands, at, &reasons)
	return verified, reasons.Refusal(kind)
}

// readChain reads leaf, intermediate and root, and checks that each signed the one before. The root is Intel's, or one for tests.
func (v *Verifier) readChain(ders [][]byte) (chain []*x509.Certificate, testRoot bool, err error) {
	if len(ders) != maxChain {
		return nil, false, fmt.Errorf("%d certificates, want %d", len(ders), maxChain)
	}
	for _, der := range ders {
		certificate, err := readCertificate(der)
		if err != nil {
			return nil, false, err
		}
		chain = append(chain, certificate)
	}
	root := chain[2]
	testRoot = v.forTests(root)
	if !testRoot && !v.trusts(root) {
		return nil, false, fmt.Errorf("they end at %.80q, which is not Intel's root", root.Subject.CommonName)
	}
	for i, certificate := range chain {
		if certificate.IsCA != (i > 0) {
			return nil, false, fmt.Errorf("certificate %d, of %.80q: CA is %t", i, certificate.Subject.CommonName, certificate.IsCA)
		}
		if err := certificate.CheckSignatureFrom(chain[min(i+1, 2)]); err != nil {
			return nil, false, fmt.Errorf("certificate of %.80q: %w", certificate.Subject.CommonName, err)
		}
	}
	return chain, testRoot, nil
}

// forTests reports whether a root is one of those for tests, trusts whether it is Intel's.
func (v *Verifier) forTests(root *x509.Certificate) bool {
	return slices.ContainsFunc(v.TestRoots, func(der []byte) bool { return string(der) == string(root.Raw) })
}

func (v *Verifier) trusts(root *x509.Certificate) bool {
	key := sha256.Sum256(root.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(key[:]) == intelRoot
}

func readCertificate(der []byte) (*x509.Certificate, error) {
	certificate, err := x509.ParseCertificate(der)
	if err == nil && len(certificate.Raw) != len(der) {
		return nil, errors.New("certificate: data after its end")
	}
	return certificate, err
}

// checkSignatures follows PCK, report of the quoting enclave, attestation key, quote.
func (q *Quote) checkSignatures(pck *x509.Certificate) error {
	if !verifyRaw(pck.PublicKey, q.qeReport, q.qeSignature) {
		return errors.New("the PCK did not sign the quoting enclave's report")
	}
	key := sha256.Sum256(append(slices.Clone(q.key), q.authenticationData...))
	if want := append(key[:], make([]byte, 32)...); string(want) != string(q.qe.reportData[:]) {
		return errors.New("the quoting enclave's report names another attestation key")
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append([]byte{4}, q.key...))
	if err != nil || !verifyRaw(public, q.signed, q.signature) {
		return errors.New("the attestation key did not sign it")
	}
	return nil
}

// verifyRaw checks an ECDSA P-256 signature over SHA-256, both numbers as 32 bytes.
func verifyRaw(public any, message, signature []byte) bool {
	key, ok := public.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() || len(signature) != signatureSize {
		return false
	}
	digest := sha256.Sum256(message)
	return ecdsa.Verify(key, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
}

// judgeGuest compares what the guest was launched with and measured since.
func (d Demands) judgeGuest(q *Quote, reasons *evidence.Reasons) {
	attributes := binary.LittleEndian.Uint64(q.Attributes[:])
	switch {
	case attributes&attributeDebug != 0:
		reasons.Add(evidence.Debug, "the host may read the guest's memory: DEBUG is on")
	case attributes&attributesTUD != 0:
		reasons.Add(evidence.Debug, "the guest is not trusted by its attributes %#x", attributes)
	}
	if attributes&migratable != 0 {
		reasons.Add(evidence.Debug, "the guest may be moved to another machine: MIGRATABLE is on")
	}
	if attributes&^uint64(attributesKnown|attributesTUD) != 0 {
		reasons.Add(evidence.Flags, "attributes %#x have bits that are not known", attributes)
	}
	if attributes&septVEDisable == 0 && !d.AllowSEPTVE {
		reasons.Add(evidence.Flags, "SEPT_VE_DISABLE is off: the host can raise exceptions in the guest")
	}
	if q.MRServiceTD != ([48]byte{}) {
		reasons.Add(evidence.Debug, "a service TD is bound to the guest, which may move it")
	}
	if !evidence.Contains(d.MRTDs, q.MRTD[:]) {
		reasons.Differ(evidence.Measurement, fmt.Sprintf("one of %d", len(d.MRTDs)), hex.EncodeToString(q.MRTD[:]), "MRTD is not an accepted one: other firmware, or pages in another order")
	}
	for i, accepted := range d.RTMRs {
		judgeListed(reasons, fmt.Sprintf("RTMR %d", i), accepted, q.RTMRs[i][:])
	}
	judgeListed(reasons, "MRCONFIGID", d.MRConfigIDs, q.MRConfigID[:])
	judgeListed(reasons, "MROWNER", d.MROwners, q.MROwner[:])
	judgeListed(reasons, "MROWNERCONFIG", d.MROwnerConfigs, q.MROwnerConfig[:])
}

func judgeListed(reasons *evidence.Reasons, what string, accepted []evidence.Hex, got []byte) {
	if len(accepted) > 0 && !evidence.Contains(accepted, got) {
		reasons.Differ(evidence.Measurement, fmt.Sprintf("one of %d", len(accepted)), hex.EncodeToString(got), "%s is not an accepted one", what)
	}
}

// judgePlatform compares what Intel certified of the machine.
func (d Demands) judgePlatform(p platform, reasons *evidence.Reasons) {
	if !d.AllowSMT && (p.smt || !p.smtKnown) {
		reasons.Add(evidence.Flags, "hyper-threading is on, or its certificate does not say")
	}
	if len(d.FMSPCs) > 0 && !evidence.Contains(d.FMSPCs, p.fmspc) {
		reasons.Differ(evidence.Product, fmt.Sprintf("one of %d", len(d.FMSPCs)), hex.EncodeToString(p.fmspc), "the platform's model (FMSPC) is not an accepted one")
	}
	if len(d.Instances) > 0 && !evidence.Contains(d.Instances, p.instance) {
		reasons.Differ(evidence.Instance, fmt.Sprintf("one of %d", len(d.Instances)), hex.EncodeToString(p.instance), "the platform is not an accepted one")
	}
}

// judgeFirmware opens the collateral and rates the machine by it.
func (v *Verifier) judgeFirmware(verified *Verified, p platform, chain []*x509.Certificate, c Collateral, d Demands, at time.Time, reasons *evidence.Reasons) {
	if len(c.TCBInfo) == 0 {
		reasons.Add(evidence.NoCollateral, "no collateral of model %x is stored (hullmark collateral fetch)", p.fmspc)
		return
	}
	o, err := v.open(c, chain[2])
	if err == nil {
		err = o.pck.CheckSignatureFrom(chain[1])
	}
	if err != nil {
		reasons.Add(evidence.NoCollateral, "the collateral cannot be used: %v", err)
		return
	}
	if string(o.tcb.FMSPC) != string(p.fmspc) || string(o.tcb.PCEID) != string(p.pceID) {
		reasons.Differ(evidence.NoCollateral, hex.EncodeToString(p.fmspc), hex.EncodeToString(o.tcb.FMSPC), "the collateral is of another model")
		return
	}
	o.judgeDates(d, at, reasons)
	o.judgeRevoked(chain, reasons)
	if !o.qe.matches(verified.Quote.qe) {
		reasons.Add(evidence.Signer, "the quote was made by another enclave than Intel's quoting enclave")
	}
	verified.Evaluation = min(o.tcb.Evaluation, o.qe.Evaluation)
	if verified.Evaluation < d.MinimumEvaluation {
		reasons.Differ(evidence.TCB, d.MinimumEvaluation, verified.Evaluation, "the collateral is of an earlier evaluation than is accepted")
	}
	if verified.Status, verified.Advisories, err = o.rate(&verified.Quote, p); err != nil {
		reasons.Add(evidence.TCB, "%v", err)
		return
	}
	d.judgeStatus(verified, reasons)
}

func (d Demands) judgeStatus(v *Verified, reasons *evidence.Reasons) {
	if v.Status == UpToDate {
		return
	}
	if v.Status == Revoked || !slices.Contains(d.Statuses, v.Status) {
		reasons.Differ(evidence.TCB, UpToDate, v.Status, "the platform's firmware, with advisories %v", v.Advisories)
		return
	}
	for _, advisory := range v.Advisories {
		if !slices.Contains(d.Advisories, advisory) {
			reasons.Add(evidence.TCB, "advisory %s applies to the platform's firmware, and is not accepted", advisory)
		}
	}
}

// day is a day of days that demands count.
const day = 24 * time.Hour

// judgeDates holds each part of the collateral to the time, and to the demanded floor.
func (o *opened) judgeDates(d Demands, at time.Time, reasons *evidence.Reasons) {
	for _, part := range []struct {
		name         string
		issued, next time.Time
	}{
		{"TCB info", o.tcb.Issued, o.tcb.Next},
		{"QE identity", o.qe.Issued, o.qe.Next},
		{"PCK CRL", o.pck.ThisUpdate, o.pck.NextUpdate},
		{"root CRL", o.root.ThisUpdate, o.root.NextUpdate},
	} {
		if part.issued.Before(d.CollateralFrom) {
			reasons.Differ(evidence.Expired, d.CollateralFrom.Format(time.DateOnly)+" or later", part.issued.Format(time.DateOnly), "the %s is older than is accepted", part.name)
		}
		if at.Before(part.issued) || at.After(part.next.Add(time.Duration(d.Overdue)*day)) {
			reasons.Differ(evidence.Expired, part.issued.Format(time.DateOnly)+" to "+part.next.Format(time.DateOnly), at.Format(time.DateOnly), "the %s is out of its time", part.name)
		}
	}
}

func (o *opened) judgeRevoked(chain []*x509.Certificate, reasons *evidence.Reasons) {
	for i, crl := range []*x509.RevocationList{o.pck, o.root} {
		for _, entry := range crl.RevokedCertificateEntries {
			if entry.SerialNumber.Cmp(chain[i].SerialNumber) == 0 {
				reasons.Add(evidence.Revoked, "the certificate of %.60q was revoked", chain[i].Subject.CommonName)
			}
		}
	}
}

// matches reports whether the enclave is the one that the identity describes.
func (i qeIdentity) matches(e enclave) bool {
	return string(i.MRSigner) == string(e.mrSigner[:]) && i.ProductID == uint64(e.productID) &&
		maskedEqual(e.miscSelect[:], i.MiscMask, i.MiscSelect) && maskedEqual(e.attributes[:], i.AttributesMask, i.Attributes)
}

// Check reports what keeps demands from being any policy's.
func (d Demands) Check() error {
	if len(d.MRTDs) == 0 {
		return errors.New("mrtds: want at least one")
	}
	for name, list := range map[string][]evidence.Hex{
		"mrtds": d.MRTDs, "rtmrs[0]": d.RTMRs[0], "rtmrs[1]": d.RTMRs[1], "rtmrs[2]": d.RTMRs[2], "rtmrs[3]": d.RTMRs[3],
		"mrConfigIDs": d.MRConfigIDs, "mrOwners": d.MROwners, "mrOwnerConfigs": d.MROwnerConfigs,
	} {
		if slices.ContainsFunc(list, func(h evidence.Hex) bool { return len(h) != 48 }) {
			return fmt.Errorf("%s: want 96 hexadecimal digits each", name)
		}
	}
	for _, s := range d.Statuses {
		if s == Revoked || !slices.Contains(statuses, s) {
			return fmt.Errorf("statuses: %.40q is unknown, or never accepted", s)
		}
	}
	if d.Overdue < 0 || d.Overdue > 366 {
		return fmt.Errorf("overdueDays: %d, want 0 to 366", d.Overdue)
	}
	return nil
}
