package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/inspect/explain"
	"github.com/hullmark/hullmark/internal/imagetest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// measureFixture is a small disk, with the files that a prediction needs beside it.
type measureFixture struct{ image, firmware, vars, config string }

func newMeasureFixture(t *testing.T) measureFixture {
	t.Helper()
	dir := t.TempDir()
	f := measureFixture{
		image: filepath.Join(dir, "node.raw"), firmware: imagetest.Firmware(t),
		vars: filepath.Join(dir, "vars.fd"), config: filepath.Join(dir, "node.json"),
	}
	write(t, f.image, smallDisk(t))
	write(t, f.vars, imagetest.Vars(t))
	write(t, f.config, fmt.Appendf(nil, `{"version":1,"clusterRoot":"%064x","stateDisk":{"serial":"state"}}`, 1))
	return f
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func smallDisk(t *testing.T) []byte {
	t.Helper()
	return imagetest.Small(t, "257")
}

// hullmarkMeasure runs the verb and returns what it printed.
func hullmarkMeasure(args ...string) (string, error) {
	cmd := newMeasureCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.Execute()
	return out.String(), err
}

func TestMeasurePrintsTheDocument(t *testing.T) {
	f := newMeasureFixture(t)
	out, err := hullmarkMeasure(f.image, "--firmware", f.firmware, "--vars", f.vars, "--lock", f.vars, "--sbom", f.image, "--svn", "7", "--release", "spring", "--builder", "a.example/b@v1.0.0", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid([]byte(out)) {
		t.Fatal("not JSON")
	}
	d, err := measurements.Parse([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(f.image)
	if err != nil {
		t.Fatal(err)
	}
	if d.Image.ID != "node" || d.Image.Version != "20260102" || d.SVN != 7 || len(d.Lock) != sha256.Size {
		t.Errorf("got %+v", d.Image)
	}
	if d.Name != "spring" || d.Builder != "a.example/b@v1.0.0" || !d.SBOM.Equal(d.Image.Disk) {
		t.Errorf("got %+v", d.Release)
	}
	if d.Image.Disk.String() != fmt.Sprintf("%x", sha256.Sum256(raw)) {
		t.Errorf("disk digest %v", d.Image.Disk)
	}
	if _, ok := d.Values(pcrs.SHA256)[8]; ok {
		t.Error("PCR 8 is in a document for all nodes")
	}
}

// What a checkout is made of, and whether Go could see it, is not in a document.
func TestABuilderIsNamedByItsRelease(t *testing.T) {
	if got := thisBuilder(); got != "github.com/hullmark/hullmark@devel" {
		t.Errorf("got %s", got)
	}
	for version, want := range map[string]bool{
		"v1.2.3": true, "(devel)": false, "v0.0.0-20261121075742-111178911789": false, "v1.2.3+dirty": false, "v1.2.4-0.20261121075742-111178911789": false, "": false,
	} {
		if build.IsRelease(version) != want {
			t.Errorf("%s is a release: %v", version, !want)
		}
	}
}

func TestMeasureWithNodeConfig(t *testing.T) {
	f := newMeasureFixture(t)
	out, err := hullmarkMeasure(f.image, "--firmware", f.firmware, "--vars", f.vars, "--config", f.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PCR 8 ", "(node)", "PCR 10  not predicted", "section .cmdline", "systemd-stub 257"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// A stub that was never booted has to be accepted by name.
func TestMeasureUnprovenStub(t *testing.T) {
	f := newMeasureFixture(t)
	write(t, f.image, imagetest.Small(t, "255"))
	args := []string{f.image, "--firmware", f.firmware, "--vars", f.vars}
	if _, err := hullmarkMeasure(args...); err == nil || !strings.Contains(err.Error(), "--unproven-stub") {
		t.Errorf("without the flag: %v", err)
	}
	if out, err := hullmarkMeasure(append(args, "--unproven-stub")...); err != nil || !strings.Contains(out, "systemd-stub 255") {
		t.Errorf("with the flag: %v: %s", err, out)
	}
}

func TestMeasureRefuses(t *testing.T) {
	f := newMeasureFixture(t)
	raw, err := os.ReadFile(f.image)
	if err != nil {
		t.Fatal(err)
	}
	damaged := f.image + ".damaged"
	changed := bytes.Clone(raw)
	changed[bytes.Index(changed, []byte("rootroot"))] ^= 1
	write(t, damaged, changed)
	truncated := f.image + ".truncated"
	write(t, truncated, raw[:len(raw)/2])
	write(t, f.config+".odd", []byte(`{"version":1,"more":1}`))
	for name, c := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no image":       {[]string{"--firmware", f.firmware, "--vars", f.vars}, "name one image", exitUsage},
		"no firmware":    {[]string{f.image, "--vars", f.vars}, "machine file", exitUsage},
		"output":         {[]string{f.image, "--firmware", f.firmware, "--vars", f.vars, "-o", "xml"}, "xml", exitUsage},
		"swapped files":  {[]string{f.image, "--firmware", f.vars, "--vars", f.firmware}, "not an OVMF code file", exitFailed},
		"damaged root":   {[]string{damaged, "--firmware", f.firmware, "--vars", f.vars}, "root", exitFailed},
		"truncated":      {[]string{truncated, "--firmware", f.firmware, "--vars", f.vars}, "", exitFailed},
		"odd config":     {[]string{f.image, "--firmware", f.firmware, "--vars", f.vars, "--config", f.config + ".odd"}, "unknown field", exitFailed},
		"over the image": {[]string{f.image, "--firmware", f.firmware, "--vars", f.vars, "--out", f.image}, "is what is read", exitUsage},
		"image is a ROM": {[]string{f.image, "--firmware", f.firmware, "--vars", f.vars, "--rom", f.vars}, "ROM", exitFailed},
	} {
		_, err := hullmarkMeasure(c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("%s: got %v (exit %d), want an error with %q and exit %d", name, err, exitCode(err), c.want, c.code)
		}
	}
}

// TestTablesOfConfidentialMachines: a register that is no TPM's has its value in the table, and its difference in the list.
func TestTablesOfConfidentialMachines(t *testing.T) {
	p := func(content string) pcrs.Prediction {
		source := pcrs.Source{Kind: pcrs.FromLaunch, Name: "the firmware"}
		e := pcrs.Event{Register: pcrs.LaunchDigest, Type: pcrs.EvLaunch, Digests: pcrs.DigestsOf([]byte(content), pcrs.SHA384), Source: &source, Origin: pcrs.Derived}
		return pcrs.Prediction{Log: pcrs.Log{Events: []pcrs.Event{e}}, Registers: []pcrs.Register{pcrs.RTMR(1), pcrs.LaunchDigest}}
	}
	digest := make(pcrs.Digest, sha256.Size)
	image := measurements.Image{ID: "node", Version: "1", Disk: digest, RootHash: digest, UKI: digest, Stub: "257.13"}
	d, err := measurements.New(image, measurements.Release{SVN: 1}, pcrs.Machine{}, p("firmware"))
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := writeDocumentTable(&table, d); err != nil {
		t.Fatal(err)
	}
	value := pcrs.DigestsOf([]byte("firmware"), pcrs.SHA384)[pcrs.SHA384].String()
	if !strings.Contains(table.String(), value) || !strings.Contains(table.String(), strings.Repeat("0", 96)) {
		t.Errorf("the table has no launch digest, or no empty RTMR:\n%s", table.String())
	}
	measured := d.Values(pcrs.SHA256)
	measured[pcrs.LaunchDigest] = pcrs.DigestsOf([]byte("other"), pcrs.SHA384)[pcrs.SHA384]
	found, err := explain.New(d, pcrs.SHA256, explain.Boot{Measured: measured})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(found.Registers, func(r explain.Register) bool { return r.Register == pcrs.LaunchDigest }); found.Equal || i < 0 || found.Registers[i].Result == "equal" {
		t.Errorf("another launch digest: %+v", found)
	}
}
