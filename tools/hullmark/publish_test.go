package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
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
	write(t, filepath.Join(dir, "out/hullmark.spdx.json"), []byte("an SBOM"))
	write(t, filepath.Join(dir, "out/hullmark.cdx.json"), []byte("the same SBOM"))
	code, document := hullmarkCLI(t, "measure", f.image, "--firmware", f.firmware, "--vars", f.vars, "--sbom", filepath.Join(dir, "out/hullmark.spdx.json"), "--cyclonedx", filepath.Join(dir, "out/hullmark.cdx.json"), "-o", "json")
	wantExit(t, code, 0, document)
	// The small image has a name of its own.
	name := regexp.MustCompile(`"id": "([^"]+)"`).FindStringSubmatch(document)
	if name == nil {
		t.Fatal(document)
	}
	write(t, filepath.Join(dir, "out/hullmark.json"), []byte(document))
	writeTestProvenance(t, filepath.Join(dir, "out/hullmark"), document)
	script := ""
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(pages), -1) {
		script += block[1]
	}
	for _, block := range regexp.MustCompile("(?ms)^```console\n(\\$ bin/.*?)^```$").FindAllStringSubmatch(string(pages), -1) {
		script += strings.ReplaceAll(block[1], "$ bin/", "bin/")
	}
	script = strings.NewReplacer("fetch hullmark ", "fetch "+name[1]+" ", "registry.example", registryWithLogin(t, dir)).Replace(script)
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "DOCKER_CONFIG="+dir)
	out, err := cmd.CombinedOutput()
	wantExit(t, cmd.ProcessState.ExitCode(), 0, string(out), "published in", "is the signed disk, byte for byte",
		"out/fetched.spdx.json is the signed SBOM", "out/fetched.cdx.json is the signed CycloneDX SBOM",
		"of the signed disk, from commit 0123", "PCR 11 differs", "cosigned by 1 of 1 witnesses", "Signature Verified Successfully")
	for _, ending := range []string{".raw", ".dsse", ".spdx.json", ".cdx.json", ".provenance.dsse"} {
		want, err := os.ReadFile(filepath.Join(dir, "out/hullmark"+ending))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "out/again"+ending)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the registry gave another again%s: %v", ending, err)
		}
	}
	// hullmark (once more for two builders), its log and jq name the same digest.
	if id := fmt.Sprintf("%x", sha256.Sum256([]byte(document))); strings.Count(string(out), id) != 5 {
		t.Errorf("the document's digest %s is not named five times in\n%s", id, out)
	}
	if err != nil {
		t.Error(err)
	}
}

// writeTestProvenance writes a provenance of a document's disk as NAME.provenance.json.
func writeTestProvenance(t *testing.T, name, document string) {
	t.Helper()
	d, err := measurements.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	p, err := measurements.NewProvenance(measurements.BuildDefinition{
		Dependencies: []measurements.Resource{{Name: measurements.SourcesName, Digest: map[string]string{"gitCommit": "0123"}}},
	}, measurements.RunDetails{Builder: measurements.ProvenanceBuilder{ID: measurements.LocalBuilder}}, []string{"node.raw"}, []pcrs.Digest{d.Image.Disk})
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	write(t, name+lock.ProvenanceEnding, text)
}

// registryWithLogin serves a registry and returns its address. The login is in the Docker configuration in dir.
func registryWithLogin(t *testing.T, dir string) string {
	t.Helper()
	served := registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "someone" || password != "something" {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		served.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	login := base64.StdEncoding.EncodeToString([]byte("someone:something"))
	write(t, filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, login))
	return host
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
	code, output = hullmarkCLI(t, "fetch", "node", "--from", "oci://host", "--key", path("pub"))
	wantExit(t, code, exitUsage, output, "oci://HOST/NAME:TAG")
	code, output = hullmarkCLI(t, "publish", path("pub"), "--key", path("pub"), "--to", "https://host/")
	wantExit(t, code, exitUsage, output, "oci://HOST/NAME:TAG")
	code, output = hullmarkCLI(t, "publish", path("pub"), "--key", path("pub"), "--to", path("tree"))
	wantExit(t, code, exitFailed, output, "publish")
	if _, err := os.Stat(path("node.dsse")); err == nil {
		t.Error("a file was written")
	}
}
