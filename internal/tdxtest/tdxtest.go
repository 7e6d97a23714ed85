// Package tdxtest is an Intel for tests: a root, a platform with its PCK, a quoting enclave, and what Intel would say of them. It
// imports nothing of the verifier, so that one checks the other.
package tdxtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// Now is the time around which everything is made.
var Now = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

// Level is a level of TCB info, of a module's line, or of the quoting enclave.
type Level struct {
	// SGX, TDX and PCE are what the platform has to have; Least is the ISVSVN of a module or an enclave.
	SGX, TDX   byte
	PCE, Least int
	Status     string
	Advisories []string
}

// Intel has the keys and says what the answers hold.
type Intel struct {
	t        testing.TB
	now      time.Time
	root, ca authority
	signer   authority
	pck      authority
	FMSPC    []byte
	Platform []Level
	Module   []Level
	Enclave  []Level
	// Evaluation is the number of both answers.
	Evaluation int
	// Revoked has the PCK revoked, RevokedCA its issuer.
	Revoked, RevokedCA bool
	// Twice writes the platform's levels under one name twice, the second time as good ones.
	Twice bool
}

type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

// Components of a machine of New: SGX and TDX components, PCESVN.
const (
	SGX = 5
	TDX = 4
	PCE = 11
)

// New makes an Intel with one platform, all of whose firmware is up to date. smt says whether hyper-threading is on.
func New(t testing.TB, smt bool) *Intel {
	t.Helper()
	return NewAt(t, smt, Now)
}

// NewAt makes one of another time.
func NewAt(t testing.TB, smt bool, now time.Time) *Intel {
	t.Helper()
	i := &Intel{
		t: t, now: now.UTC().Truncate(time.Second), FMSPC: []byte{0xb0, 0xc0, 0x6f, 0, 0, 1}, Evaluation: 20,
		Platform: []Level{{SGX: SGX, TDX: TDX, PCE: PCE, Status: "UpToDate"}},
		Module:   []Level{{Least: 3, Status: "UpToDate"}},
		Enclave:  []Level{{Least: 8, Status: "UpToDate"}},
	}
	i.root = i.issue("Intel SGX Root CA", nil, true, nil)
	i.ca = i.issue("Intel SGX PCK Platform CA", &i.root, true, nil)
	i.signer = i.issue("Intel SGX TCB Signing", &i.root, false, nil)
	i.pck = i.issue("Intel SGX PCK Certificate", &i.ca, false, i.extension(smt))
	return i
}

// Root returns the root's certificate in DER.
func (i *Intel) Root() []byte { return i.root.certificate.Raw }

func (i *Intel) issue(name string, issuer *authority, ca bool, extension []byte) authority {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		i.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: name}, NotBefore: i.now.AddDate(-1, 0, 0), NotAfter: i.now.AddDate(5, 0, 0),
		IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if ca {
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	}
	if extension != nil {
		template.ExtraExtensions = []pkix.Extension{{Id: oid(), Value: extension}}
		template.SubjectKeyId, template.CRLDistributionPoints = []byte{1}, []string{"https://certificates.example/crl"}
	}
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.certificate, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		i.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return authority{key, certificate}
}

func oid(more ...int) asn1.ObjectIdentifier {
	return append(asn1.ObjectIdentifier{1, 2, 840, 113741, 1, 13, 1}, more...)
}

type pair struct {
	ID    asn1.ObjectIdentifier
	Value any
}

// extension is that of a PCK certificate.
func (i *Intel) extension(smt bool) []byte {
	var tcb []pair
	for n := 1; n <= 16; n++ {
		tcb = append(tcb, pair{oid(2, n), SGX})
	}
	tcb = append(tcb, pair{oid(2, 17), PCE}, pair{oid(2, 18), make([]byte, 16)})
	return i.marshal([]pair{
		{oid(1), make([]byte, 16)},
		{oid(2), tcb},
		{oid(3), []byte{0, 0}},
		{oid(4), i.FMSPC},
		{oid(5), asn1.Enumerated(1)},
		{oid(6), []byte("test platform 01")},
		{oid(7), []pair{{oid(7, 1), true}, {oid(7, 2), true}, {oid(7, 3), smt}}},
	})
}

