package pcrs

import (
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/uki"
)

// asLogged gives predicted events the data that firmware, stub and kernel log for them.
func asLogged(events []Event) []Event {
	out := slices.Clone(events)
	for i, e := range out {
		switch {
		case e.Register == 11:
			out[i].Data = append(efi.UTF16(e.From().Section), 0, 0)
		case e.Register == 9 && e.From().Kind == FromCommandLine:
			out[i].Data = append(make([]byte, 8), "LOADED_IMAGE::LoadOptions\x00"...)
		case e.Register == 9:
			out[i].Data = append(make([]byte, 8), "Linux initrd\x00"...)
		}
		out[i].Source, out[i].Origin = nil, ""
	}
	return out
}

// extra is an event of someone who adds to a boot; text is what the log says of it.
func extra(r Register, t EventType, text string) Event {
	e := derived(r, t, []byte("content of "+text), Source{})
	e.Source = nil
	e.Data = append(efi.UTF16(text), 0, 0)
	return e
}

// loaded is the event of a program that firmware loaded from a file of the ESP.
func loaded(file string) Event {
	e := derived(4, EvBootServicesApplication, []byte("content of "+file), Source{})
	path := append(efi.UTF16(file), 0, 0)
	e.Data = append(make([]byte, 32), 4, 4, byte(len(path)+4), 0)
	e.Data = append(append(e.Data, path...), 0x7f, 0xff, 4, 0)
	return e
}

// tagged is an event with a tag, as the stub logs it for parts of addons.
func tagged(name string) Event {
	e := extra(12, EvEventTag, name)
	e.Data = append(make([]byte, 8), e.Data...)
	return e
}

func must(t *testing.T, b Boot) []Event {
	t.Helper()
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	return p.Log.Events
}

// without leaves out the event of a register whose description contains what.
func without(t *testing.T, events []Event, r Register, what string) []Event {
	t.Helper()
	i := slices.IndexFunc(events, func(e Event) bool { return e.Register == r && strings.Contains(e.What(), what) })
	if i < 0 {
		t.Fatalf("%v has no event %q", r, what)
	}
	return slices.Delete(slices.Clone(events), i, i+1)
}

