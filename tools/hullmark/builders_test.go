package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// builderKeys makes keys of three builders, and of a publisher who is none, in a folder, and returns where a file of it is.
func builderKeys(t *testing.T) (path func(name string) string) {
	t.Helper()
	dir := t.TempDir()
	path = func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"alice", "bob", "carol", "publisher"} {
		openssl(t, "genpkey", "-algorithm", "ED25519", "-out", path(name+".key"))
		openssl(t, "pkey", "-in", path(name+".key"), "-pubout", "-out", path(name+".pub"))
	}
	return path
}

// TestVerifyByBuilders verifies as a stranger does who has public keys alone, and explains who signed.
func TestVerifyByBuilders(t *testing.T) {
	document, list, _ := explainFixture(t)
	path := builderKeys(t)
	for _, name := range []string{"alice", "bob", "publisher"} {
		code, output := hullmarkCLI(t, "sign", document, "--key", path(name+".key"), "--out", path(name+".dsse"))
		wantExit(t, code, 0, output)
	}
	keys := []string{"--key", "alice=" + path("alice.pub"), "--key", path("bob.pub"), "--key", path("carol.pub")}
	verify := func(code int, args []string, contains ...string) {
		t.Helper()
		got, output := hullmarkCLI(t, append(append([]string{"verify"}, args...), keys...)...)
		wantExit(t, got, code, output, contains...)
	}
	both := []string{path("alice.dsse"), "--attestation", path("bob.dsse"), "--threshold", "2"}
	verify(0, both, "signatures  2 of 3 builders signed it, 2 have to: alice, bob; not carol")
	verify(0, append(both, "-o", "json"), `"threshold": 2`, `"missing": [`, `"carol"`)
	verify(exitDenied, both[:3], "2 of 3 builders signed it, 3 have to")
	verify(exitDenied, []string{path("alice.dsse"), "--threshold", "2", "--document", path("none")}, "1 of 3 builders signed it, 2 have to: alice; not bob, carol")
	verify(exitDenied, []string{path("alice.dsse"), "--attestation", path("alice.dsse"), "--threshold", "2"}, "1 of 3 builders")
	verify(0, []string{path("publisher.dsse"), "--attestation", path("alice.dsse"), "--attestation", path("bob.dsse"), "--threshold", "2"}, "2 of 3 builders signed it")
	verify(exitDenied, []string{path("publisher.dsse"), "--threshold", "1"}, "no signature is by a key that is named")
	verify(exitDenied, []string{path("alice.dsse"), "--attestation", path("publisher.dsse"), "--threshold", "1"}, "publisher.dsse", "no signature is by a key that is named")
	verify(exitUsage, append(both[:3:3], "--threshold", "4"), "4 of 3 have to sign")
	verify(exitUsage, append(both, "--key", "again="+path("bob.pub")), "again and bob have the same key")
	verify(exitUsage, append(both, "--key", "bob="+path("carol.pub")), "bob is there twice")
	if _, err := os.Stat(path("none")); err == nil {
		t.Error("a document was written that too few had signed")
	}

	explain := append([]string{"explain", document, "--pcrs", list, "--attestation", path("alice.dsse"), "--html", path("page.html")}, keys...)
	code, output := hullmarkCLI(t, append(explain, "--threshold", "1")...)
	wantExit(t, code, 0, output, "the document: 1 of 3 builders signed it, 1 have to: alice; not bob, carol")
	if page, err := os.ReadFile(path("page.html")); err != nil || !bytes.Contains(page, []byte("not bob, carol")) {
		t.Errorf("the page does not say who signed: %v", err)
	}
	code, output = hullmarkCLI(t, append(explain, "--threshold", "2", "-o", "json")...)
	wantExit(t, code, exitMismatch, output, `"signed": [`, "2 have to")
	code, output = hullmarkCLI(t, append([]string{"explain", document, "--pcrs", list}, keys...)...)
	wantExit(t, code, exitUsage, output, "or neither")
}

