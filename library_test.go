package hullmark_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

const recordedBoot = "pcrs/testdata/ovmf-2025.02.log"

// TestLibraryPage compiles the program of docs/library.md and has it verify a quote that was recorded.
func TestLibraryPage(t *testing.T) {
	program := compileLibraryPage(t)
	fresh := sha256.Sum256([]byte("a nonce of the asker"))
	node, nonce := quoteOf(t, fresh), hex.EncodeToString(fresh[:])
	promised, another := releaseOf(t, func(*pcrs.Event) {}), releaseOf(t, func(e *pcrs.Event) {
		if e.Register == 9 && e.Type == pcrs.EvEventTag { // the command line
			e.Digests = pcrs.DigestsOf([]byte("init=/bin/sh"), pcrs.PredictedBanks()...)
		}
	})
	with := func(release release, change func(*quoted)) []string {
		q := node
		change(&q)
		return []string{release.document, release.key, q.key, q.message, q.signature, q.registers, q.log, nonce}
	}
	same := func(*quoted) {}
	stale := with(promised, same)
	stale[len(stale)-1] = "00"
	for name, c := range map[string]struct {
		arguments []string
		code      int
		want      string
	}{
		"as promised":         {with(promised, same), 0, "the machine booted node 20260102"},
		"another boot":        {with(another, same), 3, `; expected "LOADED_IMAGE::LoadOptions"`},
		"another publisher":   {with(release{promised.document, another.key}, same), 1, "signature"},
		"another nonce":       {stale, 1, "an old one"},
		"another machine's":   {with(promised, func(q *quoted) { q.key = quoteOf(t, fresh).key }), 1, "signature"},
		"registers made up":   {with(promised, func(q *quoted) { q.registers = listOf(t, attest.Registers{}) }), 1, "not the quoted ones"},
		"a log that is empty": {with(another, func(q *quoted) { q.log = fileOf(t, "log", nil) }), 1, "log"},
	} {
		out, err := exec.CommandContext(t.Context(), program, c.arguments...).CombinedOutput()
		exit := (*exec.ExitError)(nil)
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code := 0
		if exit != nil {
			code = exit.ExitCode()
		}
		if code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", name, code, c.code, c.want, out)
		}
	}
}

// quoted are the files of a node's quote.
type quoted struct{ key, message, signature, registers, log string }

// quoteOf makes a TPM that recorded the boot, and then its configuration and the opening of its state disk, and has it quote.
func quoteOf(t *testing.T, nonce attest.Binding) quoted {
	t.Helper()
	raw, err := os.ReadFile(recordedBoot)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := pcrs.ParseLog(raw)
	if err != nil {
		t.Fatal(err)
	}
	tpm := tpmtest.New(t)
	tpm.Replay(t, boot)
	tpm.Extend(t, attest.ConfigRegister, []byte("its configuration"))
	tpm.Extend(t, attest.FuseRegister, []byte("its disk is open"))
	p, err := prover.Open(tpm, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	evidence, err := p.Prove(nonce)
	if err != nil {
		t.Fatal(err)
	}
	ak := p.Identity().AKPublic
	return quoted{
		key:       fileOf(t, "ak.pub", append(binary.BigEndian.AppendUint16(nil, uint16(len(ak))), ak...)),
		message:   fileOf(t, "quote.msg", evidence.Quoted),
		signature: fileOf(t, "quote.sig", evidence.Signature),
		registers: listOf(t, evidence.Registers),
		log:       recordedBoot,
	}
}

// listOf writes registers as tpm2_pcrread does.
func listOf(t *testing.T, registers attest.Registers) string {
	t.Helper()
	text := "sha256:\n"
	for _, pcr := range attest.Quoted() {
		text += fmt.Sprintf("  %d : 0x%X\n", pcr, registers[pcr])
	}
	return fileOf(t, "registers", []byte(text))
}

var goFence = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// compileLibraryPage compiles the page's only block of Go.
func compileLibraryPage(t *testing.T) (program string) {
	t.Helper()
	page, err := os.ReadFile("docs/library.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := goFence.FindAllSubmatch(page, -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/library.md has %d programs, want one", len(blocks))
	}
	source := filepath.Join(t.TempDir(), "verifier.go")
	if err := os.WriteFile(source, blocks[0][1], 0o644); err != nil {
		t.Fatal(err)
	}
	program = strings.TrimSuffix(source, ".go")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("the program of docs/library.md: %v\n%s", err, out)
	}
	return program
}

// release is a signed document and its publisher's key, as files.
type release struct{ document, key string }

// releaseOf promises what the recorded boot measured, but for what change does to its events.
func releaseOf(t *testing.T, change func(*pcrs.Event)) release {
	t.Helper()
	digest := make(pcrs.Digest, sha256.Size)
	image := measurements.Image{ID: "node", Version: "20260102", Disk: digest, RootHash: digest, UKI: digest, Stub: "257.13"}
	document, err := measurements.New(image, measurements.Release{SVN: 1}, pcrs.Machine{}, promise(t, change))
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := measurements.Sign(private, document)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return release{
		document: fileOf(t, "release.dsse", signed),
		key:      fileOf(t, "release.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
	}
}

// promise is a prediction with the events of the recorded boot.
func promise(t *testing.T, change func(*pcrs.Event)) pcrs.Prediction {
	t.Helper()
	raw, err := os.ReadFile(recordedBoot)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := pcrs.ParseLog(raw, pcrs.PredictedBanks()...)
	if err != nil {
		t.Fatal(err)
	}
	p := pcrs.Prediction{Registers: []pcrs.Register{2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15}}
	for _, r := range p.Registers {
		for _, e := range boot.Of(r) {
			if e.Type == pcrs.EvNoAction {
				continue
			}
			source := e.From()
			e.Source, e.Origin = &source, pcrs.Derived
			change(&e)
			p.Log.Events = append(p.Log.Events, e)
		}
	}
	return p
}

func fileOf(t *testing.T, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}
