package pcrs

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/authenticode"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/secureboot"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// imageSigner signs images.
type imageSigner struct {
	key         *rsa.PrivateKey
	certificate *x509.Certificate
}

// testSigners makes each of them once.
var testSigners = map[string]func() (imageSigner, error){
	"ours":   sync.OnceValues(func() (imageSigner, error) { return newImageSigner("ours") }),
	"others": sync.OnceValues(func() (imageSigner, error) { return newImageSigner("others") }),
}

func newImageSigner(name string) (s imageSigner, err error) {
	if s.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		return s, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, s.key.Public(), s.key)
	if err != nil {
		return s, err
	}
	s.certificate, err = x509.ParseCertificate(der)
	return s, err
}

func signerNamed(t testing.TB, name string) imageSigner {
	t.Helper()
	s, err := testSigners[name]()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ours(t testing.TB) imageSigner   { return signerNamed(t, "ours") }
func others(t testing.TB) imageSigner { return signerNamed(t, "others") }

// sign adds a signature to an image.
func (s imageSigner) sign(t testing.TB, image []byte) []byte {
	t.Helper()
	message, err := secureboot.Message(image)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := crypto.SignMessage(s.key, rand.Reader, message, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := secureboot.Attach(image, s.certificate, signature)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// signedAs gives an image the signatures of another one.
func signedAs(t testing.TB, image []byte, other *pe.File) []byte {
	t.Helper()
	signatures, err := other.Signatures()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := pe.WithSignatures(image, signatures...)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

var testOwner = efi.GUID{0: 0xaa, 15: 0xbb}

func (s imageSigner) list() []byte { return secureboot.List(testOwner, s.certificate.Raw) }

// entry is what firmware measures of the certificate.
func (s imageSigner) entry() []byte { return append(bytes.Clone(testOwner[:]), s.certificate.Raw...) }

// hashes is a list of entries of one type, each after its owner.
func hashes(kind efi.GUID, data ...[]byte) []byte {
	b := bytes.Clone(kind[:])
	size := len(testOwner) + len(data[0])
	for _, n := range []int{28 + size*len(data), 0, size} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for _, d := range data {
		b = append(append(b, testOwner[:]...), d...)
	}
	return b
}

// microsoft is the value of a variable in the file with Microsoft's certificates.
func microsoft(t testing.TB, name string) []byte {
	t.Helper()
	v, err := firmware.OpenVars(packaged(t, "/usr/share/OVMF/OVMF_VARS_4M.ms.fd", "ovmf"))
	if err != nil {
		t.Fatal(err)
	}
	value, ok := v.Lookup(efi.ImageSecurity, name)
	if !ok {
		t.Fatal("the file has no variable ", name)
	}
	return value
}

// digestOf is the image's, as firmware hashes it.
func digestOf(t testing.TB, f *pe.File, hash crypto.Hash) []byte {
	t.Helper()
	digest, err := imageDigest(f, hash)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// authorities are what PCR 7 shows after its separator: entries of db.
func authorities(t testing.TB, p Prediction) (out [][]byte) {
	t.Helper()
	for _, e := range p.Log.Of(7) {
		if e.Type != EvVariableAuthority {
			continue
		}
		name, value, ok := valueOf(e)
		if !ok || name != "db" {
			t.Fatalf("%s: %q, %v", e.What(), name, ok)
		}
		out = append(out, value)
	}
	return out
}

// TestAuthority has db and dbx in many forms, and the entry of db that lets the image start.
func TestAuthority(t *testing.T) {
	ours, others := ours(t), others(t)
	b := secureBoot(t)
	plain := rebuilt(t, "", nil)
	byOurs := ours.sign(t, plain)
	both := others.sign(t, byOurs)
	digest := digestOf(t, b.UKI.PE, crypto.SHA256)
	byHash := append(bytes.Clone(testOwner[:]), digest...)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	zero := make([]byte, sha256.Size)
	tbs := sha256.Sum256(ours.certificate.RawTBSCertificate)
	othersTBS := sha512.Sum384(others.certificate.RawTBSCertificate)
	never, later := make([]byte, 16), []byte{0x30, 0x08, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // 2096
	var many [][]byte
	for i := range 700 {
		d := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		many = append(many, d[:])
	}
	for name, c := range map[string]struct {
		image, db, dbx []byte
		want           []byte
		err            string
	}{
		"the only one":                  {byOurs, ours.list(), nil, ours.entry(), ""},
		"after Microsoft's":             {byOurs, join(microsoft(t, "db"), ours.list()), microsoft(t, "dbx"), ours.entry(), ""},
		"before Microsoft's":            {byOurs, join(ours.list(), microsoft(t, "db")), microsoft(t, "dbx"), ours.entry(), ""},
		"after hashes":                  {byOurs, join(hashes(authenticode.TypeSHA256, zero), others.list(), ours.list()), nil, ours.entry(), ""},
		"certificate before hash":       {byOurs, join(hashes(authenticode.TypeSHA256, digest), ours.list()), nil, ours.entry(), ""},
		"only its hash":                 {byOurs, join(others.list(), hashes(authenticode.TypeSHA256, zero, digest)), nil, byHash, ""},
		"unsigned, with its hash":       {plain, hashes(authenticode.TypeSHA256, digest), nil, byHash, ""},
		"two signatures, first in db":   {both, ours.list(), nil, ours.entry(), ""},
		"two signatures, second in db":  {both, others.list(), nil, others.entry(), ""},
		"two signatures, both in db":    {both, join(others.list(), ours.list()), nil, ours.entry(), ""},
		"two signatures, hash and cert": {both, join(others.list(), hashes(authenticode.TypeSHA256, digest)), nil, byHash, ""},
		"a large dbx":                   {byOurs, ours.list(), hashes(authenticode.TypeSHA256, many...), ours.entry(), ""},
		"others in dbx":                 {byOurs, ours.list(), join(others.list(), hashes(authenticode.TypeX509SHA384, join(othersTBS[:], never))), ours.entry(), ""},

		"empty":                          {byOurs, nil, nil, nil, "db has nothing"},
		"Microsoft's alone":              {byOurs, microsoft(t, "db"), nil, nil, `signed by "ours", and db has "Microsoft Windows Production PCA 2011", "Microsoft Corporation UEFI CA 2011"`},
		"others' alone":                  {byOurs, others.list(), nil, nil, `signed by "ours", and db has "others"`},
		"both, for none":                 {both, microsoft(t, "db"), nil, nil, `signed by "ours" and by "others"`},
		"unsigned, with a certificate":   {plain, ours.list(), nil, nil, "not signed"},
		"another type's hash":            {byOurs, hashes(authenticode.TypeX509SHA256, join(digest, never)), nil, nil, "1 other entries"},
		"revoked by hash":                {byOurs, ours.list(), hashes(authenticode.TypeSHA256, append(slices.Clone(many), digest)...), nil, "dbx revokes it: it has the image's SHA-256 digest"},
		"unsigned, revoked by hash":      {plain, hashes(authenticode.TypeSHA256, digest), hashes(authenticode.TypeSHA256, digest), nil, "dbx revokes it"},
		"revoked by certificate":         {byOurs, ours.list(), join(hashes(authenticode.TypeSHA256, zero), ours.list()), nil, `dbx revokes it: it has the certificate "ours"`},
		"revoked by certificate's hash":  {byOurs, ours.list(), hashes(authenticode.TypeX509SHA256, join(tbs[:], never)), nil, `it has the hash of the certificate "ours"`},
		"revoked from a later time on":   {byOurs, ours.list(), hashes(authenticode.TypeX509SHA256, join(tbs[:], later)), nil, `it has the hash of the certificate "ours"`},
		"first signature is revoked":     {both, others.list(), ours.list(), nil, `it has the certificate "ours"`},
		"second signature is revoked":    {both, ours.list(), others.list(), nil, `it has the certificate "others"`},
		"unsigned, with its longer hash": {plain, hashes(authenticode.TypeSHA384, digestOf(t, b.UKI.PE, crypto.SHA384)), nil, nil, "some builds of firmware"},
		"a torn db":                      {byOurs, ours.list()[:100], nil, nil, "variable db: signature list 1"},
		"a torn dbx":                     {byOurs, ours.list(), ours.list()[:20], nil, "variable dbx: signature list 1"},
	} {
		b.UKI = open(t, c.image)
		b.Machine.Vars = secureBoot(t).Machine.Vars.With(efi.ImageSecurity, "db", c.db).With(efi.ImageSecurity, "dbx", c.dbx)
		p, err := Predict(b)
		if err != nil || c.err != "" {
			if err == nil || c.err == "" || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, want an error with %q", name, err, c.err)
			}
			continue
		}
		if got := authorities(t, p); len(got) != 1 || !bytes.Equal(got[0], c.want) {
			t.Errorf("%s: %x, want %x", name, got, c.want)
		}
	}
}

// TestAuthorityIsNotKnown leaves what rests on a verdict that is not known open, and predicts the rest: a machine that boots has started
// its kernel image.
func TestAuthorityIsNotKnown(t *testing.T) {
	ours := ours(t)
	tbs := sha256.Sum256(ours.certificate.RawTBSCertificate)
	later := append(tbs[:], 0x30, 0x08, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // 2096
	none := secureboot.List(testOwner, []byte("none"))
	addon := map[string][]byte{global + "a.addon.efi": ours.sign(t, testAddon(t, addonSection(".cmdline", "x")))}
	for name, c := range map[string]struct {
		db, dbx, dbt []byte
		esp          map[string][]byte
		open         []Register
		why          string
	}{
		"no certificate":                   {none, nil, nil, nil, []Register{7, 10}, "variable db: entry 1"},
		"no certificate, and an addon":     {none, nil, nil, addon, []Register{4, 7, 9, 10, 12}, "variable db: entry 1"},
		"revoked from a time on, with dbt": {ours.list(), hashes(authenticode.TypeX509SHA256, later), ours.list(), nil, []Register{7, 10}, `revokes the certificate "ours" from a time on`},
	} {
		b := secureBoot(t)
		b.Machine.Vars = b.Machine.Vars.With(efi.ImageSecurity, "db", c.db).With(efi.ImageSecurity, "dbx", c.dbx).With(efi.ImageSecurity, "dbt", c.dbt)
		b.ESP = c.esp
		known, err := Predict(secureBoot(t))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Predict(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := slices.DeleteFunc(known.Registers, func(r Register) bool { return slices.Contains(c.open, r) })
		if !slices.Equal(p.Registers, want) {
			t.Errorf("%s: predicted are %v, want %v", name, p.Registers, want)
		}
		for _, u := range p.Unpredicted {
			if u.Register == 7 && !strings.Contains(u.Reason, c.why) {
				t.Errorf("%s: %s", name, u.Reason)
			}
		}
	}
}

// TestTimestampDatabase measures dbt behind dbx, and not dbr; a revocation without a time stands with it as without.
func TestTimestampDatabase(t *testing.T) {
	b := secureBoot(t)
	b.Machine.Vars = b.Machine.Vars.With(efi.ImageSecurity, "dbt", []byte("timestamps")).With(efi.ImageSecurity, "dbr", []byte("recovery"))
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range p.Log.Of(7) {
		if name, _, ok := valueOf(e); ok {
			names = append(names, name)
		}
	}
	if want := []string{"SecureBoot", "PK", "KEK", "db", "dbx", "dbt", "db"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	ours := ours(t)
	tbs := sha256.Sum256(ours.certificate.RawTBSCertificate)
	b.Machine.Vars = b.Machine.Vars.With(efi.ImageSecurity, "dbx", hashes(authenticode.TypeX509SHA256, append(tbs[:], make([]byte, 16)...)))
	if _, err := Predict(b); err == nil || !strings.Contains(err.Error(), "dbx revokes it") {
		t.Errorf("revoked for ever: %v", err)
	}
}

// TestAuthoritiesOfAddons measures each entry of db once, in the order in which something is started by it.
func TestAuthoritiesOfAddons(t *testing.T) {
	ours, others := ours(t), others(t)
	b := secureBoot(t)
	addon := testAddon(t, addonSection(".cmdline", "x"))
	b.Machine.Vars = b.Machine.Vars.With(efi.ImageSecurity, "db", bytes.Join([][]byte{others.list(), ours.list()}, nil))
	b.ESP = map[string][]byte{
		global + "a.addon.efi": ours.sign(t, addon), local + "b.addon.efi": others.sign(t, addon),
		local + "c.addon.efi": others.sign(t, testAddon(t, addonSection(".cmdline", "y"))), local + "d.addon.efi": addon,
	}
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := authorities(t, p); len(got) != 2 || !bytes.Equal(got[0], ours.entry()) || !bytes.Equal(got[1], others.entry()) {
		t.Errorf("%x", got)
	}
	last := p.Log.Of(7)[len(p.Log.Of(7))-1]
	if want := `entry 1 of 2 in db, with its owner: certificate "others"`; !strings.Contains(last.What(), want) {
		t.Errorf("%s, want %s", last.What(), want)
	}
	if len(p.Log.Of(4)) != 6 {
		t.Errorf("PCR 4: %q", whats(p.Log.Of(4)))
	}
}

// TestAuthorityOfALog takes db from a log of a machine whose firmware cannot be had.
func TestAuthorityOfALog(t *testing.T) {
	b := secureBoot(t)
	b.Machine.Vars = b.Machine.Vars.With(efi.ImageSecurity, "db", bytes.Join([][]byte{others(t).list(), ours(t).list()}, nil))
	first, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	log := Log{Format: FormatAgile, Banks: PredictedBanks(), Events: first.Log.Events}
	logged := Boot{UKI: b.UKI, Table: b.Table, Machine: Machine{Log: &MachineLog{Log: log}}}
	again, err := Predict(logged)
	if err != nil {
		t.Fatal(err)
	}
	want, got := values(t, first), values(t, again)
	if !want[7].Equal(got[7]) || !want[4].Equal(got[4]) || got[7] == nil {
		t.Errorf("PCR 7 is %v, want %v", got[7], want[7])
	}
	b.UKI = open(t, others(t).sign(t, rebuilt(t, "", nil)))
	if first, err = Predict(b); err != nil {
		t.Fatal(err)
	}
	logged.UKI = b.UKI
	if again, err = Predict(logged); err != nil || !values(t, first)[7].Equal(values(t, again)[7]) || values(t, again)[7].Equal(want[7]) {
		t.Errorf("an image by another entry of db: %v, %v", again.Registers, err)
	}
	// A firmware that measures something else than the entry is not known to go on so.
	odd := log
	odd.Events = slices.Clone(log.Events)
	for i, e := range odd.Events {
		if e.Type == EvVariableAuthority {
			odd.Events[i].Digests = DigestsOf([]byte("the whole of db"), PredictedBanks()...)
		}
	}
	if p, err := Predict(Boot{UKI: b.UKI, Table: b.Table, Machine: Machine{Log: &MachineLog{Log: odd}}}); err != nil || !strings.Contains(openReason(p, 7), "no entry of db") {
		t.Errorf("another form: %v, %v", p.Unpredicted, err)
	}
	logged.UKI = open(t, rebuilt(t, "", nil))
	if _, err := Predict(logged); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("an unsigned image: %v", err)
	}
}

func values(t testing.TB, p Prediction) Values {
	t.Helper()
	v, err := p.Values(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
