package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/inspect/explain"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/pcrs"
)

// quotedMachine is a TPM that measured what a document predicts, for tpm2-tools in a folder.
type quotedMachine struct{ document, dir, tcti string }

func newQuotedMachine(t *testing.T) quotedMachine {
	t.Helper()
	file, _, _ := explainFixture(t)
	m := quotedMachine{document: file, dir: t.TempDir(), tcti: "swtpm:path=" + tpmtest.NewShared(t, func(*tpmtest.TPM) {})}
	document, err := readDocument(file)
	if err != nil {
		t.Fatal(err)
	}
	extend := []string{"tpm2_pcrextend"}
	for _, e := range document.Prediction().Log.Events {
		extend = append(extend, fmt.Sprintf("%d:sha256=%v", int(e.Register), e.Digests[pcrs.SHA256]))
	}
	m.tool(t, extend...)
	m.tool(t, "tpm2_createek", "-c", "ek.ctx", "-G", "ecc", "-u", "ek.pub")
	m.flush(t)
	m.key(t, "ecc", "ecdsa", "ak")
	return m
}

// tool runs one of tpm2-tools.
func (m quotedMachine) tool(t *testing.T, args ...string) string {
	t.Helper()
	program, err := exec.LookPath(args[0])
	if err != nil {
		t.Fatalf("%s is missing: apt-get install tpm2-tools swtpm swtpm-tools", args[0])
	}
	cmd := exec.Command(program, args[1:]...)
	cmd.Dir, cmd.Env = m.dir, append(os.Environ(), "TPM2TOOLS_TCTI="+m.tcti)
	var errors strings.Builder
	cmd.Stderr = &errors
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, errors.String())
	}
	return string(output)
}

// flush makes room: without a resource manager what was loaded stays.
func (m quotedMachine) flush(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"-t", "-l", "-s"} {
		m.tool(t, "tpm2_flushcontext", kind)
	}
}

// key makes an attestation key: NAME.ctx, NAME.pub as TPM2B_PUBLIC, and NAME.pem.
func (m quotedMachine) key(t *testing.T, algorithm, scheme, name string) {
	t.Helper()
	m.tool(t, "tpm2_createak", "-C", "ek.ctx", "-c", name+".ctx", "-G", algorithm, "-g", "sha256", "-s", scheme, "-u", name+".pub")
	m.flush(t)
	m.tool(t, "tpm2_readpublic", "-c", name+".ctx", "-f", "pem", "-o", name+".pem")
	m.flush(t)
}

// quote has the registers of a selection quoted by a key, and prints all of the bank's.
func (m quotedMachine) quote(t *testing.T, key, selection string) {
	t.Helper()
	m.tool(t, "tpm2_quote", "-c", key+".ctx", "-l", selection, "-q", "c0ffee", "-m", "quote", "-s", "signature")
	m.flush(t)
	write(t, m.path("registers"), []byte(m.tool(t, "tpm2_pcrread", "sha256:all+sha384:0,1")))
}

func (m quotedMachine) path(name string) string { return filepath.Join(m.dir, name) }

func (m quotedMachine) explain(t *testing.T, key string, args ...string) (int, string) {
	t.Helper()
	return hullmarkCLI(t, append([]string{
		"explain", m.document, "--pcrs", m.path("registers"), "--quote", m.path("quote"),
		"--signature", m.path("signature"), "--ak", m.path(key),
	}, args...)...)
}

