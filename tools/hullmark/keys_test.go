package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/tooltest"
)

// tool runs a program that the package of that name brings and returns what it printed.
func tool(t *testing.T, pkg, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%s is missing: apt-get install %s", name, pkg)
	}
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// keysFixture is a folder with keys, those of others, and what is signed.
type keysFixture struct {
	measureFixture
	dir string
}

// testKeys are folders of keys, which are made once.
var testKeys = map[string]fstest.MapFS{}

func newKeysFixture(t *testing.T) keysFixture {
	t.Helper()
	f := keysFixture{newMeasureFixture(t), t.TempDir()}
	write(t, f.path("passphrase"), []byte("correct horse\n"))
	write(t, f.path("wrong"), []byte("battery staple\n"))
	for _, name := range []string{"keys", "others"} {
		if testKeys[name] == nil {
			f.ok(t, "keys", "create", f.path(name), "--passphrase-file", f.path("passphrase"), "--name", name)
			testKeys[name] = filesOf(t, f.path(name))
		} else if err := os.CopyFS(f.path(name), testKeys[name]); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// filesOf are the files of a folder.
func filesOf(t *testing.T, dir string) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = &fstest.MapFile{Data: content, Mode: 0o600}
	}
	return out
}

func (f keysFixture) path(elements ...string) string {
	return filepath.Join(append([]string{f.dir}, elements...)...)
}

func (f keysFixture) ok(t *testing.T, args ...string) string {
	t.Helper()
	code, output := hullmarkCLI(t, args...)
	wantExit(t, code, 0, output)
	return output
}

// sign signs the disk with a folder's key.
func (f keysFixture) sign(t *testing.T, keys, out string, more ...string) []byte {
	t.Helper()
	f.ok(t, append([]string{
		"keys", "sign", f.image, "--certificate", f.path(keys, "db.pem"), "--key", f.path(keys, "db.key"),
		"--passphrase-file", f.path("passphrase"), "--out", f.path(out),
	}, more...)...)
	return f.read(t, out)
}

func (f keysFixture) read(t *testing.T, elements ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(f.path(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// uki takes the kernel image out of a disk with mtools.
func (f keysFixture) uki(t *testing.T, disk string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "uki.efi")
	tool(t, "mtools", "mcopy", "-i", f.path(disk)+"@@1M", "::EFI/BOOT/BOOTX64.EFI", to)
	return to
}

// accepts reports whether sbverify takes an image with a folder's certificate.
func (f keysFixture) accepts(t *testing.T, image, keys string) bool {
	t.Helper()
	if _, err := exec.LookPath("sbverify"); err != nil {
		t.Fatal("sbverify is missing: apt-get install sbsigntool")
	}
	out, err := exec.CommandContext(t.Context(), "sbverify", "--cert", f.path(keys, "db.pem"), image).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("verification failed")) {
		t.Fatalf("sbverify: %v\n%s", err, out)
	}
	return err == nil
}

func TestKeysSignDisk(t *testing.T) {
	f := newKeysFixture(t)
	before, err := os.ReadFile(f.image)
	if err != nil {
		t.Fatal(err)
	}
	signed := f.sign(t, "keys", "signed.raw")
	if !bytes.Equal(signed, f.sign(t, "keys", "again.raw")) {
		t.Error("signing twice gives two disks")
	}
	if after, err := os.ReadFile(f.image); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the image that was signed changed: %v", err)
	}
	if uki := f.uki(t, "signed.raw"); !f.accepts(t, uki, "keys") || f.accepts(t, uki, "others") {
		t.Error("sbverify does not take the kernel image with its certificate alone")
	}
	secure := "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
	output := f.ok(t, "measure", f.path("signed.raw"), "--firmware", secure, "--vars", f.path("keys", varsFile))
	wantExit(t, 0, 0, output, "variable SecureBoot: 1", "entry 1 of 1 in db")
	for name, args := range map[string][]string{
		"not signed":            {f.image, "--vars", f.path("keys", varsFile)},
		"no entry of db allows": {f.path("signed.raw"), "--vars", f.path("others", varsFile)},
	} {
		code, output := hullmarkCLI(t, append([]string{"measure", "--firmware", secure}, args...)...)
		wantExit(t, code, exitFailed, output, name)
	}
}