// TestPolicyBuilders has a policy demand two of three builders.
func TestPolicyBuilders(t *testing.T) {
	document, list, _ := explainFixture(t)
	site, path := newSite(t).path, builderKeys(t)
	policy := func(code int, verb string, args []string, contains ...string) string {
		t.Helper()
		words := append([]string{"policy"}, strings.Fields(verb)...)
		got, output := hullmarkCLI(t, append(append(words, "--cluster", site("cluster"), "--passphrase-file", site("passphrase")), args...)...)
		wantExit(t, got, code, output, contains...)
		return output
	}
	for _, name := range []string{"alice", "bob", "carol"} {
		code, output := hullmarkCLI(t, "sign", document, "--key", path(name+".key"), "--out", path(name+".dsse"))
		wantExit(t, code, 0, output)
	}
	check := []string{document, "--pcrs", list}
	policy(exitUsage, "add document", []string{document, "--attestation", path("alice.dsse")}, "names no builders")
	policy(0, "add document", []string{document}, "version 1")
	policy(0, "check", check, "accepted")
	named := []string{"alice=" + path("alice.pub"), "bob=" + path("bob.pub"), "carol=" + path("carol.pub")}
	policy(exitUsage, "builders", named, "0 of 3 have to sign")
	policy(exitUsage, "builders", []string{"--threshold", "4", named[0], named[1], named[2]}, "4 of 3 have to sign")
	policy(exitUsage, "builders", []string{"--threshold", "2", named[0], "bob=" + path("alice.pub")}, "same key")
	policy(exitUsage, "builders", []string{"--none", named[0]}, "or --none alone")
	policy(exitUsage, "builders", nil, "or --none alone")
	policy(exitFailed, "builders", []string{"--threshold", "1", "alice=" + path("alice.key")}, "want a public key")
	policy(exitUsage, "builders", []string{"--threshold", "1", path("alice.pub")}, "want NAME=KEY")
	policy(0, "builders", append([]string{"--threshold", "2"}, named...), "2 of 3 builders have to sign", "warning: no machine that boots release", "0 of 3 builders signed it")
	policy(exitDenied, "check", check, "0 of 3 builders signed it, 2 have to: none; not alice, bob, carol")
	policy(0, "add document", []string{document, "--attestation", path("alice.dsse")}, "builders: 1 of 3 builders signed it", "warning: no machine")
	policy(0, "add document", []string{document, "--attestation", path("alice.dsse")}, "builders: 1 of 3 builders signed it")
	policy(exitDenied, "check", check, "1 of 3 builders")
	if output := policy(0, "add document", []string{document, "--attestation", path("carol.dsse")}, "builders: 2 of 3 builders signed it, 2 have to: alice, carol; not bob"); strings.Contains(output, "warning") {
		t.Error(output)
	}
	policy(0, "check", check, "accepted")
	policy(0, "show", nil, "2 of these have to have signed a release: alice bob carol", "alice, carol; not bob")

	// What else is enforced of it keeps its signatures; a builder who is gone counts no more.
	policy(0, "add document", []string{document, "--enforce", "none"}, "builders: 2 of 3")
	policy(0, "builders", append([]string{"--threshold", "2"}, named[:2]...), "warning: no machine that boots release", "1 of 2 builders signed it")
	policy(exitDenied, "check", check, "alice; not bob")
	policy(0, "builders", []string{"--none"}, "no builder has to sign a release")
	policy(0, "check", check, "accepted")

	other := put(t, "other.dsse", bytes.Replace(mustRead(t, path("bob.dsse")), []byte(`"payload": "`), []byte(`"payload": "AAAA`), 1))
	policy(0, "builders", append([]string{"--threshold", "1"}, named...))
	policy(exitFailed, "add document", []string{document, "--attestation", other}, "not about a measurement document")
	policy(exitFailed, "add document", []string{document, "--attestation", document}, "")
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestAttest signs what a build leads to, and nothing else.
func TestAttest(t *testing.T) {
	f, path := newMeasureFixture(t), builderKeys(t)
	image := path("built.raw")
	write(t, image, mustRead(t, f.image))
	measure := func(file string, args ...string) {
		t.Helper()
		code, output := hullmarkCLI(t, append([]string{"measure", image, "--firmware", f.firmware, "--vars", f.vars, "--out", file}, args...)...)
		wantExit(t, code, 0, output)
	}
	measure(path("built.json"), "--builder", "example/hullmark@v1.0.0", "--lock", f.vars)
	attest := func(published string) error {
		t.Helper()
		o := attestOptions{document: published, key: path("alice.key"), out: path("attestation.dsse")}
		s, err := o.open(os.Stderr)
		if err != nil {
			return err
		}
		boot, err := measureOptions{firmware: f.firmware, vars: f.vars}.openBoot()
		if err != nil {
			t.Fatal(err)
		}
		s.boot = &boot
		return s.sign(image, "")
	}
	for name, c := range map[string]struct{ args, says string }{
		"of another program": {"--builder example/hullmark@v2.0.0 --lock " + f.vars, "program that built"},
		"of another lock":    {"--builder example/hullmark@v1.0.0 --lock " + f.firmware, "lock"},
		"of another machine": {"--builder example/hullmark@v1.0.0 --lock " + f.vars + " --fallback", "another prediction"},
		"with another SBOM":  {"--builder example/hullmark@v1.0.0 --lock " + f.vars + " --sbom " + f.vars, "SBOM (SPDX)"},
	} {
		measure(path("published.json"), strings.Fields(c.args)...)
		err := attest(path("published.json"))
		if err == nil || exitCode(err) != exitMismatch || !strings.Contains(err.Error(), "nothing was signed") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if _, err := os.Stat(path("attestation.dsse")); err == nil {
		t.Error("something was signed")
	}
	measure(path("published.json"), "--builder", "example/hullmark@v1.0.0", "--lock", f.vars, "--release", "spring", "--svn", "3")
	if err := attest(path("published.json")); err != nil {
		t.Fatal(err)
	}
	code, output := hullmarkCLI(t, "verify", path("attestation.dsse"), "--key", path("alice.pub"), "--image", image)
	wantExit(t, code, 0, output, "release spring, security version 3")

	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no key":         {[]string{"--attest", path("published.json")}, "--attest needs a key"},
		"nothing signed": {[]string{"--key", path("alice.key")}, "are about a document that is signed"},
		"over the key":   {[]string{"--attest", path("published.json"), "--key", path("alice.key"), "--attestation", path("alice.key")}, "is what is read"},
	} {
		code, output := hullmarkCLI(t, append([]string{"reproduce", "--source", "../.."}, c.args...)...)
		wantExit(t, code, exitUsage, name+": "+output, c.want)
	}
}
