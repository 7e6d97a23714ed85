package pcrs

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/uki"
)

// cause says in a user's terms which input makes a register depart where the
// log has got in place of want; either may be nil, but not both. It is empty
// where nothing better is known than the two events.
func cause(r Register, want, got *Event) string {
	if want != nil && want.From().recorded() {
		if want.Origin == Learned {
			return learnedCause(r, got)
		}
		return "" // The document is of a recorded boot: what its log does not say of an event, nobody knows.
	}
	switch r {
	case 0:
		return firmwareCause(want, got)
	case 1:
		return machineCause(want, got)
	case 2:
		return optionROMCause(want, got)
	case 4:
		return applicationCause(want, got)
	case 5:
		return diskCause(want, got)
	case 7:
		return secureBootCause(want, got)
	case 8:
		return "the node configuration is another, or the node has not measured it yet"
	case 9:
		return kernelInputCause(want, got)
	case 11:
		return sectionCause(want, got)
	}
	return addedCause(r, want, got)
}

// learnedCause is of an event that was learned, and of which the log did not say more than its type.
func learnedCause(r Register, got *Event) string {
	switch r {
	case 0:
		return "the firmware is another version or build than when it was learned"
	case 1:
		return "the machine's settings, tables or boot entries are others than when they were learned"
	case 2:
		return cmp.Or(optionROMCause(nil, got), "a driver or a device is another than when it was learned")
	case 3, 6:
		return "settings of a device, or the vendor's own, are others than when they were learned"
	}
	return ""
}

func firmwareCause(want, got *Event) string {
	switch {
	case want == nil || got == nil || want.Type != got.Type:
		return "the firmware is another build, which measures other parts of itself"
	case want.Type == EvCRTMVersion:
		return fmt.Sprintf("the firmware is another build: it calls itself %q", printableText(got.From().Name))
	case want.Origin == Learned && want.From().Kind != FromFirmwareVolume:
		return learnedCause(0, got)
	case want.Origin == Learned:
		return "the firmware's early code is another: another build, or the machine has other processors or memory than the one that was learned"
	case want.Type == EvPlatformFirmwareBlob:
		return "the firmware's drivers are another build's than those of the firmware file"
	}
	return ""
}

func machineCause(want, got *Event) string {
	if got != nil && got.Type == EvVariableBoot || got == nil && want.Type == EvVariableBoot {
		name := ""
		if got != nil {
			name = got.From().Name
		}
		return fmt.Sprintf("the boot entries are others (%q): another disk comes first, an entry was added, or the firmware's setup was used", printableText(name))
	}
	if want != nil && want.Type == EvPlatformConfigFlags {
		return "the machine has other processors, memory or devices than the one that was learned, or another virtual machine monitor made its tables"
	}
	return ""
}

// aggregateCause is for PCR 10, of which no firmware's log knows. measured are all registers of a bank.
func aggregateCause(bank Bank, measured Values) string {
	switch {
	case len(bytes.Trim(measured[10], "\x00")) == 0:
		return "the kernel measured nothing: it has no IMA, or did not find the TPM when it started"
	case bank != SHA256 || slices.ContainsFunc([]Register{0, 1, 2, 3, 4, 5, 6, 7, 9}, func(r Register) bool { return len(measured[r]) == 0 }):
		return ""
	case FollowsFromOthers(measured):
		return "it follows from the measured PCR 0 to 9, and departs because one of them does"
	}
	return "the kernel's IMA measured more than boot_aggregate: it has a policy"
}

func optionROMCause(want, got *Event) string {
	switch {
	case got != nil && isDriver(got.Type):
		return "a device's option ROM was started that the prediction does not have: the machine has another device, or its ROM file is not empty"
	case want != nil && isDriver(want.Type):
		return "an option ROM of the prediction was not started: the machine lacks the device"
	}
	return ""
}

func isDriver(t EventType) bool { return t == EvBootServicesDriver || t == EvRuntimeServicesDriver }