// TestKeysSignEarlier signs what is signed already.
func TestKeysSignEarlier(t *testing.T) {
	f := newKeysFixture(t)
	signed := f.sign(t, "keys", "signed.raw")
	f.image = f.path("signed.raw")
	f.sign(t, "others", "both.raw", "--add")
	if uki := f.uki(t, "both.raw"); !f.accepts(t, uki, "keys") || !f.accepts(t, uki, "others") {
		t.Error("a second signature does not leave both valid")
	}
	f.sign(t, "others", "replaced.raw", "--replace")
	if uki := f.uki(t, "replaced.raw"); f.accepts(t, uki, "keys") || !f.accepts(t, uki, "others") {
		t.Error("the signature was not replaced")
	}
	if !bytes.Equal(f.sign(t, "keys", "same.raw", "--replace"), signed) {
		t.Error("the same signature in place of itself gives another disk")
	}
}

// TestKeysSignAddon signs an addon by each way that there is to a key: all give the same bytes.
func TestKeysSignAddon(t *testing.T) {
	f := newKeysFixture(t)
	stub, err := os.ReadFile("/" + uki.DebianStub)
	if err != nil {
		t.Fatalf("%v: apt-get install systemd-boot-efi", err)
	}
	addon, err := pe.Append(stub, []pe.NewSection{{Name: ".cmdline", Data: []byte("debug"), Flags: pe.FlagInitializedData | pe.FlagRead}})
	if err != nil {
		t.Fatal(err)
	}
	f.image = f.path("x.addon.efi")
	write(t, f.image, addon)
	signed := f.sign(t, "keys", "signed.addon.efi")
	if !f.accepts(t, f.path("signed.addon.efi"), "keys") {
		t.Error("sbverify does not take the addon")
	}
	openssl := "openssl dgst -sha256 -passin file:" + f.path("passphrase") + " -sign " + f.path("keys", "db.key")
	sign := []string{"keys", "sign", f.image, "--certificate", f.path("keys", "db.pem")}
	f.ok(t, append(sign, "--signer", openssl, "--out", f.path("command"))...)
	f.ok(t, append(sign, "--request", f.path("request"))...)
	tool(t, "openssl", "sh", "-c", openssl+" <"+f.path("request")+" >"+f.path("answer"))
	f.ok(t, append(sign, "--signature", f.path("answer"), "--out", f.path("answered"))...)
	for _, name := range []string{"command", "answered"} {
		if !bytes.Equal(f.read(t, name), signed) {
			t.Errorf("%s: not the bytes that the key in a file gives", name)
		}
	}
}

// TestKeysInToken lets a key that never leaves a PKCS #11 token sign its own certificate, and images.
func TestKeysInToken(t *testing.T) {
	f := newKeysFixture(t)
	token := tooltest.NewToken(t, f.dir, "rsa:2048")
	token.Public(t, f.path("public.pem"))
	signer := token.Signer("SHA256-RSA-PKCS")
	f.ok(t, "keys", "create", f.path("token"), "--passphrase-file", f.path("passphrase"), "--public-key", f.path("public.pem"), "--signer", signer)
	if _, err := os.Stat(f.path("token", "db.key")); err == nil {
		t.Error("a key that is elsewhere has a file")
	}
	var disks [2][]byte
	for i := range disks {
		f.ok(t, "keys", "sign", f.image, "--certificate", f.path("token", "db.pem"), "--signer", signer, "--out", f.path("signed.raw"))
		disks[i] = f.read(t, "signed.raw")
	}
	if uki := f.uki(t, "signed.raw"); !f.accepts(t, uki, "token") || f.accepts(t, uki, "keys") {
		t.Error("sbverify does not take the kernel image with the token's certificate alone")
	}
	if !bytes.Equal(disks[0], disks[1]) {
		t.Error("the token gives two disks")
	}
}

