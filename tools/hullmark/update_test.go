package main

import (
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

// What cannot be right is told before a node, or the API server, is asked: which verb, what is wrong with it, and what would be right.
func TestUpdateAndUpgradeRefuse(t *testing.T) {
	s := newSite(t)
	s.write(t, "torn.json", []byte(`{"schema":`))
	document, none := s.path("document.json"), s.path("none.json")
	node, api := " --node 127.0.0.1:1", " --server 127.0.0.1:1 --wait 0s"
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"update stage --from https://a" + node, exitUsage, "update stage: name the release's measurement document (see hullmark update stage --help)"},
		{"update stage " + document + " --from /srv/releases" + node, exitUsage, `update stage: --from: source "/srv/releases": want http://HOST/PATH, https://HOST/PATH or oci://HOST/NAME:TAG`},
		{"update try" + node, exitUsage, "update try: name the release's measurement document"},
		{"update try " + none + node, exitFailed, "update try: open "},
		{"update rollback " + s.path("torn.json") + node, exitFailed, "cut off"},
		{"update restart --node nowhere:port", exitUsage, "update restart: --node: \"nowhere:port\": want HOST:PORT"},
		{"update restart" + node, exitUnreachable, "update restart: node 127.0.0.1:1: not reached"},
		{"update status" + node, exitUnreachable, "not reached"},
		{"update status -o yaml" + node, exitUsage, "want text or json"},
		{"upgrade plan", exitUsage, "name either the documents of a release, or --restart"},
		{"upgrade plan --restart x " + document + api, exitUsage, "name either the documents of a release, or --restart"},
		{"upgrade plan " + document + api, exitUsage, "upgrade plan: --from: 0 sources: want 1 to 8 addresses where the release was published"},
		{"upgrade apply " + document + " --from /srv/releases" + api, exitUsage, `--from: source "/srv/releases"`},
		{"upgrade apply --restart x --from https://a" + api, exitUsage, "no sources"},
		{"upgrade plan " + document + " " + document + " --from https://a" + api, exitUsage, "is named twice"},
		{"upgrade plan --restart x --staging 0" + api, exitUsage, "staging: 0 nodes at a time, want 1 to 1000"},
		{"upgrade plan --restart x --pool a=0" + api, exitUsage, "pool a: 0 nodes at a time"},
		{"upgrade plan --restart x --drain-timeout 1ms" + api, exitUsage, "drain timeout: 1ms, want 1s to 24h0m0s"},
		{"upgrade status --follow -o json" + api, exitUsage, "--follow tells of changes as text"},
		{"upgrade status --follow" + api, exitUnreachable, "api-unreachable"},
		{"upgrade attend control-plane-1 --node 127.0.0.1:1 --yes" + api, exitUnreachable, "api-unreachable"},
		{"upgrade attend" + node, exitUsage, "upgrade attend: name the node"},
	} {
		code, output := hullmarkCLI(t, append(strings.Fields(test.args), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))...)
		wantExit(t, code, test.code, output, test.says)
	}
}

func TestSlotsArePrinted(t *testing.T) {
	var out strings.Builder
	failed := &hullmark.Condition{Code: "trial-failed", Title: "the \x1b[2J trial"}
	s := hullmark.UpdateStatus{Running: "a", Default: "a", A: hullmark.RootHash{1}, Phase: hullmark.UpdateFailed, Document: hullmark.DocumentID{2}, Failed: failed}
	if err := writeSlots(&out, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"slot a  01", "  runs, starts by itself\n", "slot b  nothing that could start\n", "update  failed of document 02", "trial-failed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") || strings.Contains(out.String(), " \n") {
		t.Errorf("an escape character, or space at a line's end:\n%q", out.String())
	}
}
