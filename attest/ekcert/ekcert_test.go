package ekcert_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/ekcert"
)

// moduleFolder is where a version of a public module lies.
func moduleFolder(t testing.TB, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	var m struct{ Dir string }
	if err != nil || json.Unmarshal(out, &m) != nil || m.Dir == "" {
		t.Fatalf("module %s: %v: %s", module, err, out)
	}
	return m.Dir
}

const (
	googleModule = "github.com/google/go-tpm-tools@v0.4.10"
	// nuvotonModule has the certificate of a real TPM in a test; later versions have not.
	nuvotonModule = "github.com/google/go-attestation@v0.5.1"
)

// makersFolder has the roots of Debian's package.
func makersFolder(t testing.TB) string {
	t.Helper()
	found, err := filepath.Glob("/usr/share/rubygems-integration/all/gems/tpm-key_attestation-*/lib/tpm/certificates")
	if err != nil || len(found) != 1 {
		t.Fatalf("roots of TPMs' makers are missing: apt-get install ruby-tpm-key-attestation (%v, %v)", found, err)
	}
	return found[0]
}

// certificates reads all that lie below a folder, in PEM or DER, by their paths.
func certificates(t testing.TB, folder string) map[string]*x509.Certificate {
	t.Helper()
	all := map[string]*x509.Certificate{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if block, _ := pem.Decode(raw); block != nil {
			raw = block.Bytes
		}
		name, _ := filepath.Rel(folder, path)
		if all[name], err = x509.ParseCertificate(raw); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each CA that is known is one that a public list has, and each of those is known.
func TestKnownCAs(t *testing.T) {
	folders := map[string]string{
		"AMD": ekcert.AMD, "Atmel": ekcert.Atmel, "Infineon": ekcert.Infineon, "Intel": ekcert.Intel, "Microsoft": ekcert.Microsoft,
		"NationZ": ekcert.Nationz, "Nuvoton": ekcert.Nuvoton, "STMicro": ekcert.ST,
	}
	// Intel's newer root is in neither list.
	seen := map[string]bool{"beb40bb7507b33967226aa80e084749fbb6593893c642e818d682e9a8d07fc24": true}
	check := func(maker, path string, c *x509.Certificate) {
		t.Helper()
		ca, ok := ekcert.Find(c)
		name := slices.Contains(append(c.Subject.OrganizationalUnit, c.Subject.CommonName), ca.Name)
		if !ok || ca.Maker != maker || !name || ca.From != c.NotBefore.Year() || ca.Until != c.NotAfter.Year() {
			t.Errorf("%s: known %v as %+v", path, ok, ca)
		}
		seen[ca.Fingerprint] = true
	}
	for path, c := range certificates(t, makersFolder(t)) {
		maker, _, _ := strings.Cut(path, "/")
		check(folders[maker], path, c)
	}
	for path, c := range certificates(t, filepath.Join(moduleFolder(t, googleModule), "server", "ca-certs")) {
		check(ekcert.Google, path, c)
	}
	for _, ca := range ekcert.Known() {
		if raw, err := hex.DecodeString(ca.Fingerprint); err != nil || len(raw) != sha256.Size || !seen[ca.Fingerprint] {
			t.Errorf("no list has %+v", ca)
		}
	}
	if len(ekcert.Known()) != len(seen) {
		t.Errorf("%d CAs are known, and the lists have %d", len(ekcert.Known()), len(seen))
	}
}

// real is an endorsement key's certificate as its maker issued it.
type real struct {
	certificate *ekcert.Certificate
	tpm         ekcert.TPM
	maker       string
	// signer is the fingerprint of the CA that signed it, and root of the one that it leads to; empty where the chain is not at hand.
	signer, root string
}

func realCertificates(t testing.TB) map[string]real {
	t.Helper()
	tools := moduleFolder(t, googleModule)
	cas := certificates(t, filepath.Join(tools, "server", "ca-certs"))
	vtpm := ekcert.TPM{Maker: "id:474F4F47", Model: "vTPM", Version: "id:20160511"}
	const google3, googleRoot = "7132b6ea71101f6c51bb58f98c3798c19b65be510eca0344318900510b593178", "9bd5285f8fb18502a7947e621ffd470266f49fcd3b73e19a190f690ad32a7caf"
	all := map[string]real{}
	issued := certificates(t, filepath.Join(tools, "internal", "test", "certificates"))
	for _, kind := range []string{"rsa", "ecc"} {
		shown := slices.Concat(issued["uca_tpm_"+kind+"_enc_cert.pem"].Raw, cas["tpm_ek_intermediate_2.crt"].Raw, cas["tpm_ek_intermediate_3.crt"].Raw)
		all["google "+kind] = real{parse(t, shown), vtpm, ekcert.Google, google3, googleRoot}
	}
	text, err := os.ReadFile(filepath.Join(moduleFolder(t, nuvotonModule), "attest", "challenge_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	encoded := regexp.MustCompile(`decodeBase64\("(MII[^"]+)"`).FindSubmatch(text)
	if encoded == nil {
		t.Fatal("the module has the certificate no more")
	}
	der, err := base64.StdEncoding.DecodeString(string(encoded[1]))
	if err != nil {
		t.Fatal(err)
	}
	const nuvoton2110 = "4aebe77a51ed29959a7f9f5e07a24a558dee8167f3985d724995a541c258dfda"
	all["nuvoton"] = real{parse(t, der), ekcert.TPM{Maker: "id:4E544300", Model: "NPCT6xx", Version: "id:13"}, ekcert.Nuvoton, nuvoton2110, nuvoton2110}
	return all
}

func parse(t testing.TB, shown []byte) *ekcert.Certificate {
	t.Helper()
	c, err := ekcert.Parse(shown)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Certificates of real TPMs are accepted under their own maker's CAs, and under no other's.
func TestRealCertificates(t *testing.T) {
	cas := slices.Concat(values(certificates(t, makersFolder(t))), values(certificates(t, filepath.Join(moduleFolder(t, googleModule), "server", "ca-certs"))))
	if len(cas) < 30 {
		t.Fatal(len(cas))
	}
	for name, r := range realCertificates(t) {
		if r.certificate.TPM != r.tpm || r.certificate.TPM.MakerName() != r.maker {
			t.Errorf("%s: it is of %+v", name, r.certificate.TPM)
		}
		for _, ca := range cas {
			known, _ := ekcert.Find(ca)
			if err := r.certificate.CheckSignedBy(ca); (err == nil) != (known.Fingerprint == r.signer) {
				t.Errorf("%s: signed by %s: %v", name, known.Name, err)
			}
			err := r.certificate.CheckLeadsTo([]*x509.Certificate{ca})
			if own := known.Fingerprint == r.root || known.Fingerprint == r.signer; (err == nil) != own {
				t.Errorf("%s: leads to %s: %v", name, known.Name, err)
			}
		}
		if again, err := ekcert.Parse(r.certificate.Encode()); err != nil || !bytes.Equal(again.Encode(), r.certificate.Encode()) {
			t.Errorf("%s: encoded and read again: %v", name, err)
		}
	}
	// Without its chain nothing leads to the root.
	alone := parse(t, realCertificates(t)["google ecc"].certificate.Raw)
	if err := alone.CheckLeadsTo(cas[:0]); err == nil {
		t.Error("it leads to no root at all")
	}
}

func values(all map[string]*x509.Certificate) []*x509.Certificate {
	return slices.Collect(maps.Values(all))
}

// maker is a maker of TPMs: a root, a CA below it, and what both sign.
type maker struct {
	rootKey, caKey *ecdsa.PrivateKey
	root, ca       *x509.Certificate
}

var (
	begin    = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)
	ekUsage  = asn1.ObjectIdentifier{2, 23, 133, 8, 1}
	altNames = asn1.ObjectIdentifier{2, 5, 29, 17}
)

func newMaker(t testing.TB, changes ...func(root, ca *x509.Certificate)) maker {
	t.Helper()
	m := maker{rootKey: newKey(t), caKey: newKey(t)}
	root := authority("Root", begin)
	ca := authority("Manufacturing CA", begin.AddDate(1, 0, 0))
	for _, change := range changes {
		change(root, ca)
	}
	m.root = sign(t, root, root, m.rootKey.Public(), m.rootKey)
	m.ca = sign(t, ca, m.root, m.caKey.Public(), m.rootKey)
	return m
}

func authority(name string, from time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: from.AddDate(5, 0, 0), // long over
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// issue makes the certificate of an endorsement key.
func (m maker) issue(t testing.TB, public crypto.PublicKey, changes ...func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	usage := x509.KeyUsageKeyEncipherment
	if _, isECC := public.(*ecdsa.PublicKey); isECC {
		usage = x509.KeyUsageKeyAgreement
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: begin.AddDate(2, 0, 0), NotAfter: begin.AddDate(3, 0, 0), KeyUsage: usage,
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{ekUsage}, ExtraExtensions: []pkix.Extension{tpmName(t, "id:49465800")},
	}
	for _, change := range changes {
		change(template)
	}
	return sign(t, template, m.ca, public, m.caKey)
}

// tpmName is the critical extension with a TPM's name.
func tpmName(t testing.TB, id string) pkix.Extension {
	t.Helper()
	var rdns pkix.RDNSequence
	for i, value := range []string{id, "SLB9670", "id:0755"} {
		rdns = append(rdns, pkix.RelativeDistinguishedNameSET{{Type: asn1.ObjectIdentifier{2, 23, 133, 2, i + 1}, Value: value}})
	}
	name, err := asn1.Marshal(rdns)
	if err != nil {
		t.Fatal(err)
	}
	value, err := asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 4, IsCompound: true, Bytes: name}})
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: altNames, Critical: true, Value: value}
}

// What a chain may be like, and what not.
func TestChains(t *testing.T) {
	m, other := newMaker(t), newMaker(t)
	key := newKey(t).Public()
	ended := newMaker(t, func(_, ca *x509.Certificate) { ca.NotAfter = begin.AddDate(1, 6, 0) })
	early := newMaker(t, func(_, ca *x509.Certificate) { ca.NotBefore = begin.AddDate(2, 6, 0) })
	noCA := newMaker(t, func(_, ca *x509.Certificate) { ca.IsCA = false })
	unable := newMaker(t, func(_, ca *x509.Certificate) { ca.KeyUsage = x509.KeyUsageCRLSign })
	flat := newMaker(t, func(root, _ *x509.Certificate) { root.MaxPathLenZero = true })
	forAIK := newMaker(t, func(_, ca *x509.Certificate) { ca.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{2, 23, 133, 8, 3}} })
	forWeb := newMaker(t, func(_, ca *x509.Certificate) { ca.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	forEK := newMaker(t, func(_, ca *x509.Certificate) { ca.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{1, 2, 3}, ekUsage} })
	forAny := newMaker(t, func(_, ca *x509.Certificate) { ca.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })
	unknown := pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}
	with := func(c *x509.Certificate, chain ...*x509.Certificate) []byte {
		shown := slices.Clone(c.Raw)
		for _, ca := range chain {
			shown = append(shown, ca.Raw...)
		}
		return shown
	}
	for name, c := range map[string]struct {
		shown []byte
		root  *x509.Certificate
		wrong string
	}{
		"whole":                      {with(m.issue(t, key), m.ca), m.root, ""},
		"with the root":              {with(m.issue(t, key), m.root, m.ca), m.root, ""},
		"twice":                      {with(m.issue(t, key), m.ca, m.ca), m.root, ""},
		"with another's, too":        {with(m.issue(t, key), other.ca, m.ca), m.root, ""},
		"no chain":                   {with(m.issue(t, key)), m.root, "unknown authority"},
		"another's chain":            {with(m.issue(t, key), other.ca), m.root, "unknown authority"},
		"another root":               {with(m.issue(t, key), m.ca), other.root, "unknown authority"},
		"the CA ended before":        {with(ended.issue(t, key), ended.ca), ended.root, "expired"},
		"the CA begins after":        {with(early.issue(t, key), early.ca), early.root, "expired or is not yet valid"},
		"the CA is none":             {with(noCA.issue(t, key), noCA.ca), noCA.root, "cannot sign this kind"},
		"the CA must not sign":       {with(unable.issue(t, key), unable.ca), unable.root, "unknown authority"},
		"the root signs leaves only": {with(flat.issue(t, key), flat.ca), flat.root, "too many intermediates"},
		"the CA is for AIKs":         {with(forAIK.issue(t, key), forAIK.ca), forAIK.root, "another purpose than endorsement keys"},
		"the CA is for servers":      {with(forWeb.issue(t, key), forWeb.ca), forWeb.root, "another purpose than endorsement keys"},
		"the CA is for EKs":          {with(forEK.issue(t, key), forEK.ca), forEK.root, ""},
		"the CA is for anything":     {with(forAny.issue(t, key), forAny.ca), forAny.root, ""},
		"a CA's": {with(m.issue(t, key, func(c *x509.Certificate) {
			c.IsCA, c.BasicConstraintsValid = true, true
		}), m.ca), m.root, "a CA's"},
		"for signing":        {with(m.issue(t, key, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }), m.ca), m.root, "neither decrypts"},
		"for another use":    {with(m.issue(t, key, func(c *x509.Certificate) { c.UnknownExtKeyUsage[0] = asn1.ObjectIdentifier{2, 23, 133, 8, 3} }), m.ca), m.root, "another purpose"},
		"for no use":         {with(m.issue(t, key, func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil }), m.ca), m.root, "does not say"},
		"critical, unknown":  {with(m.issue(t, key, func(c *x509.Certificate) { c.ExtraExtensions = append(c.ExtraExtensions, unknown) }), m.ca), m.root, "critical extension"},
		"critical, no name":  {with(m.issue(t, key, func(c *x509.Certificate) { c.ExtraExtensions[0].Value = []byte{0x30, 4, 0xa4, 2, 0x30, 0} }), m.ca), m.root, "critical extension"},
		"an RSA key":         {with(m.issue(t, rsaKey(2048)), m.ca), m.root, ""},
		"encrypting with EC": {with(m.issue(t, key, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }), m.ca), m.root, ""},
		"agreeing with RSA":  {with(m.issue(t, rsaKey(2048), func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement }), m.ca), m.root, "neither decrypts"},
	} {
		err := parse(t, c.shown).CheckLeadsTo([]*x509.Certificate{c.root})
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := parse(t, with(m.issue(t, key))).CheckSignedBy(m.ca); err != nil {
		t.Errorf("the CA itself: %v", err)
	}
	if err := parse(t, with(m.issue(t, key))).CheckSignedBy(other.ca); err == nil {
		t.Error("a CA of the same name that has another key signed it")
	}
}

// Whoever shows a chain has others verify few signatures by it: each of these CAs signed each, and none leads anywhere.
func TestChainWithoutEnd(t *testing.T) {
	m := newMaker(t)
	shown, all := m.issue(t, newKey(t).Public()).Raw, []*x509.Certificate{}
	for i := range 8 {
		ca := authority("Manufacturing CA", begin)
		ca.DNSNames = []string{string(rune('a' + i))} // crypto/x509 takes each for another.
		all = append(all, sign(t, ca, ca, m.caKey.Public(), m.caKey))
		shown = append(shown, all[i].Raw...)
	}
	if _, err := ekcert.Parse(shown); err == nil || !strings.Contains(err.Error(), "another has its name and its key") {
		t.Errorf("eight of one name and key: %v", err)
	}
	shown = m.issue(t, newKey(t).Public()).Raw
	for _, ca := range []*x509.Certificate{m.ca, m.ca, newMaker(t).ca, newMaker(t).ca} {
		shown = append(shown, ca.Raw...)
	}
	if _, err := ekcert.Parse(shown); err == nil || !strings.Contains(err.Error(), "certificate 4 of its chain: more than 2 have its name") {
		t.Errorf("three of one name: %v", err)
	}
}

func rsaKey(bits int) *rsa.PublicKey {
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	return &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}
}

func TestParseRefuses(t *testing.T) {
	m := newMaker(t)
	good := m.issue(t, newKey(t).Public()).Raw
	ca := authority("Large", begin)
	large := sign(t, ca, m.root, rsaKey(8192), m.rootKey).Raw
	small := sign(t, ca, m.root, rsaKey(1024), m.rootKey).Raw
	for name, c := range map[string]struct {
		shown []byte
		wrong string
	}{
		"nothing":          {nil, "truncated"},
		"words":            {[]byte("certificate"), ""},
		"an integer":       {[]byte{2, 1, 1}, "no certificate"},
		"cut off":          {good[:len(good)-1], "truncated"},
		"padding":          {append(slices.Clone(good), 0, 0), "no certificate"},
		"a torn chain":     {append(slices.Clone(good), m.ca.Raw[:50]...), "truncated"},
		"a long chain":     {append(slices.Clone(good), bytes.Repeat([]byte{0x30, 0}, 9)...), "more than 8"},
		"an empty one":     {append(slices.Clone(good), 0x30, 0), "certificate 1 of its chain"},
		"too much":         {append(slices.Clone(good), make([]byte, ekcert.MaxShown)...), "at most"},
		"a CA's large key": {slices.Concat(good, m.ca.Raw, large), "certificate 2 of its chain: an RSA key of 8192 bits"},
		"a CA's small key": {slices.Concat(good, small), "1024 bits"},
	} {
		if parsed, err := ekcert.Parse(c.shown); err == nil || !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, %v", name, parsed, err)
		}
	}
}

// A certificate is one key's, of those that a machine may show.
func TestIsFor(t *testing.T) {
	m := newMaker(t)
	keys := map[string]*tpm2.TPMTPublic{}
	shown := map[string]*ekcert.Certificate{}
	for _, template := range attest.EKTemplates() {
		for _, which := range []string{" one", " two"} {
			public, certified := example(t, template)
			keys[template.Name+which] = public
			shown[template.Name+which] = parse(t, m.issue(t, certified).Raw)
		}
	}
	for name, certificate := range shown {
		for of, key := range keys {
			if certificate.IsFor(key) != (name == of) {
				t.Errorf("the certificate of %s is for %s: %v", name, of, name != of)
			}
		}
	}
	public, _ := example(t, attest.EKTemplates()[0])
	if parse(t, m.issue(t, rsaKey(3072)).Raw).IsFor(public) || parse(t, m.issue(t, &rsa.PublicKey{N: rsaKey(2048).N, E: 3}).Raw).IsFor(public) {
		t.Error("a larger key, or one of another exponent, is taken")
	}
}

// example makes a key of a template, as the TPM shows it and as a certificate has it.
func example(t testing.TB, template attest.EKTemplate) (*tpm2.TPMTPublic, crypto.PublicKey) {
	t.Helper()
	public := template.Public()
	if public.Type == tpm2.TPMAlgRSA {
		parameters, err := public.Parameters.RSADetail()
		if err != nil {
			t.Fatal(err)
		}
		key := rsaKey(int(parameters.KeyBits))
		odd, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
		if err != nil {
			t.Fatal(err)
		}
		key.N.Add(key.N, odd.Lsh(odd, 1))
		public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: key.N.Bytes()})
		return &public, key
	}
	parameters, err := public.Parameters.ECCDetail()
	if err != nil {
		t.Fatal(err)
	}
	curve, err := parameters.CurveID.Curve()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	half := (len(point) - 1) / 2
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: point[1 : 1+half]}, Y: tpm2.TPM2BECCParameter{Buffer: point[1+half:]},
	})
	return &public, key.Public()
}

// FuzzParse holds the reader of what a machine shows to what its callers rely on: no panic, and the same bytes again.
func FuzzParse(f *testing.F) {
	m := newMaker(f)
	leaf := m.issue(f, newKey(f).Public())
	f.Add(leaf.Raw)
	f.Add(slices.Concat(leaf.Raw, m.ca.Raw, m.root.Raw))
	f.Add(slices.Concat(m.issue(f, rsaKey(2048)).Raw, m.ca.Raw))
	public, _ := example(f, attest.EKTemplates()[1])
	f.Fuzz(func(t *testing.T, shown []byte) {
		c, err := ekcert.Parse(shown)
		if err != nil {
			return
		}
		if !bytes.Equal(c.Encode(), shown) {
			t.Error("it is encoded otherwise")
		}
		if c.IsFor(public) || c.CheckLeadsTo(nil) == nil {
			t.Error("accepted")
		}
		_, _ = c.CheckSignedBy(m.ca), c.CheckLeadsTo([]*x509.Certificate{m.root})
		_ = c.TPM.MakerName()
	})
}

// FuzzIndexes holds the readers of a TPM's indexes to what their callers rely on.
func FuzzIndexes(f *testing.F) {
	m := newMaker(f)
	f.Add(slices.Concat(m.ca.Raw, m.root.Raw, make([]byte, 9)))
	f.Add(slices.Concat(m.ca.Raw, []byte{0xff}))
	f.Fuzz(func(t *testing.T, content []byte) {
		if der, err := ekcert.FromIndex(content); err == nil && !bytes.HasPrefix(content, der) {
			t.Error("a certificate that is not there")
		}
		if chain, err := ekcert.ChainFromIndexes(content); err == nil && !bytes.HasPrefix(content, chain) {
			t.Error("a chain that is not there")
		}
	})
}