func TestKeysSignRefuses(t *testing.T) {
	f := newKeysFixture(t)
	f.sign(t, "keys", "signed.raw")
	stub, err := os.ReadFile("/" + uki.DebianStub)
	if err != nil {
		t.Fatalf("%v: apt-get install systemd-boot-efi", err)
	}
	arm := bytes.Clone(stub)
	copy(arm[bytes.Index(arm, []byte("PE\x00\x00"))+4:], "\x64\xaa")
	write(t, f.path("arm.efi"), arm)
	write(t, f.path("empty"), nil)
	disk, err := os.ReadFile(f.image)
	if err != nil {
		t.Fatal(err)
	}
	disk[bytes.Index(disk, []byte("roothash="))-2] ^= 1
	write(t, f.path("damaged.raw"), disk)
	certificate := f.path("keys", "db.pem")
	key := []string{"--key", f.path("keys", "db.key"), "--passphrase-file", f.path("passphrase")}
	before := f.files(t)
	for name, c := range map[string]struct {
		file string
		args []string
		want string
	}{
		"a wrong passphrase":      {f.image, []string{"--key", f.path("keys", "db.key"), "--passphrase-file", f.path("wrong")}, "is the passphrase right"},
		"the key of another":      {f.image, []string{"--key", f.path("others", "db.key"), "--passphrase-file", f.path("passphrase")}, "not the key of the certificate"},
		"a signer that dies":      {f.image, []string{"--signer", "head -c 20; kill -9 $$"}, "signal: killed; nothing was signed"},
		"a signer that fails":     {f.image, []string{"--signer", "echo the token is gone >&2; exit 3"}, "exit status 3; nothing was signed"},
		"a signer's own words":    {f.image, []string{"--signer", "echo the token is gone >&2; exit 3"}, "the token is gone"},
		"no such signer":          {f.image, []string{"--signer", "/nonexistent/signer"}, "exit status 127"},
		"a signer that is silent": {f.image, []string{"--signer", "true"}, "answered with nothing"},
		"a signer that is loud":   {f.image, []string{"--signer", "yes"}, "more than 65536 bytes"},
		"a wrong signature":       {f.image, []string{"--signer", "head -c 256 /dev/zero"}, "does not verify with the certificate"},
		"an encoded signature":    {f.image, []string{"--signer", "base64"}, "want 256 bytes of RSASSA-PKCS1-v1_5 with SHA-256, not encoded"},
		"an answer to another":    {f.image, []string{"--signature", f.image}, "too long"},
		"an empty answer":         {f.image, []string{"--signature", f.path("empty")}, "does not verify with the certificate"},
		"a signed disk":           {f.path("signed.raw"), key, "signed already"},
		"a damaged disk":          {f.path("damaged.raw"), key, "changed or damaged"},
		"another architecture":    {f.path("arm.efi"), key, "machine 0xaa64, want 0x8664 (x86-64)"},
		"no image":                {f.path("passphrase"), key, "read GPT"},
		"nothing":                 {f.path("empty"), key, "neither a disk image nor a PE image"},
		"no such file":            {f.path("none"), key, "none"},
	} {
		code, output := hullmarkCLI(t, append([]string{"keys", "sign", c.file, "--certificate", certificate, "--out", f.path("bad")}, c.args...)...)
		wantExit(t, code, exitFailed, name+": "+output, c.want)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"over the image":  {append(key, "--certificate", certificate, "--out", f.image), "is what is read"},
		"a key, not one":  {append(key, "--certificate", f.path("keys", "db.key"), "--out", f.path("bad")), "want a certificate"},
		"two ways":        {append(key, "--certificate", certificate, "--out", f.path("bad"), "--signer", "true"), "none of the others"},
		"no way":          {[]string{"--certificate", certificate, "--out", f.path("bad")}, "at least one of the flags"},
		"nowhere to":      {append(key, "--certificate", certificate), "at least one of the flags"},
		"add and replace": {append(key, "--certificate", certificate, "--out", f.path("bad"), "--add", "--replace"), "none of the others"},
	} {
		code, output := hullmarkCLI(t, append([]string{"keys", "sign", f.image}, c.args...)...)
		if code == 0 || !strings.Contains(output, c.want) {
			t.Errorf("%s: exit %d, want an error with %q:\n%s", name, code, c.want, output)
		}
	}
	if after := f.files(t); !slices.Equal(before, after) {
		t.Errorf("files were left:\n%q\n%q", before, after)
	}
}

