package main

import (
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/recorded"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/romtest"
	"github.com/hullmark/hullmark/internal/sevtest"
	"github.com/hullmark/hullmark/internal/tdxtest"
)

// put writes a file into a folder of the test's own.
func put(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLaunch(t *testing.T) {
	firmware := put(t, "firmware.fd", romtest.Good().Image())
	kernel := put(t, "kernel", []byte("kernel"))
	one := []string{"launch", "--firmware", firmware, "--platform", "snp", "--cpu", "EPYC-v4", "-o", "json"}
	digest := func(more ...string) string {
		code, output := hullmarkCLI(t, append(one, more...)...)
		wantExit(t, code, 0, output, "launch-digest")
		var values []launchValue
		if err := json.Unmarshal([]byte(output), &values); err != nil || len(values) != 1 || len(values[0].Parts) < 3 {
			t.Fatalf("%v: %s", err, output)
		}
		return values[0].Value.String()
	}
	two := digest("--vcpus", "2")
	if two == digest() || two == digest("--vcpus", "2", "--kernel", kernel, "--cmdline", "quiet") || two == digest("--vcpus", "2", "--kvm-before-6.10") {
		t.Error("an input does not count")
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{append(one[:len(one)-2:len(one)-2], "--measured", two), 0, "the number of processors: 2"},
		{[]string{"launch", "--firmware", firmware, "--platform", "tdx", "--memory", "2048"}, 0, "list of 2048 MiB"},
		{[]string{"launch", "--firmware", firmware, "--platform", "snp", "--vmm", "gce", "--cpu", "Genoa"}, 0, "launch digest"},
		{[]string{"launch", "--firmware", firmware, "--platform", "snp", "--vmm", "gce", "--cpu", "EPYC"}, exitUsage, "Milan or Genoa"},
		{[]string{"launch", "--firmware", firmware, "--platform", "snp"}, exitUsage, "--cpu"},
		{[]string{"launch", "--firmware", firmware, "--platform", "sgx"}, exitUsage, "snp or tdx"},
		{[]string{"launch", "--firmware", firmware, "--platform", "tdx", "--vcpus", "2"}, exitUsage, "measures nothing of it"},
		{append(one, "--initrd", kernel), exitUsage, "--kernel"},
		{append(one, "--measured", "12"), exitUsage, "96 hexadecimal"},
		{[]string{"launch", "--firmware", kernel, "--platform", "tdx"}, exitFailed, "whole pages"},
	} {
		code, output := hullmarkCLI(t, c.args...)
		wantExit(t, code, c.code, output, c.want)
	}
}

func TestEvidence(t *testing.T) {
	amd := sevtest.New(t, snp.Genoa)
	chip := amd.Chip(sevtest.TCB{10, 2, 0, 0, 0, 0, 27, 87}, "")
	guest := sevtest.Good(snp.Genoa)
	report, key, ca := put(t, "report.bin", chip.Report(guest)), put(t, "vcek.der", chip.Certificate), put(t, "ca.pem", amd.Bundle())
	at := sevtest.Now.Format("2006-01-02T15:04:05Z")
	verify := []string{"evidence", "verify", report, key, "--platform", "snp", "--at", at}
	code, output := hullmarkCLI(t, append(verify, "--ca", ca, "-o", "json")...)
	wantExit(t, code, 0, output, `"verified": true`)
	var r recorded.Result
	if err := json.Unmarshal([]byte(output), &r); err != nil || r.Platform != hullmark.PlatformSNP || r.Claims.Product != snp.Genoa {
		t.Errorf("%+v, %v", r, err)
	}
	demands := put(t, "demands.json", []byte(`{"measurements":["`+strings.Repeat("00", 48)+`"]}`))
	guest.Policy |= 1 << 19
	debug := put(t, "debug.bin", chip.Report(guest))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{append(verify, "--ca", ca), 0, "not checked: that the evidence is fresh"},
		{[]string{"evidence", "show", report, "--platform", "snp"}, 0, "launch digest"},
		{verify, exitDenied, "evidence-chain"},
		{append(verify, "--demands", demands), exitDenied, "refused"},
		{[]string{"evidence", "verify", debug, key, "--platform", "snp", "--at", at, "--ca", ca}, exitDenied, "debug-allowed"},
		{append(verify[:len(verify)-1:len(verify)-1], "tomorrow"), exitUsage, "--at"},
		{[]string{"evidence", "show", ca, "--platform", "snp"}, exitFailed, "no SEV-SNP report"},
		{[]string{"evidence", "show", demands, "--platform", "snp"}, exitFailed, "no evidence that is known"},
		{[]string{"evidence", "show", "--platform", "snp"}, exitUsage, "name the files"},
	} {
		code, output := hullmarkCLI(t, c.args...)
		wantExit(t, code, c.code, output, c.want)
	}
}

func TestCollateral(t *testing.T) {
	intel := tdxtest.New(t, false)
	a := intel.Answers()
	text, err := json.Marshal(tdx.Collateral{TCBInfo: a.TCBInfo, QEIdentity: a.QEIdentity, TCBInfoChain: a.Chain, QEIdentityChain: a.Chain, PCKCRL: a.PCKCRL, RootCRL: a.RootCRL})
	if err != nil {
		t.Fatal(err)
	}
	file := put(t, "tdx.json", text)
	ca := put(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: intel.Root()}))
	out := filepath.Join(t.TempDir(), "out")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"collateral", "show", file, "--ca", ca}, 0, "evaluation  20"},
		{[]string{"collateral", "show", file, "--ca", ca, "-o", "json"}, 0, `"fmspc": "b0c06f000001"`},
		{[]string{"collateral", "show", file}, exitFailed, "not Intel's root"},
		{[]string{"collateral", "show", ca}, exitFailed, "ca.pem"},
		{[]string{"collateral", "fetch", "--out", out}, exitUsage, "one of --fmspc and --product"},
		{[]string{"collateral", "fetch", "--fmspc", "xx", "--out", out}, exitUsage, "--fmspc"},
		{[]string{"collateral", "fetch", "--product", "Genoa", "--from", "http://127.0.0.1:1", "--out", out}, exitFailed, "127.0.0.1:1"},
	} {
		code, output := hullmarkCLI(t, c.args...)
		wantExit(t, code, c.code, output, c.want)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a file was written without an answer")
	}
}

func TestLearnFromALog(t *testing.T) {
	const log = "../../pcrs/testdata/ovmf-2025.02.log"
	f := newMeasureFixture(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"learn", "--log", log}, 0, "what the machine claims"},
		{[]string{"measure", f.image, "--log", log}, 0, "(learned)"},
		{[]string{"measure", f.image, "--log", log, "--vars", f.vars}, exitUsage, "one of them"},
		{[]string{"learn"}, exitUsage, "--machine"},
		{[]string{"learn", "--log", f.image}, exitFailed, "too long"},
	} {
		code, output := hullmarkCLI(t, c.args...)
		wantExit(t, code, c.code, output, c.want)
	}
}
