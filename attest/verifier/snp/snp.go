package snp

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/pcrs"
)

// kind names the evidence in refusals.
const kind = hullmark.PlatformSNP

// Demands say what a report has to show. The zero value accepts no guest: it names neither measurements nor who signs launches.
type Demands struct {
	// Products are the accepted ones; empty means Genoa and Turin. Milan has to be named: the seed of its chips' keys was extracted
	// (arXiv 2605.12990), against which no version of its firmware helps.
	Products []string `json:"products,omitempty"`
	// Measurements are the accepted launch digests, 48 bytes each.
	Measurements []evidence.Hex `json:"measurements,omitempty"`
	// IDKeys are the digests of keys, 48 bytes each, whose owners may sign launches; MinimumGuestSVN is the least version that they
	// give one. Either list has to name something, and each that does has to be met.
	IDKeys          []evidence.Hex `json:"idKeys,omitempty"`
	MinimumGuestSVN uint32         `json:"minimumGuestSVN,omitempty"`
	// VMPL is the privilege level at which the report has to be asked for.
	VMPL uint32 `json:"vmpl,omitempty"`
	// Floors are the least versions of firmware, one for each product.
	Floors []Floor `json:"floors,omitempty"`
	// AllowSMT accepts platforms with hyper-threading, and AllowNoAliasCheck those that did not look for aliased memory.
	AllowSMT          bool `json:"allowSMT,omitempty"`
	AllowNoAliasCheck bool `json:"allowNoAliasCheck,omitempty"`
	// AllowCXL accepts guests that may use CXL devices.
	AllowCXL bool `json:"allowCXL,omitempty"`
	// CiphertextHiding and NoPageSwap demand these bits of the guest's policy (Heracles).
	CiphertextHiding bool `json:"ciphertextHiding,omitempty"`
	NoPageSwap       bool `json:"noPageSwap,omitempty"`
	// Mitigations are bits that both vectors of a report of version 5 have to have.
	Mitigations uint64 `json:"mitigations,omitempty"`
	// Keys are the accepted kinds of keys; empty means VCEK. Providers are the accepted owners of VLEKs.
	Keys      []Key    `json:"keys,omitempty"`
	Providers []string `json:"providers,omitempty"`
	// HostData and Chips are the accepted values, 32 and 64 bytes each; empty accepts any.
	HostData []evidence.Hex `json:"hostData,omitempty"`
	Chips    []evidence.Hex `json:"chips,omitempty"`
	// CRLs are AMD's, in DER, one for each product. Being part of what an operator signs, none can be replaced by an older one.
	CRLs [][]byte `json:"crls,omitempty"`
	// AllowNoCRL accepts products without one, and Overdue is for how many days one may be used after the update that it announces.
	AllowNoCRL bool `json:"allowNoCRL,omitempty"`
	Overdue    int  `json:"overdueDays,omitempty"`
}

// Floor are the least versions of a product's firmware: those that run by now, and those that the guest was launched with.
type Floor struct {
	Product string `json:"product"`
	Minimum TCB    `json:"minimum"`
	Launch  TCB    `json:"launch"`
}

// Check reports what keeps demands from being any policy's.
func (d Demands) Check() error {
	if len(d.Measurements) == 0 && len(d.IDKeys) == 0 {
		return errors.New("measurements, idKeys: want at least one of either")
	}
	for name, list := range map[string]struct {
		values []evidence.Hex
		size   int
	}{"measurements": {d.Measurements, 48}, "idKeys": {d.IDKeys, 48}, "hostData": {d.HostData, 32}, "chips": {d.Chips, 64}} {
		if slices.ContainsFunc(list.values, func(h evidence.Hex) bool { return len(h) != list.size }) {
			return fmt.Errorf("%s: want %d hexadecimal digits each", name, 2*list.size)
		}
	}
	known := []string{Milan, Genoa, Turin}
	for i, f := range d.Floors {
		if !slices.Contains(known, f.Product) || slices.ContainsFunc(d.Floors[:i], func(o Floor) bool { return o.Product == f.Product }) {
			return fmt.Errorf("floors: product %.40q is unknown or there twice", f.Product)
		}
	}
	for _, p := range d.Products {
		if !slices.Contains(known, p) {
			return fmt.Errorf("products: %.40q is unknown, want %v", p, known)
		}
	}
	if slices.ContainsFunc(d.Keys, func(k Key) bool { return k != VCEK && k != VLEK }) || slices.Contains(d.Keys, VLEK) && len(d.Providers) == 0 {
		return errors.New("keys: want vcek or vlek, the latter with providers")
	}
	if d.Overdue < 0 || d.Overdue > 366 {
		return fmt.Errorf("overdueDays: %d, want 0 to 366", d.Overdue)
	}
	for _, der := range d.CRLs {
		if _, err := readCRL(der); err != nil {
			return fmt.Errorf("crls: %w", err)
		}
	}
	return nil
}