func TestExplainQuote(t *testing.T) {
	m := newQuotedMachine(t)
	m.key(t, "rsa", "rsassa", "rsa")
	all := "sha256:0,1,2,3,4,5,6,7,8,9,11,12,13,14,15"
	for _, key := range []string{"ak", "rsa"} {
		m.quote(t, key, all)
		code, output := m.explain(t, key+".pub")
		wantExit(t, code, 0, output, "covers 15 of the registers", "c0ffee", "PCR 10", "the quote leaves it out")
		if strings.Contains(output, "In PEM") {
			t.Error("a TPM2B_PUBLIC is taken for PEM")
		}
		code, output = m.explain(t, key+".pem")
		wantExit(t, code, 0, output, "In PEM a key does not say")
	}
	page := filepath.Join(t.TempDir(), "page.html")
	m.quote(t, "ak", "sha384:0,1+"+all)
	code, output := m.explain(t, "ak.pub", "-o", "json", "--html", page)
	wantExit(t, code, 0, output)
	var e explain.Explanation
	if err := json.Unmarshal([]byte(output), &e); err != nil {
		t.Fatal(err)
	}
	if !e.Equal || e.Quote == nil || !e.Quote.KeyRestricted || e.Quote.Nonce.String() != "c0ffee" || len(e.Unproven()) > 0 || proven(e, 10) || !proven(e, 4) {
		t.Errorf("got %+v", e)
	}
	content, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(content), "quoted and signed") || strings.Count(string(content), "not in the quote") != 1 {
		t.Errorf("the page does not say what the quote covers (%v)", err)
	}
}

// proven reports whether a register is shown as covered by the quote.
func proven(e explain.Explanation, register pcrs.Register) bool {
	return slices.ContainsFunc(e.Registers, func(r explain.Register) bool { return r.Register == register && r.Proven })
}

// A register that the quote leaves out may hold anything: to find it equal is not enough.
func TestExplainQuoteOfFewerRegisters(t *testing.T) {
	m := newQuotedMachine(t)
	m.quote(t, "ak", "sha256:0,1,2,3")
	page := filepath.Join(t.TempDir(), "page.html")
	code, output := m.explain(t, "ak.pub", "--html", page)
	wantExit(t, code, exitMismatch, output, "does not cover PCR 4", "not proven")
	content, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(content), "not every one is proven") {
		t.Errorf("the page does not say that registers are not proven (%v)", err)
	}
	m.quote(t, "ak", "sha384:0,1")
	code, output = m.explain(t, "ak.pub")
	wantExit(t, code, exitFailed, output, "covers no register of bank sha256")
}

func TestExplainQuoteRefuses(t *testing.T) {
	m := newQuotedMachine(t)
	m.key(t, "ecc", "ecdsa", "other")
	m.quote(t, "ak", "sha256:0,1,2,3,4")
	code, output := m.explain(t, "other.pub")
	wantExit(t, code, exitFailed, output, m.path("quote"), "did not sign")
	code, output = m.explain(t, "registers")
	wantExit(t, code, exitFailed, output, m.path("registers"), "neither PEM nor")
	code, output = m.explain(t, "ak.pub", "--signature", m.path("ak.pub"))
	wantExit(t, code, exitFailed, output, "did not sign")
	m.tool(t, "tpm2_pcrextend", "4:sha256="+strings.Repeat("00", 32))
	write(t, m.path("registers"), []byte(m.tool(t, "tpm2_pcrread", "sha256:all")))
	code, output = m.explain(t, "ak.pub")
	wantExit(t, code, exitFailed, output, "not the quoted ones")
	write(t, m.path("registers"), []byte(m.tool(t, "tpm2_pcrread", "sha256:0,1")))
	code, output = m.explain(t, "ak.pub")
	wantExit(t, code, exitFailed, output, "PCR 2", "not given")
}

// A quote's parts go together, and with the registers that it is of.
func TestExplainQuoteUsage(t *testing.T) {
	all := []string{"--pcrs=a", "--quote=b", "--signature=c", "--ak=d"}
	for i, left := range all {
		args := append([]string{"explain", "document", "--log=e"}, slices.Delete(slices.Clone(all), i, i+1)...)
		if code, output := hullmarkCLI(t, args...); code != exitUsage || !strings.Contains(output, "a quote takes") {
			t.Errorf("without %s: exit %d\n%s", left, code, output)
		}
	}
}