func (i *Intel) marshal(value any) []byte {
	i.t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		i.t.Fatal(err)
	}
	return der
}

// Guest is what a quote says of a guest.
type Guest struct {
	// Version is that of the quote, 4 or 5; a 5 has a TDX 1.5 body.
	Version    int
	Attributes uint64
	MRTD       [48]byte
	RTMRs      [4][48]byte
	ReportData [64]byte
	// ModuleLine and ModuleSVN are the first two components of the module, in the other order.
	ModuleLine, ModuleSVN byte
	// Component is the value of all its other components, EnclaveSVN that of the quoting enclave.
	Component  byte
	EnclaveSVN uint16
	// ModuleSigner and ServiceTD are zero with Intel's module, and without a service TD.
	ModuleSigner, ServiceTD [48]byte
	// EnclaveSigner replaces the quoting enclave's.
	EnclaveSigner byte
}

// Good is a guest to which nothing speaks against.
func Good() Guest {
	return Guest{Version: 4, Attributes: 1 << 28, MRTD: [48]byte{1}, RTMRs: [4][48]byte{{2}, {3}, {4}, {5}}, ModuleLine: 1, ModuleSVN: 3, Component: TDX, EnclaveSVN: 8}
}

// Quote makes one.
func (i *Intel) Quote(g Guest) []byte {
	i.t.Helper()
	le := binary.LittleEndian
	quote := le.AppendUint16(nil, uint16(g.Version))
	quote = le.AppendUint16(quote, 2)
	quote = le.AppendUint32(quote, 0x81)
	quote = append(quote, 0, 0, 0, 0)
	quote = append(quote, 0x93, 0x9a, 0x72, 0x33, 0xf7, 0x9c, 0x4c, 0xa9, 0x94, 0x0a, 0x0d, 0xb3, 0x95, 0x7f, 0x06, 0x07)
	quote = append(quote, make([]byte, 20)...)
	if g.Version == 5 {
		quote = le.AppendUint16(quote, 3)
		quote = le.AppendUint32(quote, 648)
	}
	quote = append(quote, g.body()...)
	key := i.issue("attestation key", nil, false, nil).key
	public := append(key.X.FillBytes(make([]byte, 32)), key.Y.FillBytes(make([]byte, 32))...)
	signature := i.sign(key, quote)
	report := g.enclave(public)
	inner := append(report, i.sign(i.pck.key, report)...)
	inner = append(le.AppendUint16(inner, uint16(len(authentication))), authentication...)
	chain := i.chain(i.pck, i.ca, i.root)
	inner = append(le.AppendUint32(le.AppendUint16(inner, 5), uint32(len(chain))), chain...)
	data := append(signature, public...)
	data = append(le.AppendUint32(le.AppendUint16(data, 6), uint32(len(inner))), inner...)
	return append(le.AppendUint32(quote, uint32(len(data))), data...)
}

const authentication = "authentication data of a test"

func (g Guest) body() []byte {
	body := []byte{g.ModuleSVN, g.ModuleLine}
	for len(body) < 16 {
		body = append(body, g.Component)
	}
	body = append(body, make([]byte, 48)...) // MRSEAM
	body = append(body, g.ModuleSigner[:]...)
	body = append(body, make([]byte, 8)...)
	body = binary.LittleEndian.AppendUint64(body, g.Attributes)
	body = append(body, make([]byte, 8)...) // XFAM
	body = append(body, g.MRTD[:]...)
	body = append(body, make([]byte, 3*48)...)
	for _, r := range g.RTMRs {
		body = append(body, r[:]...)
	}
	body = append(body, g.ReportData[:]...)
	if g.Version == 5 {
		body = append(body, make([]byte, 16)...)
		body = append(body, g.ServiceTD[:]...)
	}
	return body
}

func (g Guest) enclave(public []byte) []byte {
	report := make([]byte, 384)
	report[48] = 0x11
	report[128] = 0xdc + g.EnclaveSigner
	binary.LittleEndian.PutUint16(report[256:], 2)
	binary.LittleEndian.PutUint16(report[258:], g.EnclaveSVN)
	digest := sha256.Sum256(append(append([]byte{}, public...), authentication...))
	copy(report[320:], digest[:])
	return report
}

