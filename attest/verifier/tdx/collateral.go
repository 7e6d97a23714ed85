package tdx

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	kjson "sigs.k8s.io/json"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
)

// maxAnswer bounds each part of a collateral, in bytes.
const maxAnswer = 512 << 10

// Collateral is what Intel says of platforms, as its Provisioning Certification Service answered (API version 4). It is stored, and
// read without a network.
type Collateral struct {
	// TCBInfo and QEIdentity are the bodies of /tdx/certification/v4/tcb and …/qe/identity, each {"…":{…},"signature":"…"}.
	TCBInfo    []byte `json:"tcbInfo"`
	QEIdentity []byte `json:"qeIdentity"`
	// TCBInfoChain and QEIdentityChain are the certificates of who signed them, in PEM, as the answers' headers have them, decoded.
	TCBInfoChain    []byte `json:"tcbInfoChain"`
	QEIdentityChain []byte `json:"qeIdentityChain"`
	// PCKCRL is the body of /sgx/certification/v4/pckcrl with encoding=der, RootCRL that of …/rootcacrl, in DER.
	PCKCRL  []byte `json:"pckCRL"`
	RootCRL []byte `json:"rootCRL"`
}

// Digest identifies a collateral: SHA-256 over each part with its length before it.
func (c Collateral) Digest() [sha256.Size]byte {
	h := sha256.New()
	for _, part := range [][]byte{c.TCBInfo, c.QEIdentity, c.TCBInfoChain, c.QEIdentityChain, c.PCKCRL, c.RootCRL} {
		fmt.Fprintf(h, "%d\n", len(part))
		h.Write(part)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Status is how Intel rates firmware of a version.
type Status string

// The statuses, from the best on.
const (
	UpToDate                          Status = "UpToDate"
	SWHardeningNeeded                 Status = "SWHardeningNeeded"
	ConfigurationNeeded               Status = "ConfigurationNeeded"
	ConfigurationAndSWHardeningNeeded Status = "ConfigurationAndSWHardeningNeeded"
	OutOfDate                         Status = "OutOfDate"
	OutOfDateConfigurationNeeded      Status = "OutOfDateConfigurationNeeded"
	Revoked                           Status = "Revoked"
)

var statuses = []Status{
	UpToDate, SWHardeningNeeded, ConfigurationNeeded, ConfigurationAndSWHardeningNeeded, OutOfDate, OutOfDateConfigurationNeeded, Revoked,
}

// level is one level of an answer, of whatever kind.
type level struct {
	TCB struct {
		SGX    []component `json:"sgxtcbcomponents"`
		TDX    []component `json:"tdxtcbcomponents"`
		PCESVN uint64      `json:"pcesvn"`
		ISVSVN *uint64     `json:"isvsvn"`
	} `json:"tcb"`
	Status     Status    `json:"tcbStatus"`
	Date       time.Time `json:"tcbDate"`
	Advisories []string  `json:"advisoryIDs"`
}

type component struct {
	SVN uint64 `json:"svn"`
}

// module is a TDX module, or a line of them.
type module struct {
	ID             string   `json:"id"`
	MRSigner       upperHex `json:"mrsigner"`
	Attributes     upperHex `json:"attributes"`
	AttributesMask upperHex `json:"attributesMask"`
	Levels         []level  `json:"tcbLevels"`
}

// answer is what both answers have.
type answer struct {
	ID         string    `json:"id"`
	Version    int       `json:"version"`
	Issued     time.Time `json:"issueDate"`
	Next       time.Time `json:"nextUpdate"`
	Evaluation uint64    `json:"tcbEvaluationDataNumber"`
	Levels     []level   `json:"tcbLevels"`
}

type tcbInfo struct {
	answer
	FMSPC      upperHex `json:"fmspc"`
	PCEID      upperHex `json:"pceId"`
	Module     module   `json:"tdxModule"`
	Identities []module `json:"tdxModuleIdentities"`
}

type qeIdentity struct {
	answer
	MiscSelect     upperHex `json:"miscselect"`
	MiscMask       upperHex `json:"miscselectMask"`
	Attributes     upperHex `json:"attributes"`
	AttributesMask upperHex `json:"attributesMask"`
	MRSigner       upperHex `json:"mrsigner"`
	ProductID      uint64   `json:"isvprodid"`
}

// upperHex are bytes as Intel writes them: hexadecimal digits of either case.
type upperHex []byte

// UnmarshalText reads digits of either case.
func (h *upperHex) UnmarshalText(text []byte) error {
	return (*evidence.Hex)(h).UnmarshalText(bytes.ToLower(text))
}

// opened is a collateral whose signatures hold.
type opened struct {
	tcb    tcbInfo
	qe     qeIdentity
	pck    *x509.RevocationList
	root   *x509.RevocationList
	digest [sha256.Size]byte
}

// open checks the signatures of a collateral up to the root, and reads it. Dates are not judged here.
func (v *Verifier) open(c Collateral, root *x509.Certificate) (*opened, error) {
	for name, part := range map[string][]byte{"TCB info": c.TCBInfo, "QE identity": c.QEIdentity, "PCK CRL": c.PCKCRL, "root CRL": c.RootCRL} {
		if len(part) == 0 || len(part) > maxAnswer {
			return nil, fmt.Errorf("%s: %d bytes, want 1 to %d", name, len(part), maxAnswer)
		}
	}
	o := &opened{digest: c.Digest()}
	if err := readAnswer(c.TCBInfo, "tcbInfo", c.TCBInfoChain, root, &o.tcb); err != nil {
		return nil, fmt.Errorf("TCB info: %w", err)
	}
	if err := readAnswer(c.QEIdentity, "enclaveIdentity", c.QEIdentityChain, root, &o.qe); err != nil {
		return nil, fmt.Errorf("QE identity: %w", err)
	}
	if o.tcb.ID != "TDX" || o.tcb.Version != 3 || o.qe.ID != "TD_QE" || o.qe.Version != 2 {
		return nil, fmt.Errorf("TCB info %s version %d and QE identity %s version %d, want TDX version 3 and TD_QE version 2", o.tcb.ID, o.tcb.Version, o.qe.ID, o.qe.Version)
	}
	var err error
	if o.root, err = readCRL(c.RootCRL); err == nil {
		err = o.root.CheckSignatureFrom(root)
	}
	if err != nil {
		return nil, fmt.Errorf("root CRL: %w", err)
	}
	if o.pck, err = readCRL(c.PCKCRL); err != nil {
		return nil, fmt.Errorf("PCK CRL: %w", err)
	}
	return o, nil
}

func readCRL(der []byte) (*x509.RevocationList, error) {
	crl, err := x509.ParseRevocationList(der)
	if err == nil && len(crl.Raw) != len(der) {
		return nil, errors.New("data after its end")
	}
	return crl, err
}

// readAnswer checks the signature over the exact bytes of the field and reads it.
func readAnswer(text []byte, field string, chain []byte, root *x509.Certificate, into any) error {
	var envelope map[string]json.RawMessage
	if err := readJSON(text, &envelope); err != nil {
		return err
	}
	var signature string
	if err := json.Unmarshal(envelope["signature"], &signature); err != nil || len(envelope) != 2 || envelope[field] == nil {
		return fmt.Errorf("want %s and signature", field)
	}
	signer, err := readSigner(chain, root)
	if err != nil {
		return err
	}
	var raw upperHex
	if err := raw.UnmarshalText([]byte(signature)); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	if !verifyRaw(signer.PublicKey, envelope[field], raw) {
		return errors.New("its signature does not hold")
	}
	return readJSON(envelope[field], into)
}

// readJSON takes no name twice, and names by their exact case. Intel may add fields.
func readJSON(text []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(text, into)
	if err != nil {
		return err
	}
	for _, wrong := range strict {
		if !strings.Contains(wrong.Error(), "unknown field") {
			return wrong
		}
	}
	return nil
}

// tcbSigner is the name of the certificate that signs answers.
const tcbSigner = "Intel SGX TCB Signing"

// readSigner reads the signer's certificate, directly below the root.
func readSigner(chain []byte, root *x509.Certificate) (*x509.Certificate, error) {
	ders, err := splitPEM(chain)
	if err != nil {
		return nil, err
	}
	signer, err := readCertificate(ders[0])
	if err != nil {
		return nil, err
	}
	if signer.Subject.CommonName != tcbSigner || signer.IsCA {
		return nil, fmt.Errorf("signed by %.80q, want %q", signer.Subject.CommonName, tcbSigner)
	}
	return signer, signer.CheckSignatureFrom(root)
}

// rate returns the status of the machine's firmware: of the platform, the TDX module and the quoting enclave together, with the
// advisories of all three.
func (o *opened) rate(q *Quote, p platform) (status Status, advisories []string, err error) {
	hardware, err := o.ratePlatform(q, p)
	if err != nil {
		return "", nil, err
	}
	software, err := o.rateModule(q)
	if err != nil {
		return "", nil, err
	}
	enclave, err := rateSVN("quoting enclave", o.qe.Levels, uint64(q.qe.svn))
	if err != nil {
		return "", nil, err
	}
	status = worse(worse(hardware.Status, software.Status), enclave.Status)
	advisories = slices.Concat(hardware.Advisories, software.Advisories, enclave.Advisories)
	slices.Sort(advisories)
	return status, slices.Compact(advisories), nil
}

// ratePlatform returns the highest level that the processor's and the module's components reach.
func (o *opened) ratePlatform(q *Quote, p platform) (level, error) {
	first := 0 // The module's first two components are its line's, whose levels rate them, from TDX module 1.5 on.
	if q.TEETCBSVN[1] > 0 {
		first = 2
	}
	for _, l := range o.tcb.Levels {
		if len(l.TCB.SGX) != 16 || len(l.TCB.TDX) != 16 || !slices.Contains(statuses, l.Status) {
			return level{}, fmt.Errorf("TCB info: a level has %d and %d components and status %.40q", len(l.TCB.SGX), len(l.TCB.TDX), l.Status)
		}
		reached := p.pceSVN >= l.TCB.PCESVN
		for i := range 16 {
			reached = reached && p.components[i] >= l.TCB.SGX[i].SVN && (i < first || uint64(q.TEETCBSVN[i]) >= l.TCB.TDX[i].SVN)
		}
		if reached {
			return l, nil
		}
	}
	return level{}, errors.New("the platform's firmware is below every level that Intel lists")
}

// rateModule rates the TDX module by its line, and holds it to Intel's signer.
func (o *opened) rateModule(q *Quote) (level, error) {
	line := o.tcb.Module
	if version := q.TEETCBSVN[1]; version > 0 {
		id := fmt.Sprintf("TDX_%02x", version)
		i := slices.IndexFunc(o.tcb.Identities, func(m module) bool { return strings.EqualFold(m.ID, id) })
		if i < 0 {
			return level{}, fmt.Errorf("the TDX module is of line %s, which Intel does not list", id)
		}
		line = o.tcb.Identities[i]
	}
	if !bytes.Equal(line.MRSigner, q.MRSignerSEAM[:]) || !maskedEqual(q.SEAMAttributes[:], line.AttributesMask, line.Attributes) {
		return level{}, errors.New("the TDX module has another signer or other attributes than Intel's")
	}
	if q.TEETCBSVN[1] == 0 {
		return level{Status: UpToDate}, nil // Its components were rated with the platform's.
	}
	return rateSVN("TDX module", line.Levels, uint64(q.TEETCBSVN[0]))
}

func rateSVN(what string, levels []level, svn uint64) (level, error) {
	for _, l := range levels {
		if l.TCB.ISVSVN == nil || !slices.Contains(statuses, l.Status) {
			return level{}, fmt.Errorf("%s: a level without ISVSVN, or of status %.40q", what, l.Status)
		}
		if svn >= *l.TCB.ISVSVN {
			return l, nil
		}
	}
	return level{}, fmt.Errorf("the %s's version %d is below every level that Intel lists", what, svn)
}

// worse joins two statuses. Firmware that is out of date on a platform that needs configuration needs both.
func worse(a, b Status) Status {
	x, y := slices.Index(statuses, a), slices.Index(statuses, b)
	low, high := statuses[min(x, y)], statuses[max(x, y)]
	configured := low != ConfigurationNeeded && low != ConfigurationAndSWHardeningNeeded
	switch {
	case high == OutOfDate && !configured:
		return OutOfDateConfigurationNeeded
	case high == ConfigurationNeeded && low == SWHardeningNeeded:
		return ConfigurationAndSWHardeningNeeded
	}
	return high
}

// maskedEqual reports whether value has the wanted bits where the mask has ones; all three are as long.
func maskedEqual(value, mask, want []byte) bool {
	if len(value) != len(mask) || len(value) != len(want) {
		return false
	}
	for i := range value {
		if value[i]&mask[i] != want[i] {
			return false
		}
	}
	return true
}

// Find returns the collateral of the model that a quote's certificate names, unverified; zero if there is none, which Verify refuses.
func Find(collaterals []Collateral, raw []byte) Collateral {
	q, err := Parse(raw)
	if err != nil {
		return Collateral{}
	}
	pck, err := readCertificate(q.chain[0])
	if err != nil {
		return Collateral{}
	}
	p, err := readPlatform(pck)
	if err != nil {
		return Collateral{}
	}
	for _, c := range collaterals {
		var answer struct {
			TCBInfo struct {
				FMSPC upperHex `json:"fmspc"`
			} `json:"tcbInfo"`
		}
		if readJSON(c.TCBInfo, &answer) == nil && bytes.Equal(answer.TCBInfo.FMSPC, p.fmspc) {
			return c
		}
	}
	return Collateral{}
}

// MaxCollateral bounds what ParseCollateral reads, in bytes.
const MaxCollateral = 4 << 20

// ParseCollateral reads a stored collateral: JSON with the fields of Collateral, and nothing else.
func ParseCollateral(text []byte) (c Collateral, err error) {
	return c, hullmark.DecodeStrict(text, MaxCollateral, &c)
}

// About is what a collateral is about.
type About struct {
	FMSPC evidence.Hex `json:"fmspc"`
	// Issued and Next are the earlier of its answers', and the lists'.
	Issued     time.Time    `json:"issued"`
	Next       time.Time    `json:"next"`
	Evaluation uint64       `json:"evaluation"`
	Digest     evidence.Hex `json:"digest"`
}

// About checks the signatures of a collateral, at any time, and says what it is about.
func (v *Verifier) About(c Collateral) (About, error) {
	root, err := v.rootOf(c.TCBInfoChain)
	if err != nil {
		return About{}, fmt.Errorf("TCB info: %w", err)
	}
	o, err := v.open(c, root)
	if err != nil {
		return About{}, err
	}
	return o.about(), nil
}

// rootOf returns the root that a signer's chain ends with, if it is trusted.
func (v *Verifier) rootOf(chain []byte) (*x509.Certificate, error) {
	ders, err := splitPEM(chain)
	if err != nil {
		return nil, err
	}
	root, err := readCertificate(ders[len(ders)-1])
	if err == nil && !v.trusts(root) && !v.forTests(root) {
		err = fmt.Errorf("it ends at %.80q, which is not Intel's root", root.Subject.CommonName)
	}
	return root, err
}

func (o *opened) about() About {
	a := About{
		FMSPC: evidence.Hex(o.tcb.FMSPC), Issued: o.tcb.Issued, Next: o.tcb.Next,
		Evaluation: min(o.tcb.Evaluation, o.qe.Evaluation), Digest: o.digest[:],
	}
	for _, t := range []struct{ issued, next time.Time }{{o.qe.Issued, o.qe.Next}, {o.pck.ThisUpdate, o.pck.NextUpdate}, {o.root.ThisUpdate, o.root.NextUpdate}} {
		if t.issued.Before(a.Issued) {
			a.Issued = t.issued
		}
		if t.next.Before(a.Next) {
			a.Next = t.next
		}
	}
	return a
}
