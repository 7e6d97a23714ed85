package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A stranger's way, as docs/verify.md shows it, with a small image, and then by hand, as docs/measurement-format.md does.
func TestVerifyPages(t *testing.T) {
	var pages []byte
	for _, name := range []string{"verify.md", "measurement-format.md"} {
		page, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, page...)
	}
	if _, err := exec.LookPath("jq"); err != nil {
		t.Fatal("jq is missing: apt-get install jq")
	}
	f := newMeasureFixture(t)
	dir := t.TempDir()
	for _, folder := range []string{"bin", "out", "pcrs/testdata"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "bin"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for to, from := range map[string]string{"out/hullmark.raw": f.image, "pcrs/testdata/ovmf-2025.02.log": sampleLog} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, to), content)
	}
	code, document := hullmarkCLI(t, "measure", f.image, "--firmware", f.firmware, "--vars", f.vars, "-o", "json")
	wantExit(t, code, 0, document)
	// The small image has a name of its own.
	name := regexp.MustCompile(`"id": "([^"]+)"`).FindStringSubmatch(document)
	if name == nil {
		t.Fatal(document)
	}
	write(t, filepath.Join(dir, "out/hullmark.json"), []byte(document))
	script := ""
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(pages), -1) {
		script += strings.Replace(block[1], "fetch hullmark ", "fetch "+name[1]+" ", 1)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-c", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	wantExit(t, cmd.ProcessState.ExitCode(), 0, string(out), "published in", "is the signed disk, byte for byte", "PCR 11 differs", "Signature Verified Successfully")
	// hullmark and jq name the same digest.
	if id := fmt.Sprintf("%x", sha256.Sum256([]byte(document))); strings.Count(string(out), id) != 2 {
		t.Errorf("the document's digest %s is not named twice in\n%s", id, out)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestFetchFailures(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	openssl(t, "genpkey", "-algorithm", "ED25519", "-out", path("key"))
	openssl(t, "pkey", "-in", path("key"), "-pubout", "-out", path("pub"))
	code, output := hullmarkCLI(t, "fetch", "node", "--from", dir, "--key", path("pub"), "--out", path("node.dsse"))
	wantExit(t, code, exitFailed, output, "no such file")
	code, output = hullmarkCLI(t, "fetch", "node", "--from", "ftp://host/", "--key", path("pub"))
	wantExit(t, code, exitUsage, output, "http://HOST/PATH")
	code, output = hullmarkCLI(t, "fetch", "--from", dir, "--key", path("pub"))
	wantExit(t, code, exitUsage, output, "name an image's name")
	code, output = hullmarkCLI(t, "publish", path("pub"), "--key", path("pub"), "--to", path("tree"))
	wantExit(t, code, exitFailed, output, "publish")
	if _, err := os.Stat(path("node.dsse")); err == nil {
		t.Error("a file was written")
	}
}
