package hullmark_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

const recordedBoot = "pcrs/testdata/ovmf-2025.02.log"

// TestLibraryPage compiles the program of docs/library.md and has it verify a quote that was recorded.
func TestLibraryPage(t *testing.T) {
	program := compileLibraryPage(t)
	nonce := sha256.Sum256([]byte("a nonce of the asker"))
	promised, another := releaseOf(t, func(*pcrs.Event) {}), releaseOf(t, func(e *pcrs.Event) {
		if e.Register == 9 && e.Type == pcrs.EvEventTag { // the command line
			e.Digests = pcrs.DigestsOf([]byte("init=/bin/sh"), pcrs.PredictedBanks()...)
		}
	})
	for name, c := range map[string]struct {
		document, key, log, nonce string
		code                      int
		want                      string
	}{
		"as promised":       {promised.document, promised.key, recordedBoot, hex.EncodeToString(nonce[:]), 0, "the machine booted node 20260102"},
		"another boot":      {another.document, another.key, recordedBoot, hex.EncodeToString(nonce[:]), 3, `; expected "LOADED_IMAGE::LoadOptions"`},
		"another publisher": {promised.document, another.key, recordedBoot, hex.EncodeToString(nonce[:]), 1, "signature"},
		"another nonce":     {promised.document, promised.key, recordedBoot, "00", 1, "an old one"},
		"another log": {
			promised.document, promised.key, "pcrs/testdata/ovmf-2025.02-secureboot.log", hex.EncodeToString(nonce[:]), 1, "not the quoted ones",
		},
	} {
		const recorded = "attest/verifier/testdata/"
		cmd := exec.CommandContext(t.Context(), program,
			c.document, c.key, recorded+"ak.pub", recorded+"quote.msg", recorded+"quote.sig", c.log, c.nonce)
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", name, code, c.code, c.want, out)
		}
	}
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
