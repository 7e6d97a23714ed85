package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/tpmtest"
)

// googleCertificates is where a public module has Google's CAs and endorsement keys that they certified.
func googleCertificates(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/google/go-tpm-tools@v0.4.10").Output()
	var m struct{ Dir string }
	if err != nil || json.Unmarshal(out, &m) != nil || m.Dir == "" {
		t.Fatalf("%v: %s", err, out)
	}
	return m.Dir
}

func TestEKVerbs(t *testing.T) {
	google := googleCertificates(t)
	ek := filepath.Join(google, "internal/test/certificates/uca_tpm_ecc_enc_cert.pem")
	ca := func(name string) string { return filepath.Join(google, "server/ca-certs", name) }
	key, err := os.ReadFile(ek)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := os.ReadFile(ca("tpm_ek_intermediate_3.crt"))
	if err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(t.TempDir(), "torn.pem")
	if err := os.WriteFile(torn, append(key, signer[:len(signer)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		code  int
		args  []string
		words []string
	}{
		"makers":        {0, []string{"makers"}, []string{"Nuvoton TPM Root CA 2110", "4aebe77a51ed29959a7f9f5e07a24a558dee8167f3985d724995a541c258dfda", "pki.infineon.com", "?"}},
		"as JSON":       {0, []string{"makers", "-o", "json"}, []string{`"maker": "AMD"`, `"from": 2014`}},
		"no file":       {exitUsage, []string{"show"}, []string{"a file of certificates"}},
		"a torn file":   {exitFailed, []string{"show", torn}, []string{"torn.pem"}},
		"an EK":         {0, []string{"show", ek}, []string{"Google vTPM, firmware id:20160511", "https://pki.goog/cloud_integrity/tpm_ek_intermediate_3.crt", "nobody yet"}},
		"with its CA":   {0, []string{"show", ek, "--ca", ca("tpm_ek_intermediate_3.crt")}, []string{"K:1, 3:nbvaGZFLcuc:0:18 of Google, which signed it itself (--ek-ca)"}},
		"with another":  {0, []string{"show", ek, "--ca", ca("tpm_ek_intermediate_2.crt"), "--ca", ca("tpm_ek_root_1.cer")}, []string{"nobody yet"}},
		"a known CA":    {0, []string{"show", ca("tpm_ek_root_1.cer")}, []string{"known      as Google's", "9bd5285f8fb18502a7947e621ffd470266f49fcd3b73e19a190f690ad32a7caf"}},
		"an AK's":       {0, []string{"show", filepath.Join(google, "internal/test/certificates/uca_tpm_ecc_sign_cert.pem"), "--ca", ca("tpm_ek_intermediate_3.crt")}, []string{"nobody: its certificate is for a key that neither decrypts"}},
		"a missing one": {exitFailed, []string{"show", ek, "--ca", "missing"}, []string{"--ca"}},
	} {
		code, output := hullmarkCLI(t, append([]string{"ek"}, c.args...)...)
		if code != c.code {
			t.Errorf("%s: exit code %d: %s", name, code, output)
		}
		for _, words := range c.words {
			if !strings.Contains(output, words) {
				t.Errorf("%s: %q is not said in %s", name, words, output)
			}
		}
	}
}

// A TPM is asked for all of its keys; a node, which waits for its operator, shows and proves one, and is none the worse for it.
func TestNodeEK(t *testing.T) {
	tpm := tpmtest.NewCertified(t)
	keys, err := listEKs(tpm)
	if err != nil {
		t.Fatal(err)
	}
	atHand, err := readCertificates("--ca", []string{tpm.CA})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeEKs(&out, keys, atHand); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"rsa-2048, by which the machine is known", "ecc-p384-high", keys[0].id.String(), keys[1].id.String(), "which signed it itself (--ek-ca), and is not known"} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("%q is not said in %s", words, out.String())
		}
	}

	s := newSite(t)
	ask := func(args ...string) (int, string) { return hullmarkCLI(t, append([]string{"node", "ek"}, args...)...) }
	reach := []string{"--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--node", s.address}
	for range 2 {
		code, output := ask(reach...)
		wantExit(t, code, 0, output, "proved to hold", s.node.ID.String(), "shows no certificate")
	}
	code, output := s.init(t)
	wantExit(t, code, 0, output)
	for _, wrong := range [][]string{nil, {"--tpm", "x", "--node", s.address}, {"--node", s.address}, reach[:4], {"--tpm", "x", "--cluster", "y"}} {
		code, output := ask(wrong...)
		wantExit(t, code, exitUsage, output, "want --tpm, or --node with --cluster")
	}
	code, output = ask("--tpm", s.path("no-device"))
	wantExit(t, code, exitFailed, output, "no-device")
}