// sign returns both numbers of a signature, 32 bytes each.
func (i *Intel) sign(key *ecdsa.PrivateKey, message []byte) []byte {
	i.t.Helper()
	digest := sha256.Sum256(message)
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		i.t.Fatal(err)
	}
	return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
}

func (i *Intel) chain(of ...authority) (text []byte) {
	for _, a := range of {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})...)
	}
	return text
}

// Answers are what the service would answer, with the chain of both and the CRLs.
type Answers struct{ TCBInfo, QEIdentity, Chain, PCKCRL, RootCRL []byte }

// Answers makes them anew.
func (i *Intel) Answers() Answers {
	i.t.Helper()
	return Answers{
		TCBInfo: i.answer("tcbInfo", i.tcbInfo()), QEIdentity: i.answer("enclaveIdentity", i.identity()), Chain: i.chain(i.signer, i.root),
		PCKCRL: i.crl(i.ca, i.pck, i.Revoked), RootCRL: i.crl(i.root, i.ca, i.RevokedCA),
	}
}

func (i *Intel) answer(name string, content map[string]any) []byte {
	i.t.Helper()
	content["issueDate"], content["nextUpdate"] = i.now.AddDate(0, 0, -1), i.now.AddDate(0, 0, 29)
	content["tcbEvaluationDataNumber"] = i.Evaluation
	text, err := json.Marshal(content)
	if err != nil {
		i.t.Fatal(err)
	}
	if i.Twice && name == "tcbInfo" {
		good := append([]byte{}, text[:len(text)-1]...)
		text = append(good, `,"tcbLevels":[]}`...)
	}
	return []byte(`{"` + name + `":` + string(text) + `,"signature":"` + hex.EncodeToString(i.sign(i.signer.key, text)) + `"}`)
}

func (i *Intel) tcbInfo() map[string]any {
	var levels []map[string]any
	for _, l := range i.Platform {
		levels = append(levels, i.rated(l, map[string]any{"sgxtcbcomponents": components(l.SGX), "tdxtcbcomponents": components(l.TDX), "pcesvn": l.PCE}))
	}
	module := map[string]any{"mrsigner": zeros(48), "attributes": zeros(8), "attributesMask": "FFFFFFFFFFFFFFFF"}
	line := map[string]any{"id": "TDX_01", "tcbLevels": i.versions(i.Module)}
	for k, v := range module {
		line[k] = v
	}
	return map[string]any{
		"id": "TDX", "version": 3, "fmspc": hex.EncodeToString(i.FMSPC), "pceId": "0000", "tcbType": 0,
		"tdxModule": module, "tdxModuleIdentities": []any{line}, "tcbLevels": levels,
	}
}

func (i *Intel) identity() map[string]any {
	return map[string]any{
		"id": "TD_QE", "version": 2, "miscselect": zeros(4), "miscselectMask": "FFFFFFFF", "attributes": "11" + zeros(15), "attributesMask": "FB" + zeros(15),
		"mrsigner": "DC" + zeros(31), "isvprodid": 2, "tcbLevels": i.versions(i.Enclave),
	}
}

func (i *Intel) versions(levels []Level) (out []map[string]any) {
	for _, l := range levels {
		out = append(out, i.rated(l, map[string]any{"isvsvn": l.Least}))
	}
	return out
}

func (i *Intel) rated(l Level, tcb map[string]any) map[string]any {
	return map[string]any{"tcb": tcb, "tcbDate": i.now.AddDate(-1, 0, 0), "tcbStatus": l.Status, "advisoryIDs": l.Advisories}
}

func components(svn byte) (out []map[string]any) {
	for range 16 {
		out = append(out, map[string]any{"svn": svn})
	}
	return out
}

func zeros(bytes int) string { return hex.EncodeToString(make([]byte, bytes)) }

func (i *Intel) crl(issuer, revoked authority, is bool) []byte {
	i.t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: i.now.AddDate(0, 0, -1), NextUpdate: i.now.AddDate(0, 0, 29)}
	if is {
		template.RevokedCertificateEntries = []x509.RevocationListEntry{{SerialNumber: revoked.certificate.SerialNumber, RevocationTime: i.now}}
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, issuer.certificate, issuer.key)
	if err != nil {
		i.t.Fatal(err)
	}
	return der
}
