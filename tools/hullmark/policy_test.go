package main

import (
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements"
)

func TestPolicy(t *testing.T) {
	document, list, values := explainFixture(t)
	path := newSite(t).path
	policy := func(verb string, args ...string) (int, string) {
		t.Helper()
		return hullmarkCLI(t, append([]string{"policy", verb, "--cluster", path("cluster"), "--passphrase-file", path("passphrase")}, args...)...)
	}
	want := func(code int, verb string, args []string, contains ...string) string {
		t.Helper()
		got, output := policy(verb, args...)
		wantExit(t, got, code, output, contains...)
		return output
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := measurements.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := parsed.Digest()
	if err != nil {
		t.Fatal(err)
	}
	check := []string{document, "--pcrs", list}

	want(exitFailed, "show", nil, "no policy yet")
	want(exitDenied, "check", check, "does not accept this document")
	want(0, "add", []string{"--document", document, "--enforce", "7,2"}, "version 1: 1 documents")
	want(0, "check", check, "accepted: document "+digest.String())
	want(0, "check", append(check, "-o", "json"), `"accepted": true`, `"document": "`+digest.String())
	want(exitUsage, "add", []string{"--document", document, "--enforce", "1"}, "does not predict it")
	want(exitUsage, "add", nil, "name a --document")

	values[7] = values[12]
	write(t, list, pcrread(values))
	want(exitDenied, "check", check, "PCR 7: want")
	want(exitDenied, "check", append(check, "-o", "json"), `"accepted": false`, "PCR 7: want")
	want(0, "add", []string{"--document", document}, "version 2: 1 documents")
	want(0, "check", check)

	want(0, "add", []string{"--minimum-svn", "2"}, "from security version 2")
	want(exitDenied, "check", check, "its security version is 1, the policy wants at least 2")
	want(exitUsage, "add", []string{"--minimum-svn", "1"}, "never lowered")

	shown := want(0, "show", nil, digest.String())
	write(t, path("same"), []byte(shown))
	want(exitFailed, "sign", []string{path("same")}, "want a higher version")
	write(t, path("lower"), []byte(strings.Replace(strings.Replace(shown, `"version": 3`, `"version": 9`, 1), `"minimumSVN": 2`, `"minimumSVN": 1`, 1)))
	want(exitFailed, "sign", []string{path("lower")}, "no lower security version")
	write(t, path("higher"), []byte(strings.Replace(shown, `"version": 3`, `"version": 9`, 1)))
	want(0, "sign", []string{path("higher")}, "version 9")
	write(t, path("unknown"), []byte(strings.Replace(shown, `"version": 3`, `"versions": 10`, 1)))
	want(exitFailed, "sign", []string{path("unknown")}, "unknown field")

	want(exitFailed, "remove", []string{"--member", "nobody"}, "names no nobody")
	want(exitUsage, "remove", nil, "name a --document or a --member")
	want(0, "remove", []string{"--document", digest.String()}, "version 10: 0 documents")
	want(exitDenied, "check", check, "does not accept this document")
}
