package main

import (
	"os"
	"path/filepath"
	"testing"
)

// openssl runs OpenSSL, which makes keys as users make them.
func openssl(t *testing.T, args ...string) {
	t.Helper()
	tool(t, "openssl", "openssl", args...)
}

func TestSignAndVerify(t *testing.T) {
	f := newMeasureFixture(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	_, output := hullmarkCLI(t, "measure", f.image, "--firmware", f.firmware, "--vars", f.vars, "--sbom", f.vars, "--cyclonedx", f.image, "-o", "json")
	write(t, path("node.json"), []byte(output))
	write(t, path("passphrase"), []byte("correct horse\n"))
	write(t, path("wrong"), []byte("battery staple\n"))
	openssl(t, "genpkey", "-algorithm", "ED25519", "-aes256", "-pass", "file:"+path("passphrase"), "-out", path("edwards"))
	openssl(t, "pkey", "-in", path("edwards"), "-passin", "file:"+path("passphrase"), "-pubout", "-out", path("edwards.pub"))
	openssl(t, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path("p256"))
	openssl(t, "pkey", "-in", path("p256"), "-pubout", "-out", path("p256.pub"))
	for _, name := range []string{"edwards", "p256"} { // what follows is about the last
		code, output := hullmarkCLI(t, "sign", path("node.json"), "--key", path(name), "--passphrase-file", path("passphrase"))
		wantExit(t, code, 0, output, path("node.dsse"))
		code, output = hullmarkCLI(t, "verify", path("node.dsse"), "--key", path(name+".pub"), "--image", f.image, "--sbom", f.vars, "--cyclonedx", f.image, "--document", path("verified"))
		wantExit(t, code, 0, output, "signature", "each replayed from its events", "is the signed disk, byte for byte", "is the signed SBOM", "is the signed CycloneDX SBOM", "release 20260102")
		code, output = hullmarkCLI(t, "verify", path("node.dsse"), "--key", path(name+".pub"), "--image", f.image, "-o", "json")
		wantExit(t, code, 0, output, `"checked": [`, `"image"`, `"registers"`, `"key": "`+map[string]string{"edwards": "Ed25519", "p256": "ECDSA P-256"}[name])
		before, _ := os.ReadFile(path("node.json"))
		if after, err := os.ReadFile(path("verified")); err != nil || string(after) != string(before) {
			t.Errorf("%s: the verified document is another than the signed one: %v", name, err)
		}
	}
	write(t, path("node.raw"), smallDisk(t))
	for name, args := range map[string][]string{
		"p256":      {"sign", path("node.json"), "--key", path("p256"), "--out", path("p256")},
		"node.json": {"export", path("node.json"), "--format", "keylime", "--out", path("node.json")},
		"node.dsse": {"verify", path("node.dsse"), "--key", path("p256.pub"), "--document", path("node.dsse")},
		"verified":  {"learn", "--machine", path("verified"), "--out", path("verified")},
		"node.raw":  {"verify", path("node.dsse"), "--key", path("p256.pub"), "--image", path("node.raw"), "--document", path("node.raw")},
	} {
		before, _ := os.ReadFile(path(name))
		code, output := hullmarkCLI(t, args...)
		wantExit(t, code, exitUsage, output, name+" is what is read")
		if after, err := os.ReadFile(path(name)); err != nil || string(after) != string(before) {
			t.Errorf("%s was written over: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"another key":           {[]string{"verify", path("node.dsse"), "--key", path("edwards.pub"), "--document", path("bad")}, exitDenied, "no signature is by a key that is named"},
		"another image":         {[]string{"verify", path("node.dsse"), "--key", path("p256.pub"), "--image", f.vars, "--document", path("bad")}, exitMismatch, "the signed disk has"},
		"another SBOM":          {[]string{"verify", path("node.dsse"), "--key", path("p256.pub"), "--sbom", f.image, "--document", path("bad")}, exitMismatch, "the signed SBOM has"},
		"another CycloneDX":     {[]string{"verify", path("node.dsse"), "--key", path("p256.pub"), "--cyclonedx", f.vars, "--document", path("bad")}, exitMismatch, "the signed CycloneDX SBOM has"},
		"a private key":         {[]string{"verify", path("node.dsse"), "--key", path("p256")}, exitFailed, "want a public key"},
		"no envelope":           {[]string{"verify", path("node.json"), "--key", path("p256.pub")}, exitFailed, "hullmark sign makes one"},
		"an envelope":           {[]string{"sign", path("node.dsse"), "--key", path("p256")}, exitFailed, "hullmark verify --document"},
		"no such file":          {[]string{"verify", path("none"), "--key", path("p256.pub")}, exitFailed, "none"},
		"a wrong passphrase":    {[]string{"sign", path("node.json"), "--key", path("edwards"), "--passphrase-file", path("wrong")}, exitFailed, "is the passphrase right"},
		"a public key":          {[]string{"sign", path("node.json"), "--key", path("p256.pub")}, exitFailed, "want a PKCS #8 private key"},
		"a document of nothing": {[]string{"sign", path("p256"), "--key", path("p256")}, exitFailed, "p256"},
		"no key":                {[]string{"sign", path("node.json")}, exitFailed, "key"},
	} {
		code, output := hullmarkCLI(t, c.args...)
		wantExit(t, code, c.code, name+": "+output, c.want)
	}
	if _, err := os.Stat(path("bad")); err == nil {
		t.Error("a document was written that was not verified")
	}
}