func applicationCause(want, got *Event) string {
	inner := want != nil && want.From().Kind == FromProgram && want.From().Section != ""
	switch {
	case want != nil && want.From().addon() || got != nil && got.From().addon():
		return addonCause(want, got)
	case inner && got == nil:
		return "the stub did not start the kernel inside the image through the firmware: Secure Boot was on, or the stub is of another version"
	case inner:
		return "another EFI program was started before the kernel inside the image: an addon on the ESP, or the kernel is another"
	case want == nil && got.Type == EvBootServicesApplication:
		return "one more EFI program was started: the kernel inside the image, because Secure Boot was off, or an addon on the ESP"
	case want != nil && want.Type == EvBootServicesApplication && got != nil && got.Type == EvBootServicesApplication:
		return "another kernel image than the one of the prediction was started: another release, or a changed one; PCR 11 says which of its sections differ"
	case got != nil && got.Type == EvEFIAction:
		return fmt.Sprintf("the firmware did %q: another boot entry was tried, or its setup was entered", printableText(got.From().Name))
	case want != nil && want.Type == EvBootServicesApplication:
		return "the unified kernel image was not started"
	}
	return ""
}

// addonCause is for two events of which at least one is an addon that firmware loaded.
func addonCause(want, got *Event) string {
	expected, loaded := "", ""
	if want != nil && want.From().addon() {
		expected = path.Base(want.From().File)
	}
	if got != nil {
		loaded = got.From().File
	}
	switch {
	case expected != "" && strings.EqualFold(loaded[strings.LastIndex(loaded, `\`)+1:], expected):
		return fmt.Sprintf("the addon on the ESP is another than the prediction's: %q", printableText(loaded))
	case expected != "":
		return fmt.Sprintf("an addon of the prediction was not loaded, or another one before it: %q is not on the ESP, or Secure Boot refused it", expected)
	}
	return fmt.Sprintf("an addon was loaded from the ESP: %q", printableText(loaded))
}

func diskCause(want, got *Event) string {
	switch {
	case want != nil && want.Type == EvGPT && got != nil && got.Type == EvGPT:
		return "the disk has another partition table: it was repartitioned or grown, or is of another image"
	case got != nil && got.Type == EvGPT:
		return "the partition table of one more disk was measured"
	case want != nil && want.Type == EvGPT:
		return "no partition table was measured: the machine did not boot from a disk"
	case want != nil && want.Type == EvEFIAction && got == nil:
		return "the firmware was not left the way Linux does"
	}
	return ""
}

func secureBootCause(want, got *Event) string {
	if got == nil || want == nil {
		if got != nil && got.Type == EvVariableAuthority {
			return "a program was verified with a certificate: Secure Boot was on, or a shim verified it"
		}
		if want != nil && want.Type == EvVariableAuthority {
			return "no certificate verified the image: Secure Boot was off"
		}
		return ""
	}
	switch s := got.From(); {
	case got.Type == EvVariableAuthority:
		return "the image was verified with another certificate"
	case s.Kind == FromSecureBoot:
		return secureBootCauses[s.Name]
	case s.Kind == FromVariable:
		return fmt.Sprintf("the firmware's variable %s is another: it has %d bytes; keys were enrolled, removed or updated", printableText(s.Name), s.Bytes)
	}
	return ""
}

// secureBootCauses say what a state of Secure Boot means for whoever expected another.
var secureBootCauses = map[string]string{
	SecureBootAbsent: "the firmware is a build without Secure Boot", SecureBootOff: "Secure Boot was off", SecureBootOn: "Secure Boot was on",
}

func kernelInputCause(want, got *Event) string {
	switch {
	case want != nil && want.From().Kind == FromCommandLine:
		return "the kernel got another command line than the image's own: an addon, the SMBIOS or the boot entry added to it, or the image is another"
	case want != nil && want.From().Kind == FromInitrd:
		return "the kernel got another initrd: an addon, a credential or an extension on the ESP added to it, or the image is another"
	case got != nil:
		return "one more input was handed to the kernel"
	}
	return ""
}

// sectionCause compares the names that the stub logs. The name of a section and its content are two events with the same data.
func sectionCause(want, got *Event) string {
	if want == nil {
		return fmt.Sprintf("one more measurement, %s: the image has another section or an addon, or systemd-pcrphase runs in it", got.What())
	}
	wanted := want.From().Section
	if got == nil {
		return fmt.Sprintf("section %s was not measured: the image lacks it, or its stub is of another version", wanted)
	}
	name := got.From().Name
	if want.From().Kind == FromSectionName || name != wanted {
		return fmt.Sprintf("the image has a section %s where the prediction has %s: its sections are others, or its stub is of another version", printableText(name), wanted)
	}
	return fmt.Sprintf("%s of the unified kernel image differs", wanted)
}

// addedCause covers registers that stay empty unless someone adds to a boot (systemd-stub(7)).
func addedCause(r Register, want, got *Event) string {
	switch {
	case r == 12 || r == 13:
		return companionCause(r, want, got)
	case got == nil:
		return ""
	}
	switch r {
	case 14:
		return "a shim was started: its machine owner keys were measured"
	case 3, 6:
		return "the firmware or a driver measured its own configuration"
	case 15:
		return "the state disk is open, or another program has measured into the register"
	}
	return ""
}

// companionCause covers what lies beside the image on the ESP and what the host passes.
func companionCause(r Register, want, got *Event) string {
	if got == nil {
		return "the boot lacked what the prediction has: " + want.What()
	}
	text := printableText(got.From().Name)
	cause := ""
	sidecar, archived := uki.LoggedSidecar(text)
	switch {
	case got.Type == EvEventTag:
		cause = fmt.Sprintf("an addon on the ESP brought an initrd, microcode or a device tree: %q", text)
	case archived:
		cause = fmt.Sprintf("%s were loaded from the ESP (%s/*%s): %q", sidecar.What, sidecar.Folder, sidecar.Ending, text)
	case r == 12:
		cause = fmt.Sprintf("the kernel got a command line from outside the image: %q, by an addon, the SMBIOS or the boot entry", text)
	default:
		return ""
	}
	if want != nil {
		cause += "; the prediction has in its place: " + want.What()
	}
	return cause
}

// printableText is text from a log that a terminal may show, at most maxPrinted bytes of it.
func printableText(text string) string {
	return printableASCII([]byte(text[:min(len(text), maxPrinted)]))
}

// maxPrinted has room for a path on the ESP.
const maxPrinted = 320

// printableASCII leaves out everything else.
func printableASCII(b []byte) string {
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, b))
}

// maxTried is how many events singleChange leaves out one after the other: each takes a replay of all.
const maxTried = 1024

// singleChange looks for one change of the predicted events of a register that
// gives the measured value, for boots without a log. It is empty if there is none.
func singleChange(bank Bank, r Register, begin Digest, events []Event, measured Digest) string {
	if !r.Extended() {
		return ""
	}
	value := func(changed []Event) Digest {
		v := begin
		for _, e := range changed {
			v = extend(bank, v, e.Digests[bank])
		}
		return v
	}
	if measured.Equal(begin) {
		return "nothing was measured into it" + untouched(r)
	}
	for i := range events[:min(len(events), maxTried)] {
		if value(slices.Delete(slices.Clone(events), i, i+1)).Equal(measured) {
			return strings.TrimSuffix("as if one event had not happened: "+events[i].What()+"; "+cause(r, &events[i], nil), "; ")
		}
	}
	for _, c := range knownChanges(r, events) {
		if value(c.events).Equal(measured) {
			return c.text
		}
	}
	return ""
}

func untouched(r Register) string {
	if r == 8 {
		return ": the node was given no configuration, or has not come to measure it"
	}
	return ""
}

// change is another sequence of events, and what it would mean.
type change struct {
	events []Event
	text   string
}

// phases are what systemd-pcrphase measures into PCR 11 one after the other (systemd-pcrphase.service(8)).
var phases = []string{"enter-initrd", "leave-initrd", "sysinit", "ready", "shutdown", "final"}

// knownChanges are sequences that a changed machine or image is known to measure.
func knownChanges(r Register, events []Event) []change {
	var out []change
	switch r {
	case 7:
		if len(events) > 0 && events[0].From().Kind == FromSecureBoot {
			for _, state := range []secureBootState{secureBootUnknown, secureBootOff, secureBootOn} {
				text := secureBootCauses[state.name()]
				changed := slices.Clone(events)
				changed[0] = secureBootEvent(state)
				withoutAuthority := slices.DeleteFunc(slices.Clone(changed), func(e Event) bool { return e.Type == EvVariableAuthority })
				out = append(out, change{changed, text}, change{withoutAuthority, text})
			}
		}
	case 11:
		for first := range phases {
			changed := slices.Clone(events)
			for _, phase := range phases[first:] {
				changed = append(changed, derived(11, EvIPL, []byte(phase), Source{Kind: FromText, Name: phase}))
				out = append(out, change{slices.Clone(changed), fmt.Sprintf("systemd-pcrphase has measured %q into it", phase)})
			}
		}
	}
	for _, name := range []string{returningOption, "Entering ROM Based Setup", "Booting to Firmware Setup Utility"} {
		if r == 4 {
			out = append(out, change{slices.Insert(slices.Clone(events), 0, action(4, name)), fmt.Sprintf("the firmware did %q first", name)})
		}
	}
	return out
}