// TestRoot is a pair of certificates, in PEM, in the place of AMD's for one product and kind of key.
type TestRoot struct {
	Product string `json:"product"`
	Key     Key    `json:"key"`
	// Bundle is the issuer's certificate, then the root's.
	Bundle []byte `json:"bundle"`
}

// Verifier verifies reports; it is safe for concurrent use, and reads AMD's own certificates once.
type Verifier struct {
	// TestRoots are accepted beside AMD's.
	TestRoots []TestRoot

	once    sync.Once
	issuers []*issuer
	err     error
}

// Verified is what a report proves.
type Verified struct {
	Report  Report
	Product string
	// Current runs by now, Reported is what the key stands for, Committed cannot be undercut, Launch is what the guest began with.
	Current, Reported, Committed, Launch TCB
	// Provider is the owner of a VLEK.
	Provider string
	// TestRoot reports that the chain ends at a root for tests.
	TestRoot bool
	// Notes say what was not checked.
	Notes []string
}

// Measured returns the register that the report proves.
func (v Verified) Measured() pcrs.Values {
	return pcrs.Values{pcrs.LaunchDigest: v.Report.Measurement[:]}
}

// Instance identifies the chip; it is empty for keys that hide it.
func (v Verified) Instance() string {
	if v.Report.Key == VLEK {
		return ""
	}
	return hex.EncodeToString(v.Report.ChipID[:])
}

// Verify holds a report to AMD's signatures and to demands, at a time. certificates are what the machine has, in DER, of which one
// has to be the report key's; others are passed over, since issuers are known. reportData is what the report has to carry. A refusal
// is an *evidence.Refusal with every reason that was found.
func (v *Verifier) Verify(raw []byte, certificates [][]byte, demands Demands, reportData [64]byte, at time.Time) (Verified, error) {
	r, err := Parse(raw)
	if err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Malformed, "the report cannot be read", err)
	}
	s, i, err := v.find(certificates, r.Key)
	if err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Chain, "the report's certificate", err)
	}
	if err := s.signed(&r); err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Signature, "the report", err)
	}
	verified := Verified{Report: r, Product: i.product, Provider: s.provider, TestRoot: i.test}
	var reasons evidence.Reasons
	if err := verified.readTCBs(); err != nil {
		reasons.Add(evidence.Malformed, "%v", err)
	}
	if r.ReportData != reportData {
		reasons.Differ(evidence.NotBound, hex.EncodeToString(reportData[:]), hex.EncodeToString(r.ReportData[:]), "the report was made for something else")
	}
	verified.judgeSigner(s, i, at, &reasons)
	demands.judgeRevoked(i, at, &reasons)
	demands.judgeGuest(&r, &reasons)
	demands.judgePlatform(&verified, &reasons)
	demands.judgeVersions(&verified, &reasons)
	return verified, reasons.Refusal(kind)
}

// Check reports what is wrong with the roots for tests.
func (v *Verifier) Check() error { return v.prepare() }

// prepare reads the issuers.
func (v *Verifier) prepare() error {
	v.once.Do(func() {
		for name, bundle := range amd() {
			i, err := readIssuer(name[:len(name)-len(VCEK)], Key(name[len(name)-len(VCEK):]), bundle)
			v.issuers, v.err = append(v.issuers, i), errors.Join(v.err, err)
		}
		for _, t := range v.TestRoots {
			i, err := readIssuer(t.Product, t.Key, t.Bundle)
			if i != nil {
				i.test = true
			}
			v.issuers, v.err = append(v.issuers, i), errors.Join(v.err, err)
		}
	})
	return v.err
}

// maxCertificates bounds what is tried.
const maxCertificates = 8

// find returns the certificate of a report key among those shown, and who signed it. Names are not trusted, only signatures.
func (v *Verifier) find(certificates [][]byte, key Key) (signer, *issuer, error) {
	if err := v.prepare(); err != nil {
		return signer{}, nil, err
	}
	if len(certificates) > maxCertificates {
		return signer{}, nil, fmt.Errorf("%d certificates, at most %d are allowed", len(certificates), maxCertificates)
	}
	cause := errors.New("none was shown for a key of kind " + string(key))
	for _, der := range certificates {
		s, err := readSigner(der)
		if err != nil {
			cause = err
			continue
		}
		for _, i := range v.issuers {
			if i.key == key && i.product == s.product && s.certificate.CheckSignatureFrom(i.direct) == nil {
				return s, i, nil
			}
		}
		cause = fmt.Errorf("nobody who signs %s keys signed that of %.60q for product %.20q", key, s.certificate.Subject.CommonName, s.product)
	}
	return signer{}, nil, cause
}

