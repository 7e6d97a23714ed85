package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/inspect/explain"
	"github.com/hullmark/hullmark/internal/imagetest"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// recordedMachine is a machine whose firmware we have no file of: the log of a boot, of some system.
type recordedMachine struct {
	// file is its log, program what firmware started there.
	file, program string
	// open are registers that stay open.
	open []pcrs.Register
}

// recordedMachines are real firmware of Google's and of a server of Dell's, and OVMF without its file.
func recordedMachines(t *testing.T) []recordedMachine {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/google/go-eventlog").Output()
	if err != nil {
		t.Fatal(err)
	}
	published := filepath.Join(strings.TrimSpace(string(out)), "testdata", "eventlogs", "tpm")
	return []recordedMachine{
		{file: "../../pcrs/testdata/ovmf-2025.02.log", program: `\EFI\BOOT\BOOTX64.EFI`},
		{file: filepath.Join(published, "cs251200tpm"), program: `\EFI\BOOT\BOOTX64.EFI`},
		{file: filepath.Join(published, "gdc-host.bin"), program: `\EFI\ubuntu\shimx64.efi`, open: []pcrs.Register{1}},
	}
}

// boot is a boot on a machine: its events, and where PCR 0 began.
type boot struct {
	pcrs.Log
	bank pcrs.Bank
}