// files are the names of all files of the fixture.
func (f keysFixture) files(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pattern := range []string{f.path("*"), f.path(".*"), f.path("*", "*"), filepath.Join(filepath.Dir(f.image), "*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// A signer that hangs, or leaves a program behind that does, is waited for only so long.
func TestSignerThatHangs(t *testing.T) {
	for _, command := range []string{"sleep 600", "sleep 600 & echo signature"} {
		_, err := commandSigner{ctx: t.Context(), command: command, notes: t.Output(), limit: 200 * time.Millisecond}.SignMessage(nil, []byte("message"), nil)
		if err == nil || !strings.Contains(err.Error(), "no answer within 200ms; nothing was signed") {
			t.Errorf("%s: got %v", command, err)
		}
	}
}

// What a signer says on standard error writes nothing over what hullmark says, and a program that holds it open does no harm.
func TestSignerIsShownCleaned(t *testing.T) {
	for _, command := range []string{
		`printf 'touch\tthe \033[31mtoken\r\n' >&2; echo signature`,
		`printf 'touch\tthe \033[31mtoken\r\n' >&2; sleep 5 >/dev/null & echo signature`,
	} {
		var notes bytes.Buffer
		answer, err := commandSigner{ctx: t.Context(), command: command, notes: &notes}.SignMessage(nil, []byte("message"), nil)
		if err != nil || string(answer) != "signature\n" {
			t.Errorf("%s: %q, %v", command, answer, err)
		}
		if notes.String() != "touch\tthe [31mtoken\n" {
			t.Errorf("%s: it said %q", command, notes.String())
		}
	}
}

func TestKeysCreateRefuses(t *testing.T) {
	f := newKeysFixture(t)
	openssl(t, "x509", "-in", f.path("keys", "db.pem"), "-pubkey", "-noout", "-out", f.path("public.pem"))
	openssl(t, "genpkey", "-algorithm", "ED25519", "-out", f.path("edwards"))
	openssl(t, "pkey", "-in", f.path("edwards"), "-pubout", "-out", f.path("edwards.pub"))
	if err := os.CopyFS(f.path("tomorrow"), testKeys["keys"]); err != nil {
		t.Fatal(err)
	}
	write(t, f.path("tomorrow", "db.pem"), certificateOf(t, time.Now().Add(24*time.Hour)))
	openssl(t, "genrsa", "-out", f.path("short"), "1024")
	openssl(t, "pkey", "-in", f.path("short"), "-pubout", "-out", f.path("short.pub"))
	before := f.files(t)
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"a folder that exists":    {[]string{"create", f.path("keys")}, exitFailed, "exists already"},
		"nowhere":                 {[]string{"create", f.path("none", "keys")}, exitFailed, "no such file"},
		"no name":                 {[]string{"create", f.path("new"), "--name", ""}, exitUsage, "printable bytes"},
		"a signer without key":    {[]string{"create", f.path("new"), "--signer", "true"}, exitUsage, "both --public-key and --signer"},
		"a signer that dies":      {[]string{"create", f.path("new"), "--public-key", f.path("public.pem"), "--signer", "exit 9"}, exitFailed, "exit status 9"},
		"a signer that is wrong":  {[]string{"create", f.path("new"), "--public-key", f.path("public.pem"), "--signer", "head -c 256 /dev/zero"}, exitFailed, "certificate db"},
		"another kind of key":     {[]string{"create", f.path("new"), "--public-key", f.path("edwards.pub"), "--signer", "true"}, exitFailed, "firmware takes RSA"},
		"a short key":             {[]string{"create", f.path("new"), "--public-key", f.path("short.pub"), "--signer", "true"}, exitFailed, "at least 2048 bits"},
		"rotate into itself":      {[]string{"rotate", f.path("keys"), f.path("keys")}, exitFailed, "exists already"},
		"rotate what is newer":    {[]string{"rotate", f.path("tomorrow"), f.path("new")}, exitFailed, "would not take an older key"},
		"rotate nothing":          {[]string{"rotate", f.path("none"), f.path("new")}, exitFailed, "none/PK.pem"},
		"rotate without a name":   {[]string{"rotate", f.path("keys")}, exitUsage, "the one to make"},
		"rotate, then passphrase": {[]string{"rotate", f.path("keys"), f.path("new"), "--passphrase-file", f.path("wrong")}, exitFailed, "PK.key: no private key can be read; is the passphrase right?"},
	} {
		args := append([]string{"keys"}, c.args...)
		if !slices.Contains(args, "--passphrase-file") {
			args = append(args, "--passphrase-file", f.path("passphrase"))
		}
		code, output := hullmarkCLI(t, args...)
		wantExit(t, code, c.code, name+": "+output, c.want)
	}
	if after := f.files(t); !slices.Equal(before, after) {
		t.Errorf("files were left:\n%q\n%q", before, after)
	}
}

// certificateOf is a certificate from that time, in PEM.
func certificateOf(t *testing.T, from time.Time) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: from.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A folder that came into being meanwhile is not touched, and nothing is left beside it.
func TestKeysWrittenWhole(t *testing.T) {
	f := newKeysFixture(t)
	passphrase := hullmark.NewSecret([]byte("correct horse"))
	var s keySet
	for name, k := range map[string]*bootKey{platformKey: &s.platform, exchangeKey: &s.exchange, imageKey: &s.image} {
		var err error
		if *k, err = readBootKey(f.path("keys"), name, passphrase); err != nil {
			t.Fatal(err)
		}
	}
	before := f.files(t)
	if err := s.write(f.path("others")); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v, want an error about a folder that exists", err)
	}
	if after := f.files(t); !slices.Equal(before, after) {
		t.Errorf("files were left:\n%q\n%q", before, after)
	}
	if err := s.write(f.path("copy")); err != nil {
		t.Fatal(err)
	}
	for name, file := range testKeys["keys"] {
		if !bytes.Equal(f.read(t, "copy", name), file.Data) {
			t.Errorf("%s does not follow from keys and certificates alone", name)
		}
	}
}

// TestKeysRotate makes a new key for images, whose update the old KEK signed.
func TestKeysRotate(t *testing.T) {
	f := newKeysFixture(t)
	time.Sleep(1100 * time.Millisecond) // firmware's times have seconds
	f.ok(t, "keys", "rotate", f.path("keys"), f.path("new"), "--passphrase-file", f.path("passphrase"))
	for _, name := range []string{"PK.key", "PK.pem", "PK.auth", "KEK.key", "KEK.pem", "KEK.auth", "KEK.esl"} {
		if !bytes.Equal(f.read(t, "keys", name), f.read(t, "new", name)) {
			t.Errorf("%s changed", name)
		}
	}
	tool(t, "efitools", "sign-efi-sig-list", "-t", f.notBefore(t, "new"), "-k", f.decrypted(t, "keys", "KEK"), "-c", f.path("keys", "KEK.pem"), "db", f.path("new", "db.esl"), f.path("db.auth"))
	if !bytes.Equal(f.read(t, "db.auth"), f.read(t, "new", "db.auth")) {
		t.Error("db.auth is not what efitools make with the old KEK")
	}
	if older, newer := f.notBefore(t, "keys"), f.notBefore(t, "new"); older >= newer {
		t.Errorf("the new db is from %s, the old one from %s", newer, older)
	}
	f.sign(t, "new", "signed.raw")
	if uki := f.uki(t, "signed.raw"); !f.accepts(t, uki, "new") || f.accepts(t, uki, "keys") {
		t.Error("the new key signs with the old certificate")
	}
}

// notBefore is when db's certificate was made, as efitools read it.
func (f keysFixture) notBefore(t *testing.T, keys string) string {
	t.Helper()
	t.Setenv("TZ", "UTC")
	certificate, err := readCertificate(f.path(keys, "db.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return certificate.NotBefore.Format(time.DateTime)
}

// decrypted is a key without its passphrase, for tools that ask for one.
func (f keysFixture) decrypted(t *testing.T, keys, name string) string {
	t.Helper()
	openssl(t, "pkey", "-in", f.path(keys, name+".key"), "-passin", "file:"+f.path("passphrase"), "-out", f.path("decrypted"))
	return f.path("decrypted")
}