func (v *Verified) readTCBs() (err error) {
	r := &v.Report
	for _, t := range []struct {
		from []byte
		to   *TCB
	}{{r.current, &v.Current}, {r.reported, &v.Reported}, {r.committed, &v.Committed}, {r.launch, &v.Launch}} {
		if *t.to, err = readTCB(v.Product, t.from); err != nil {
			return err
		}
	}
	return nil
}

// judgeSigner holds the report to the certificate of its key, and that to its time.
func (v *Verified) judgeSigner(s signer, i *issuer, at time.Time, reasons *evidence.Reasons) {
	for _, certificate := range []*x509.Certificate{s.certificate, i.direct, i.root} {
		if at.Before(certificate.NotBefore) || at.After(certificate.NotAfter) {
			reasons.Add(evidence.Expired, "the certificate of %.60q holds from %s to %s", certificate.Subject.CommonName, certificate.NotBefore.Format(time.DateOnly), certificate.NotAfter.Format(time.DateOnly))
		}
	}
	r := &v.Report
	if s.tcb != v.Reported {
		reasons.Differ(evidence.Chain, s.tcb, v.Reported, "the key is of other firmware than the report says")
	}
	if r.Version >= 3 && productOf(r.Family, r.Model) != v.Product {
		reasons.Differ(evidence.Product, v.Product, fmt.Sprintf("family %#x, model %#x", r.Family, r.Model), "the report is of another product than its key")
	}
	switch {
	case r.Key == VCEK && r.Masked:
		reasons.Add(evidence.Instance, "the report hides its chip, so nothing says that the key is that chip's")
	case r.Key == VCEK && !s.isChip(r.ChipID):
		reasons.Add(evidence.Chain, "the key is another chip's")
	case r.Key == VLEK && s.provider == "":
		reasons.Add(evidence.Chain, "the key names no provider")
	}
}

func readCRL(der []byte) (*x509.RevocationList, error) {
	crl, err := x509.ParseRevocationList(der)
	if err == nil && len(crl.Raw) != len(der) {
		return nil, errors.New("CRL: data after its end")
	}
	return crl, err
}

// judgeRevoked looks for the product's CRL, which its root signed, and for the issuer on it.
func (d Demands) judgeRevoked(i *issuer, at time.Time, reasons *evidence.Reasons) {
	for _, der := range d.CRLs {
		crl, err := readCRL(der)
		if err != nil || crl.CheckSignatureFrom(i.root) != nil {
			continue // another product's
		}
		if at.Before(crl.ThisUpdate) || at.After(crl.NextUpdate.Add(time.Duration(d.Overdue)*24*time.Hour)) {
			reasons.Differ(evidence.Expired, crl.ThisUpdate.Format(time.DateOnly)+" to "+crl.NextUpdate.Format(time.DateOnly), at.Format(time.DateOnly), "the CRL of %s is out of its time", i.product)
		}
		for _, entry := range crl.RevokedCertificateEntries {
			if entry.SerialNumber.Cmp(i.direct.SerialNumber) == 0 {
				reasons.Add(evidence.Revoked, "the certificate of %.60q was revoked", i.direct.Subject.CommonName)
			}
		}
		return
	}
	if !d.AllowNoCRL {
		reasons.Add(evidence.NoCollateral, "no CRL of %s is among the demands", i.product)
	}
}

// judgeGuest compares what the guest was launched with, and who asked for the report.
func (d Demands) judgeGuest(r *Report, reasons *evidence.Reasons) {
	switch {
	case r.VMPL == hostRequested:
		reasons.Add(evidence.Flags, "the host asked for the report, not the guest")
	case r.VMPL != d.VMPL:
		reasons.Differ(evidence.Flags, d.VMPL, r.VMPL, "the report was asked for at another privilege level (VMPL)")
	}
	if r.Policy&policyDebug != 0 {
		reasons.Add(evidence.Debug, "the host may read the guest's memory: debug is allowed")
	}
	if r.Policy&policyMigrate != 0 {
		reasons.Add(evidence.Debug, "the guest may be moved by a migration agent")
	}
	for _, flag := range []struct {
		bad  bool
		text string
	}{
		{r.Policy&policySMT != 0 && !d.AllowSMT, "the guest's policy allows hyper-threading"},
		{r.Policy&policyCXL != 0 && !d.AllowCXL, "the guest's policy allows CXL devices"},
		{r.Policy&policyHiding == 0 && d.CiphertextHiding, "the guest's policy does not demand hidden ciphertext"},
		{r.Policy&policyNoPageSwap == 0 && d.NoPageSwap, "the guest's policy lets the host swap its pages"},
		{r.Policy&policyReserved == 0 || r.Policy&^uint64(policyKnown) != 0, fmt.Sprintf("the guest's policy %#x is of a form that is not known", r.Policy)},
	} {
		if flag.bad {
			reasons.Add(evidence.Flags, "%s", flag.text)
		}
	}
	if len(d.Measurements) > 0 && !evidence.Contains(d.Measurements, r.Measurement[:]) || len(d.Measurements) == 0 && len(d.IDKeys) == 0 {
		reasons.Differ(evidence.Measurement, fmt.Sprintf("one of %d", len(d.Measurements)), hex.EncodeToString(r.Measurement[:]), "the launch digest is not an accepted one: other firmware, vCPUs or features")
	}
	if len(d.IDKeys) > 0 && !evidence.Contains(d.IDKeys, r.IDKeyDigest[:]) {
		reasons.Differ(evidence.Signer, fmt.Sprintf("one of %d", len(d.IDKeys)), hex.EncodeToString(r.IDKeyDigest[:]), "the launch was signed by another ID key, or by none")
	}
	if r.GuestSVN < d.MinimumGuestSVN {
		reasons.Differ(evidence.TCB, d.MinimumGuestSVN, r.GuestSVN, "the guest's security version is too low")
	}
	if len(d.HostData) > 0 && !evidence.Contains(d.HostData, r.HostData[:]) {
		reasons.Differ(evidence.Measurement, fmt.Sprintf("one of %d", len(d.HostData)), hex.EncodeToString(r.HostData[:]), "HOST_DATA is not an accepted one")
	}
}