// differences are boots that were changed on purpose: which register departs, and what a person shall read, with the log and
// without it. Without says what is told where there is no log; empty means that no single change can be found, because content
// that nobody predicted was measured.
func differences(t *testing.T) map[string]struct {
	boot          []Event
	register      Register
	with, without string
} {
	t.Helper()
	plain := must(t, testBoot(t))
	config := testBoot(t)
	config.NodeConfig = []byte("{}")
	configured := must(t, config)
	kernel := testBoot(t)
	kernel.UKI = open(t, rebuilt(t, ".linux", packaged(t, "/usr/lib/systemd/boot/efi/systemd-bootx64.efi", "systemd-boot-efi")))
	initrd, release, table := testBoot(t), testBoot(t), testBoot(t)
	initrd.UKI = open(t, rebuilt(t, ".initrd", []byte("another initrd")))
	release.UKI = open(t, rebuilt(t, ".osrel", []byte("ID=another\n")))
	table.Table = &gpt.Table{Header: slices.Clone(table.Table.Header), GUID: table.Table.GUID, Partitions: table.Table.Partitions}
	table.Table.Header[56] ^= 1
	on, off := secureBoot(t), testBoot(t)
	off.Machine = machineOf(t, "ovmf-2025.02-setupmode")
	rom := testBoot(t)
	rom.Machine.ROMs = machineOf(t, "ovmf-2022.11-e1000e").ROMs
	other := config
	other.NodeConfig = []byte("{ }")
	add := func(events ...Event) []Event { return append(slices.Clone(plain), events...) }
	type difference = struct {
		boot          []Event
		register      Register
		with, without string
	}
	return map[string]difference{
		"another command line":     {must(t, cmdlineBoot(t)), 11, ".cmdline of the unified kernel image differs", ""},
		"it reaches the kernel":    {must(t, cmdlineBoot(t)), 9, "another command line than the image's own", ""},
		"another kernel":           {must(t, kernel), 11, ".linux of the unified kernel image differs", ""},
		"another image":            {must(t, kernel), 4, "another kernel image than the one of the prediction was started", ""},
		"another initrd":           {must(t, initrd), 11, ".initrd of the unified kernel image differs", ""},
		"another release":          {must(t, release), 11, ".osrel of the unified kernel image differs", ""},
		"an added section":         {must(t, testBoot(t, uki.Section{Name: ".uname", Data: []byte("7")})), 11, "a section .uname where", ""},
		"a repartitioned disk":     {must(t, table), 5, "the disk has another partition table", ""},
		"no partition table":       {without(t, plain, 5, "UEFI_GPT"), 5, "no partition table was measured", "no partition table was measured"},
		"Secure Boot on":           {must(t, on), 7, "Secure Boot was on", ""},
		"a build with Secure Boot": {must(t, off), 7, "Secure Boot was off", "Secure Boot was off"},
		"no inner kernel":          {without(t, plain, 4, "kernel in section .linux"), 4, "Secure Boot was on, or the stub", "Secure Boot was on, or the stub"},
		"an addon":                 {add(extra(4, EvBootServicesApplication, "addon")), 4, "one more EFI program was started", ""},
		"an earlier boot entry": {
			slices.Insert(slices.Clone(plain), 0, action(4, "Returning from EFI Application from Boot Option")), 4,
			"another boot entry was tried", `"Returning from EFI Application from Boot Option" first`,
		},
		"an addon's command line": {add(extra(12, EvIPL, "debug=1")), 12, `from outside the image: "debug=1"`, ""},
		"a credential":            {add(extra(12, EvIPL, "Credentials initrd")), 12, `EFI/BOOT/BOOTX64.EFI.extra.d/*.cred): "Credentials initrd"`, ""},
		"a global credential":     {add(extra(12, EvIPL, "Global credentials initrd")), 12, "loader/credentials/*.cred", ""},
		"a confext":               {add(extra(12, EvIPL, "Configuration extension initrd")), 12, "configuration extensions were loaded from the ESP", ""},
		"a named addon":           {add(loaded(`\loader\addons\x.addon.efi`)), 4, `an addon was loaded from the ESP: "\\loader\\addons\\x.addon.efi"`, ""},
		"an addon before the kernel": {
			append(without(t, plain, 4, "kernel in section .linux"), loaded(`\x.addon.efi`), eventIn(t, Log{Events: plain}, 4, "kernel in section .linux")), 4, `an addon was loaded from the ESP: "\\x.addon.efi"`, "",
		},
		"an addon's initrd":   {add(tagged("x.addon.efi")), 12, `brought an initrd, microcode or a device tree: "x.addon.efi"`, ""},
		"a system extension":  {add(extra(13, EvIPL, "System extension initrd")), 13, "system extensions were loaded from the ESP", ""},
		"a shim":              {add(extra(14, EvIPL, "MokList")), 14, "a shim was started", ""},
		"an option ROM":       {must(t, rom), 2, "option ROM was started that the prediction does not have", ""},
		"a phase of the boot": {add(derived(11, EvIPL, []byte("enter-initrd"), Source{})), 11, "one more measurement", `systemd-pcrphase has measured "enter-initrd"`},
		"another initrd handed over": {
			append(without(t, plain, 9, "initrd"), extra(9, EvEventTag, "initrd")), 9, "an addon, a credential or an extension on the ESP", "",
		},
		"no node configuration":      {without(t, configured, 8, "node configuration"), 8, "the node configuration is another", "the node was given no configuration"},
		"another node configuration": {must(t, other), 8, "the node configuration is another", ""},
		"an open state disk":         {add(extra(15, EvUserSpace, "disk")), 15, "the state disk is open", ""},
	}
}