// measured are the registers after the boot, with what the kernel adds.
func (b boot) measured(t *testing.T) pcrs.Values {
	t.Helper()
	values, err := b.Replay(b.bank)
	if err != nil {
		t.Fatal(err)
	}
	of256, err := b.Replay(pcrs.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	aggregate, err := pcrs.BootAggregate(of256)
	if err != nil {
		t.Fatal(err)
	}
	ima, err := pcrs.Log{Events: []pcrs.Event{aggregate}}.Replay(b.bank)
	if err != nil {
		t.Fatal(err)
	}
	values[10] = ima[10]
	return values
}

// nextBoot is what the machine measures when it boots an image, which own events are of (imageEvents): up to the program what its log
// has, then these.
func (m recordedMachine) nextBoot(t *testing.T, own []pcrs.Event) boot {
	t.Helper()
	log := parsedLog(t, m.file)
	from := slices.IndexFunc(log.Events, func(e pcrs.Event) bool { return strings.Contains(e.What(), strings.ReplaceAll(m.program, `\`, `\\`)) })
	if from < 0 {
		t.Fatalf("%s: no program %s", m.file, m.program)
	}
	firmware := slices.DeleteFunc(slices.Clone(log.Events[:from]), func(e pcrs.Event) bool { return e.Type == pcrs.EvGPT })
	b := boot{Log: pcrs.Log{Format: log.Format, Banks: log.Banks, Locality: log.Locality}, bank: pcrs.SHA256}
	for _, e := range append(firmware, own...) {
		digests := pcrs.Digests{}
		for _, bank := range log.Banks {
			if digests[bank] = e.Digests[bank]; digests[bank] == nil && e.Type != pcrs.EvNoAction {
				digests[bank] = make(pcrs.Digest, bank.Size()) // SHA-1, which nobody judges
			}
		}
		e.Digests = digests
		b.Events = append(b.Events, e)
	}
	return b
}

// imageEvents are those of the boot of a disk's image that follow from the image, as another machine measures them, whose firmware is known.
func imageEvents(t *testing.T, disk string) (events []pcrs.Event) {
	t.Helper()
	vars := filepath.Join(t.TempDir(), "vars.fd")
	write(t, vars, imagetest.Vars(t))
	known, err := measureOptions{firmware: imagetest.Firmware(t), vars: vars}.openBoot()
	if err != nil {
		t.Fatal(err)
	}
	opened, _ := openImage(t, disk)
	known.UKI, known.Table = opened.UKI, opened.Table
	p, err := pcrs.Predict(known)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range p.Log.Events {
		leaving := e.Type == pcrs.EvEFIAction && e.Register == 5
		if e.Type == pcrs.EvBootServicesApplication || e.Type == pcrs.EvGPT || leaving || e.Register >= 9 {
			events = append(events, e)
		}
	}
	return events
}

func openImage(t *testing.T, disk string) (*image.Disk, measurements.Image) {
	t.Helper()
	raw, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	opened, described, err := inspect.Open(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return opened, described
}

func parsedLog(t *testing.T, file string) pcrs.Log {
	t.Helper()
	log, err := readTPMLog(file)
	if err != nil {
		t.Fatal(err)
	}
	return log.Log
}

// another is an image beside Small's, whose command line and release can be chosen.
func another(t *testing.T, cmdline, version string) string {
	t.Helper()
	stub, file := imagetest.Stub(t, "257"), filepath.Join(t.TempDir(), "second.raw")
	root := bytes.Repeat([]byte("second"), 64<<10)
	write(t, file, imagetest.Disk(t, image.Parts{
		Stub: stub, Kernel: stub, Initrd: []byte("another initrd"), Cmdline: cmdline,
		OSRelease: []byte("ID=test\nIMAGE_ID=\"node\"\nIMAGE_VERSION=" + version + "\n"),
		Root:      bytes.NewReader(root), RootSize: int64(len(root)), Time: time.Unix(1767225600, 0),
	}))
	return file
}

// measureByLog makes the document of an image on a recorded machine.
func measureByLog(t *testing.T, disk, log string, more ...string) measurements.Document {
	t.Helper()
	out, err := hullmarkMeasure(append([]string{disk, "--log", log, "-o", "json"}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	document, err := measurements.Parse([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// enforcing is a policy that accepts the document, with all that it may enforce of it.
func enforcing(t *testing.T, document measurements.Document) measurements.Policy {
	t.Helper()
	id, err := document.Digest()
	if err != nil {
		t.Fatal(err)
	}
	accepted := measurements.Accepted{Document: id}
	for _, r := range measurements.Enforceable() {
		if _, ok := document.Values(pcrs.SHA256)[r]; ok {
			accepted.Enforce = append(accepted.Enforce, r)
		}
	}
	return measurements.Policy{Version: 1, Documents: []measurements.Accepted{accepted}}
}

// explained is what hullmark explain prints of a boot.
func explained(t *testing.T, document measurements.Document, b boot) string {
	t.Helper()
	e, err := explain.New(document, b.bank, explain.Boot{Measured: b.measured(t), Log: &b.Log})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := e.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// eventOf is an event of some data, in all banks.
func eventOf(r pcrs.Register, kind pcrs.EventType, data string) pcrs.Event {
	return pcrs.Event{Register: r, Type: kind, Data: []byte(data), Digests: pcrs.DigestsOf([]byte(data), pcrs.SHA1, pcrs.SHA256, pcrs.SHA384, pcrs.SHA512)}
}

// wide is a text in UTF-16, as the stub logs it.
func wide(text string) string { return string(efi.UTF16(text)) + "\x00\x00" }

// replaced gives the first event of a register and a type another content.
func replaced(r pcrs.Register, kind pcrs.EventType) func(*boot) {
	return func(b *boot) {
		at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Register == r && e.Type == kind })
		data := append(slices.Clone(b.Events[at].Data), "changed"...)
		b.Events[at].Data, b.Events[at].Digests = data, pcrs.DigestsOf(data, b.Banks...)
	}
}

// enrolled adds an entry to a variable of Secure Boot.
func enrolled(name string) func(*boot) {
	return func(b *boot) {
		at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Register == 7 && e.From().Name == name })
		const size, entry = 24, "a list with one more certificate"
		data := append(slices.Clone(b.Events[at].Data), entry...)
		binary.LittleEndian.PutUint64(data[size:], binary.LittleEndian.Uint64(data[size:])+uint64(len(entry)))
		b.Events[at] = eventOf(7, pcrs.EvVariableDriverConfig, string(data))
	}
}

// inserted puts events before the first of a register and a type.
func inserted(r pcrs.Register, kind pcrs.EventType, more ...pcrs.Event) func(*boot) {
	return func(b *boot) {
		at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Register == r && e.Type == kind })
		b.Events = slices.Insert(b.Events, at, more...)
	}
}

// booted replaces what the image measures by another image's.
func booted(t *testing.T, disk string) func(*boot) {
	t.Helper()
	own := imageEvents(t, disk)
	return func(b *boot) {
		first := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Type == pcrs.EvGPT })
		b.Events = append(b.Events[:first:first], own...)
	}
}

// TestNextBootOfAForeignFirmware makes documents of a second image from the recorded logs of firmware that nobody has a file of. They
// accept that machine's next boot with it, and refuse each deliberate change, whose event and input are named.
func TestNextBootOfAForeignFirmware(t *testing.T) {
	second := another(t, "console=ttyS0 second", "20260203")
	changes := []struct {
		name   string
		change func(*boot)
		// register is where it shows, says what explain says of it.
		register pcrs.Register
		says     string
	}{
		{"another firmware version", replaced(0, pcrs.EvCRTMVersion), 0, "the firmware is another"},
		{"an event of the firmware is dropped", func(b *boot) {
			at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Register == 0 && e.Type == pcrs.EvCRTMVersion })
			b.Events = slices.Delete(b.Events, at, at+1)
		}, 0, "the firmware is another build"},
		{"two events change their places", func(b *boot) {
			at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Register == 7 && e.Type == pcrs.EvVariableDriverConfig })
			b.Events[at+1], b.Events[at+2] = b.Events[at+2], b.Events[at+1]
		}, 7, "the firmware's variable KEK is another"},
		{"another startup locality", func(b *boot) { b.Locality = 4 }, 0, "startup locality 4"},
		{"another db", enrolled("db"), 7, "the firmware's variable db is another"},
		{"Secure Boot is on", func(b *boot) {
			at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return strings.HasPrefix(e.What(), "variable SecureBoot") })
			data := slices.Clone(b.Events[at].Data[:52])
			binary.LittleEndian.PutUint64(data[24:], 1)
			b.Events[at] = eventOf(7, pcrs.EvVariableDriverConfig, string(append(data, 1)))
		}, 7, "Secure Boot was on"},
		{"another boot entry was tried first", inserted(4, pcrs.EvSeparator, eventOf(4, pcrs.EvEFIAction, "Returning from EFI Application from Boot Option")), 4, "another boot entry was tried"},
		{"another program was started first", func(b *boot) {
			program := eventOf(4, pcrs.EvBootServicesApplication, "another program")
			at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Type == pcrs.EvGPT })
			b.Events = slices.Insert(b.Events, at, program)
		}, 4, "another kernel image than the one of the prediction"},
		{"one more option ROM", inserted(2, pcrs.EvSeparator, eventOf(2, pcrs.EvBootServicesDriver, "a driver")), 2, "option ROM was started that the prediction does not have"},
		{"a vendor's event", inserted(6, pcrs.EvSeparator, eventOf(6, pcrs.EventType(0x90000007), "a vendor's")), 6, "EV_0x90000007"},
		{"a byte of the kernel image", booted(t, another(t, "console=ttyS0 second", "20260204")), 11, ".osrel"},
		{"another command line", booted(t, another(t, "console=ttyS0 second init=/bin/sh", "20260203")), 9, "another command line"},
		{"a command line from outside", func(b *boot) {
			b.Events = append(b.Events, eventOf(12, pcrs.EvIPL, wide("hullmark.addon=1")))
		}, 12, "a command line from outside the image"},
		{"an addon", func(b *boot) {
			program := eventOf(4, pcrs.EvBootServicesApplication, "an addon")
			at := slices.IndexFunc(b.Events, func(e pcrs.Event) bool { return e.Register == 11 })
			b.Events = slices.Insert(b.Events, at, program)
		}, 4, "an addon on the ESP"},
		{"a system extension", func(b *boot) { b.Events = append(b.Events, eventOf(13, pcrs.EvIPL, wide("System extension initrd"))) }, 13, "extension"},
		{"a shim", func(b *boot) { b.Events = append(b.Events, eventOf(14, pcrs.EvIPL, "MokList")) }, 14, "shim"},
		{"a table that was grown", replaced(5, pcrs.EvGPT), 5, "another partition table"},
		{"another boot entry", inserted(1, pcrs.EvSeparator, eventOf(1, pcrs.EvVariableBoot, "BootXXXX")), 1, "boot entries are others"},
	}
	own := imageEvents(t, second)
	firstImage := filepath.Join(t.TempDir(), "first.raw")
	write(t, firstImage, smallDisk(t))
	first := imageEvents(t, firstImage)
	for _, m := range recordedMachines(t) {
		document := measureByLog(t, second, m.file)
		policy, next := enforcing(t, document), m.nextBoot(t, own)
		for _, bank := range document.Banks() {
			if v := measurements.Judge(policy, []measurements.Document{document}, bank, boot{next.Log, bank}.measured(t)); !v.Accepted() {
				t.Fatalf("%s (%v): %v\n%s", m.file, bank, v, explained(t, document, next))
			}
		}
		if text := explained(t, document, next); strings.Contains(text, "differs") {
			t.Errorf("%s: %s", m.file, text)
		}
		for _, u := range document.NotPredicted {
			if u.Register < 8 && !slices.Contains(m.open, u.Register) {
				t.Errorf("%s: %v is open: %s", m.file, u.Register, u.Reason)
			}
		}
		for _, c := range changes {
			if slices.Contains(m.open, c.register) {
				continue // The document says so, and accepts it.
			}
			b := m.nextBoot(t, own)
			c.change(&b)
			v := measurements.Judge(policy, []measurements.Document{document}, pcrs.SHA256, b.measured(t))
			if v.Accepted() || !slices.ContainsFunc(v.Reasons, func(r measurements.Reason) bool { return r.Register == c.register }) {
				t.Errorf("%s, %s: %v", filepath.Base(m.file), c.name, v)
			}
			if text := explained(t, document, b); !strings.Contains(text, c.says) {
				t.Errorf("%s, %s: explain does not say %q:\n%s", filepath.Base(m.file), c.name, c.says, text)
			}
		}
		if v := measurements.Judge(policy, []measurements.Document{document}, pcrs.SHA256, m.nextBoot(t, first).measured(t)); v.Accepted() {
			t.Errorf("%s: the first image is accepted for the second", m.file)
		}
		for _, bank := range pcrs.PredictedBanks() {
			if slices.Contains(document.Banks(), bank) {
				continue
			}
			v := measurements.Judge(policy, []measurements.Document{document}, bank, pcrs.Values{})
			if want := "it has no values of bank " + bank.String(); v.Accepted() || !strings.Contains(v.String(), want) {
				t.Errorf("%s: %v, want %q", m.file, v, want)
			}
		}
	}
}

// TestForgedLogs makes documents of logs that were changed: they are refused by the registers of that boot, and without those
// accept another machine than that.
func TestForgedLogs(t *testing.T) {
	second, dir := another(t, "console=ttyS0 second", "20260203"), t.TempDir()
	m := recordedMachines(t)[1]
	list := filepath.Join(dir, "registers")
	code, text := hullmarkCLI(t, "eventlog", "replay", m.file)
	if code != 0 {
		t.Fatal(text)
	}
	write(t, list, []byte(text))
	document := measureByLog(t, second, m.file, "--pcrs", list)
	if log := document.Machine.Log; log == nil || log.Quote != nil || document.Machine.Firmware != nil || document.Machine.SecureBoot {
		t.Errorf("the document's machine is %+v", document.Machine)
	}
	whole, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	log := parsedLog(t, m.file)
	blob := log.Of(0)[1].Digests[pcrs.SHA256]
	other := sha256.Sum256([]byte("another firmware"))
	forged := filepath.Join(dir, "forged")
	write(t, forged, bytes.ReplaceAll(whole, blob, other[:]))
	cut := filepath.Join(dir, "cut")
	write(t, cut, cutBefore(t, whole, log, "Exit Boot Services Invocation"))
	for name, file := range map[string]string{"forged": forged, "cut off": cut} {
		if _, err := hullmarkMeasure(second, "--log", file, "--pcrs", list); err == nil || !strings.Contains(err.Error(), "was cut off, or is of another boot") {
			t.Errorf("%s: %v", name, err)
		}
	}
	believed := measureByLog(t, second, forged)
	if v := measurements.Judge(enforcing(t, believed), []measurements.Document{believed}, pcrs.SHA256, m.nextBoot(t, imageEvents(t, second)).measured(t)); v.Accepted() {
		t.Error("a document of a forged log accepts the machine")
	}
	if opened := measureByLog(t, second, cut); !slices.ContainsFunc(opened.NotPredicted, func(n measurements.NotPredicted) bool { return n.Register == 5 }) {
		t.Error("PCR 5 is predicted from a log that was cut off")
	}
}

// TestBanksOfALogThatNobodyHeld forges the digests of one bank: a document has none of which the registers, or their quote, were not shown.
func TestBanksOfALogThatNobodyHeld(t *testing.T) {
	second, dir, m := another(t, "console=ttyS0 second", "20260203"), t.TempDir(), recordedMachines(t)[1]
	whole, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	log := parsedLog(t, m.file)
	values, err := log.Replay(pcrs.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	forged, short, long := filepath.Join(dir, "forged"), filepath.Join(dir, "sha256"), filepath.Join(dir, "all")
	write(t, forged, bytes.ReplaceAll(whole, log.Of(0)[1].Digests[pcrs.SHA384], make([]byte, pcrs.SHA384.Size())))
	write(t, short, pcrread(values))
	code, text := hullmarkCLI(t, "eventlog", "replay", m.file)
	if code != 0 {
		t.Fatal(text)
	}
	write(t, long, []byte(text))
	for file, banks := range map[string][]pcrs.Bank{short: {pcrs.SHA256}, long: {pcrs.SHA256, pcrs.SHA384}} {
		if document := measureByLog(t, second, m.file, "--pcrs", file); !slices.Equal(document.Banks(), banks) {
			t.Errorf("%s: banks %v", file, document.Banks())
		}
	}
	for _, file := range []string{short, long} {
		if document := measureByLog(t, second, forged, "--pcrs", file); !slices.Equal(document.Banks(), []pcrs.Bank{pcrs.SHA256}) {
			t.Errorf("%s: the document has what was forged: %v", file, document.Banks())
		}
	}
}

// cutBefore cuts a log before the event with some data.
func cutBefore(t *testing.T, raw []byte, log pcrs.Log, data string) []byte {
	t.Helper()
	const head, algorithm = 4 + 4 + 4, 2
	at := bytes.LastIndex(raw, []byte(data))
	if at < 0 {
		t.Fatalf("no %q", data)
	}
	at -= 4 + head // the length of the data, then register, type and the number of digests
	for _, bank := range log.Banks {
		at -= algorithm + bank.Size()
	}
	return raw[:at]
}

func TestLogUsage(t *testing.T) {
	f := newMeasureFixture(t)
	for _, args := range [][]string{
		{f.image, "--firmware", f.firmware, "--vars", f.vars, "--pcrs", f.vars},
		{f.image, "--log", f.vars, "--quote", f.vars},
		{f.image, "--log", f.vars, "--firmware", f.firmware},
	} {
		if _, err := hullmarkMeasure(args...); err == nil || exitCode(err) != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
	out, err := hullmarkMeasure(f.image, "--log", recordedMachines(t)[0].file)
	if err != nil || !strings.Contains(out, "the machine's own claim") || !strings.Contains(out, "; from a boot: log ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLogOfAQuotedBoot binds a log to the quote of a TPM that measured what it says.
func TestLogOfAQuotedBoot(t *testing.T) {
	second, machine := another(t, "console=ttyS0 second", "20260203"), recordedMachines(t)[1]
	q := quotedMachine{dir: t.TempDir(), tcti: "swtpm:path=" + tpmtest.NewShared(t, func(*tpmtest.TPM) {})}
	extend := []string{"tpm2_pcrextend"}
	for _, e := range parsedLog(t, machine.file).Events {
		if e.Type != pcrs.EvNoAction && e.Register < 8 {
			extend = append(extend, fmt.Sprintf("%d:sha256=%v", int(e.Register), e.Digests[pcrs.SHA256]))
		}
	}
	q.tool(t, extend...)
	q.tool(t, "tpm2_createek", "-c", "ek.ctx", "-G", "ecc", "-u", "ek.pub")
	q.flush(t)
	q.key(t, "ecc", "ecdsa", "ak")
	measure := func() (string, error) {
		return hullmarkMeasure(second, "--log", machine.file, "--pcrs", q.path("registers"), "--quote", q.path("quote"), "--signature", q.path("signature"), "--ak", q.path("ak.pub"), "-o", "json")
	}
	q.quote(t, "ak", "sha256:0,1,2,3,4,5,6,7")
	out, err := measure()
	if err != nil {
		t.Fatal(err)
	}
	document, err := measurements.Parse([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	key, err := inspect.Digest(q.path("ak.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(document.Banks(), []pcrs.Bank{pcrs.SHA256}) {
		t.Errorf("banks %v, of which one was quoted", document.Banks())
	}
	if proven := document.Machine.Log.Quote; proven == nil || !proven.Key.Equal(key) || len(proven.Registers) != 8 {
		t.Errorf("%+v", proven)
	}
	q.quote(t, "ak", "sha256:0,1,2,3,4,5,7")
	if _, err := measure(); err == nil || !strings.Contains(err.Error(), "does not cover PCR 6") {
		t.Error(err)
	}
	q.tool(t, "tpm2_pcrextend", "5:sha256="+strings.Repeat("0", 64))
	q.quote(t, "ak", "sha256:0,1,2,3,4,5,6,7")
	if _, err := measure(); err == nil || !strings.Contains(err.Error(), "PCR 5: it leads to") {
		t.Error(err)
	}
}

// TestProviderUpdatesItsFirmware goes the way of docs/firmware.md: machines begin to show another firmware, whose log one of them gives;
// both are accepted for a time, then the earlier one no more.
func TestProviderUpdatesItsFirmware(t *testing.T) {
	s := newSite(t)
	second := another(t, "console=ttyS0 second", "20260203")
	before := recordedMachine{file: "../../pcrs/testdata/ovmf-2022.11-e1000e.log", program: `\EFI\BOOT\BOOTX64.EFI`}
	after := recordedMachines(t)[0]
	own := imageEvents(t, second)
	documents := map[string]string{}
	for name, m := range map[string]recordedMachine{"before": before, "after": after} {
		documents[name] = s.path(name + ".json")
		if _, err := hullmarkMeasure(second, "--log", m.file, "--out", documents[name]); err != nil {
			t.Fatal(err)
		}
		write(t, s.path(name+".registers"), pcrread(m.nextBoot(t, own).measured(t)))
	}
	policy := func(args ...string) (int, string) {
		return hullmarkCLI(t, append(append([]string{"policy"}, args...), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))...)
	}
	check := func(name string, want int, says ...string) {
		t.Helper()
		code, text := policy("check", documents["before"], documents["after"], "--pcrs", s.path(name+".registers"))
		wantExit(t, code, want, text, says...)
	}
	accept := func(name string) {
		t.Helper()
		code, text := policy("add", "document", documents[name])
		wantExit(t, code, 0, text, "enforced: 0,1,2,3,4,6,7,9,11,12,13,14", "not enforced: PCR 5")
	}
	accept("before")
	check("before", 0, "accepted")
	check("after", exitDenied, "PCR 0: want", "the policy does not accept this document")

	code, text := hullmarkCLI(t, "explain", documents["before"], "--log", after.file)
	wantExit(t, code, exitMismatch, text, "PCR 0", "the firmware is another")

	accept("after")
	check("before", 0, "accepted")
	check("after", 0, "accepted")

	first, err := readDocument(documents["before"])
	if err != nil {
		t.Fatal(err)
	}
	id, err := first.Digest()
	if err != nil {
		t.Fatal(err)
	}
	code, text = policy("remove", "document", id.String())
	wantExit(t, code, 0, text, "accepted no more")
	check("before", exitDenied, "PCR 0: want")
	check("after", 0, "accepted")
}