// judgePlatform compares product, key, chip and settings.
func (d Demands) judgePlatform(v *Verified, reasons *evidence.Reasons) {
	r, products := &v.Report, d.Products
	if len(products) == 0 {
		products = []string{Genoa, Turin}
	}
	if !slices.Contains(products, v.Product) {
		text := "the product is not an accepted one"
		if v.Product == Milan {
			text += " (the seed of its chips' keys was extracted, arXiv 2605.12990; no firmware helps)"
		}
		reasons.Differ(evidence.Product, fmt.Sprint(products), v.Product, "%s", text)
	}
	keys := d.Keys
	if len(keys) == 0 {
		keys = []Key{VCEK}
	}
	if !slices.Contains(keys, r.Key) {
		reasons.Differ(evidence.Signer, fmt.Sprint(keys), r.Key, "the report is signed by a key of a kind that is not accepted")
	}
	if r.Key == VLEK && !slices.Contains(d.Providers, v.Provider) {
		reasons.Differ(evidence.Signer, fmt.Sprint(d.Providers), v.Provider, "the report's key is another provider's")
	}
	if len(d.Chips) > 0 && (r.Key == VLEK || !evidence.Contains(d.Chips, r.ChipID[:])) {
		reasons.Differ(evidence.Instance, fmt.Sprintf("one of %d", len(d.Chips)), hex.EncodeToString(r.ChipID[:]), "the chip is not an accepted one")
	}
	if r.PlatformInfo&platformSMT != 0 && !d.AllowSMT {
		reasons.Add(evidence.Flags, "hyper-threading is on")
	}
	if r.PlatformInfo&platformAlias == 0 && !d.AllowNoAliasCheck {
		reasons.Add(evidence.Flags, "the platform did not look for aliased memory (BadRAM)")
	}
	if r.PlatformInfo&^uint64(platformKnown) != 0 {
		reasons.Add(evidence.Flags, "platform settings %#x have bits that are not known", r.PlatformInfo)
	}
	if m := d.Mitigations; m != 0 && (r.Version < 5 || r.LaunchMitigations&m != m || r.CurrentMitigations&m != m) {
		reasons.Differ(evidence.TCB, fmt.Sprintf("%#x", m), fmt.Sprintf("%#x, %#x at launch", r.CurrentMitigations, r.LaunchMitigations), "a mitigation is missing")
	}
}

// judgeVersions compares firmware. What runs may be above what is committed only where floors bound both what runs and the launch.
func (d Demands) judgeVersions(v *Verified, reasons *evidence.Reasons) {
	i := slices.IndexFunc(d.Floors, func(f Floor) bool { return f.Product == v.Product })
	if i < 0 {
		if v.Committed != v.Current {
			reasons.Differ(evidence.TCB, v.Current, v.Committed, "the platform's firmware is provisional, and no floor is demanded")
		}
		v.Notes = append(v.Notes, "no floor of firmware is demanded of "+v.Product)
		return
	}
	floor := d.Floors[i]
	for _, t := range []struct {
		name     string
		got, min TCB
	}{{"reported", v.Reported, floor.Minimum}, {"current", v.Current, floor.Minimum}, {"launch", v.Launch, floor.Launch}} {
		if !t.got.AtLeast(t.min) {
			reasons.Differ(evidence.TCB, t.min, t.got, "the platform's %s firmware is too old", t.name)
		}
	}
}