// rebuilt is the test image with one section of another content.
func rebuilt(t testing.TB, name string, data []byte) []byte {
	t.Helper()
	sections := []uki.Section{
		{Name: ".linux", Data: packaged(t, "/"+uki.DebianStub, "systemd-boot-efi")},
		{Name: ".osrel", Data: []byte("ID=test\nVERSION_ID=1\n")},
		{Name: ".initrd", Data: []byte("an initrd")},
		{Name: ".cmdline", Data: []byte(cmdline)},
	}
	for i := range sections {
		if sections[i].Name == name {
			sections[i].Data = data
		}
	}
	image, err := uki.Build(stub257(t), sections)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func cmdlineBoot(t *testing.T) Boot {
	t.Helper()
	b := testBoot(t)
	b.UKI = open(t, rebuilt(t, ".cmdline", []byte(cmdline+" debug")))
	return b
}

// learnedPrediction predicts a boot of a machine that was learned.
func learnedPrediction(t *testing.T) Prediction {
	t.Helper()
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	b := testBoot(t)
	b.Machine, b.Machine.Learned = m, &l
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// replaced gives the event of a register whose description contains what another content.
func replaced(t *testing.T, events []Event, r Register, what string, with []byte) []Event {
	t.Helper()
	events = slices.Clone(events)
	i := slices.IndexFunc(events, func(e Event) bool { return e.Register == r && strings.Contains(e.What(), what) })
	if i < 0 {
		t.Fatalf("%v has no event %q", r, what)
	}
	events[i].Digests, events[i].Data = DigestsOf(with, PredictedBanks()...), with
	return events
}

// causeOf returns what is said of a register, empty if it does not differ.
func causeOf(found []Difference, r Register) string {
	i := slices.IndexFunc(found, func(d Difference) bool { return d.Register == r })
	if i < 0 {
		return ""
	}
	return found[i].Cause
}

// TestExplainNamesTheMachine is the table for PCR 0, 1 and 10 of a machine that was learned.
func TestExplainNamesTheMachine(t *testing.T) {
	p := learnedPrediction(t)
	replace := func(r Register, what string, with []byte) []Event { return replaced(t, p.Log.Events, r, what, with) }
	bootVariable := append(make([]byte, 16), 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	bootVariable = append(bootVariable, efi.UTF16("Boot0001")...)
	policy := append(slices.Clone(p.Log.Events), Event{Register: 10, Type: EvUserSpace, Digests: DigestsOf([]byte("a program"), PredictedBanks()...)})
	for name, c := range map[string]struct {
		boot     []Event
		register Register
		want     string
	}{
		"another build":      {replace(0, "firmware version", append(efi.UTF16("2042"), 0, 0)), 0, `calls itself "2042"`},
		"other early code":   {replace(0, "early code", []byte("x")), 0, "early code is another"},
		"other drivers":      {replace(0, "drivers", []byte("x")), 0, "drivers are another build's"},
		"no firmware volume": {without(t, p.Log.Events, 0, "drivers"), 0, "measures other parts of itself"},
		"other tables":       {replace(1, "ACPI blob 2", []byte("x")), 1, "other processors, memory or devices"},
		"another boot entry": {replace(1, "Boot0001", bootVariable), 1, `boot entries are others ("Boot0001")`},
		"a policy":           {policy, 10, "IMA measured more"},
		"no IMA":             {without(t, p.Log.Events, 10, "boot_aggregate"), 10, "the kernel measured nothing"},
	} {
		log := Log{Events: asLogged(c.boot)}
		measured, err := log.Replay(SHA256)
		if err != nil {
			t.Fatal(err)
		}
		found, err := Explain(p, SHA256, measured, &log)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(causeOf(found, c.register), c.want) {
			t.Errorf("%s: %v, want %q for %v", name, found, c.want, c.register)
		}
	}
}

// Where another register differs, PCR 10 does too; if it is what IMA makes of the others, that is all there is to say of it.
func TestExplainTellsWhatFollows(t *testing.T) {
	p := learnedPrediction(t)
	log := Log{Events: asLogged(replaced(t, p.Log.Events, 1, "ACPI blob 2", []byte("x")))}
	measured, err := log.Replay(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	aggregate, err := BootAggregate(measured)
	if err != nil {
		t.Fatal(err)
	}
	follows, err := Log{Events: []Event{aggregate}}.Replay(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	measured[10] = follows[10] // as a kernel extends it; the log still has the predicted one
	found, err := Explain(p, SHA256, measured, &log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(causeOf(found, 10), "it follows from the measured PCR 0 to 9") {
		t.Errorf("%v", found)
	}
}

func TestExplainNamesTheInput(t *testing.T) {
	all := differences(t)
	if len(all) < 20 {
		t.Fatalf("%d differences", len(all))
	}
	for name, c := range all {
		boot := testBoot(t)
		if c.register == 8 {
			boot.NodeConfig = []byte("{}")
		}
		p, err := Predict(boot)
		if err != nil {
			t.Fatal(err)
		}
		log := Log{Events: asLogged(c.boot)}
		measured, err := log.Replay(SHA256)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []*Log{&log, nil} {
			want := c.with
			if l == nil {
				want = c.without
			}
			found, err := Explain(p, SHA256, measured, l)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(found, func(d Difference) bool { return d.Register == c.register })
			switch {
			case i < 0:
				t.Errorf("%s: %v is not among %v", name, c.register, found)
			case !strings.Contains(found[i].Cause, want) || (want == "") != (found[i].Cause == ""):
				t.Errorf("%s (with a log: %t): the cause is %q, want %q", name, l != nil, found[i].Cause, want)
			}
		}
	}
}

// Where companions are predicted, a boot without them, or with others, is told by their names.
func TestExplainNamesPredictedCompanions(t *testing.T) {
	b := testBoot(t)
	b.ESP = map[string][]byte{
		local + "x.addon.efi": testAddon(t, addonSection(".initrd", "more")), local + "a.cred": []byte("a"), local + "b.cred": []byte("b"), local + "s.raw": []byte("s"),
	}
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	plain := must(t, testBoot(t))
	for name, c := range map[string]struct {
		boot     []Event
		register Register
		want     string
	}{
		"no addon":         {without(t, p.Log.Events, 4, "addon"), 4, `not loaded, or another one before it: "x.addon.efi"`},
		"another addon":    {append(without(t, plain, 4, "kernel in section"), loaded(`\EFI\BOOT\BOOTX64.EFI.extra.d\X.ADDON.EFI`)), 4, "the addon on the ESP is another"},
		"no companions":    {plain, 12, "lacked what the prediction has: archive with the credentials a.cred, b.cred"},
		"no extension":     {plain, 13, "lacked what the prediction has: archive with the system extensions s.raw"},
		"other credential": {append(slices.Clone(plain), extra(12, EvIPL, "Credentials initrd")), 12, "in its place: archive with the credentials a.cred, b.cred"},
	} {
		log := Log{Events: asLogged(c.boot)}
		measured, err := log.Replay(SHA256)
		if err != nil {
			t.Fatal(err)
		}
		found, err := Explain(p, SHA256, measured, &log)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(causeOf(found, c.register), c.want) {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// Where the document is of a recorded boot, an event says too little of itself for a cause.
func TestNoCauseOfARecordedEvent(t *testing.T) {
	for _, source := range []*Source{{Kind: FromData, Bytes: 8}, {Kind: FromTag, Name: "LoadOptions"}} {
		for register, event := range map[Register]EventType{4: EvBootServicesApplication, 9: EvEventTag} {
			want := &Event{Register: register, Type: event, Source: source}
			if text := cause(register, want, nil); text != "" {
				t.Errorf("%v of %v has the cause %q", register, source.Kind, text)
			}
		}
	}
}
