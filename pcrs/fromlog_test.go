package pcrs

import (
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/gpt"
)

// openReason says why a register is not predicted; empty if it is.
func openReason(p Prediction, r Register) string {
	for _, u := range p.Unpredicted {
		if u.Register == r {
			return u.Reason
		}
	}
	return ""
}

// fromLog predicts the boot of the test's image on the machine of a log.
func fromLog(t testing.TB, log Log) (Prediction, error) {
	t.Helper()
	b := testBoot(t)
	b.Machine = Machine{Log: &MachineLog{Log: log, SHA256: Digest{0xab}}}
	return Predict(b)
}

// predictedFromLog is fromLog where nothing is refused.
func predictedFromLog(t testing.TB, log Log) Prediction {
	t.Helper()
	p, err := fromLog(t, log)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// changed is a log with some of its events changed.
func changed(log Log, change func(events []Event) []Event) Log {
	log.Events = change(slices.Clone(log.Events))
	return log
}

// TestPredictFromALog takes a machine from the log of its boot: another image's boot has the same values as if firmware and variables
// were known.
func TestPredictFromALog(t *testing.T) {
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	known := testBoot(t)
	m.Learned = &l
	known.Machine = m
	want, err := Predict(known)
	if err != nil {
		t.Fatal(err)
	}
	logged := want.Log // The log of one boot is that of any, as far as it is taken.
	logged.Format, logged.Banks = FormatAgile, PredictedBanks()
	got := predictedFromLog(t, logged)
	for _, bank := range PredictedBanks() {
		a, err := want.Values(bank)
		if err != nil {
			t.Fatal(err)
		}
		b, err := got.Values(bank)
		if err != nil {
			t.Fatal(err)
		}
		if len(a) != len(b) {
			t.Errorf("%v: registers %v, want %v", bank, got.Registers, want.Registers)
		}
		for r := range a {
			if !a[r].Equal(b[r]) {
				t.Errorf("%v of %v: %v, want %v", r, bank, b[r], a[r])
			}
		}
	}
	for _, e := range got.Log.Events {
		ours := e.Type == EvGPT || e.Type == EvBootServicesApplication || e.Register > 7 || e.Register == 5 && strings.Contains(e.What(), "Exit Boot")
		if (e.Origin == Derived) != ours {
			t.Errorf("%v: %s is %s", e.Register, e.What(), e.Origin)
		}
		if e.Origin == Learned && !strings.Contains(e.What(), "; from a boot: log ab") {
			t.Errorf("%v: %s names no log", e.Register, e.What())
		}
	}
}

// TestRecordedFirmwareLogs takes recorded boots of QEMU, with and without Secure Boot.
func TestRecordedFirmwareLogs(t *testing.T) {
	for name, state := range map[string]bool{"ovmf-2025.02": false, "ovmf-2025.02-secureboot": true, "ovmf-2022.11-e1000e": false} {
		log := recordedLog(t, name)
		p, err := fromLog(t, log)
		if state {
			if err == nil || !strings.Contains(err.Error(), "not signed") {
				t.Errorf("%s: an unsigned image starts: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		values := values(t, p)
		measured := recordedValues(t, name, SHA256)
		for _, r := range []Register{0, 1, 2, 3, 6, 7} {
			if !values[r].Equal(measured[r]) {
				t.Errorf("%s: %v is %v, the TPM had %v", name, r, values[r], measured[r])
			}
		}
	}
}

// TestForeignFirmwareLogs takes logs of real machines that others publish: what is learned of each, and what stays open.
func TestForeignFirmwareLogs(t *testing.T) {
	folder := filepath.Join(moduleFolder(t, "github.com/google/go-eventlog"), "testdata")
	const (
		otherDisk = "not on the image's disk"
		cutOff    = "two steps out of the firmware"
	)
	for _, c := range []struct {
		file string
		// refused is the error, if nothing is predicted.
		refused string
		// open are registers of 0 to 7 that stay open, with words of the reason.
		open map[Register]string
		// banks are those that the machine has.
		banks []Bank
		// learned are words of what is learned of PCR 4 and 5, in their order.
		learned string
		// locality is where PCR 0 begins.
		locality uint8
	}{
		{
			file: "eventlogs/tpm/ubuntu-2404-amd-sevsnp.bin", banks: []Bank{SHA256, SHA384}, // a first step out of the firmware failed
			open: map[Register]string{1: otherDisk, 5: "Returned with Failure"}, learned: "Calling, separator; separator, table",
		},
		{file: "eventlogs/tpm/rhel8-uefi.bin", refused: "not signed"},                    // Secure Boot was on
		{file: "eventlogs/tpm/cos-125-intel-tdx-secure-boot.bin", refused: "not signed"}, // the same
		{
			file: "eventlogs/tpm/ubuntu-2404-intel-tdx.bin", banks: []Bank{SHA256, SHA384}, // a firmware that tries many entries, and measures what it starts elsewhere
			open: map[Register]string{1: otherDisk, 2: "measures into PCR 2 what it starts", 4: "measures into PCR 2", 5: "measures into PCR 2"},
		},
		{
			file: "eventlogs/tpm/cs251200tpm", banks: []Bank{SHA256, SHA384}, open: map[Register]string{}, // Google's disk has no boot entry of a partition
			learned: "Calling, separator; separator, table",
		},
		{
			file: "eventlogs/tpm/gdc-host.bin", banks: []Bank{SHA256}, locality: 3, open: map[Register]string{1: otherDisk}, // a server of Dell's
			learned: "System_Services.efi, Calling, separator; separator, table",
		},
		{
			file: "eventlogs/tpm/glinux-alex.bin", banks: []Bank{SHA256}, locality: 3, open: map[Register]string{1: otherDisk, 5: cutOff}, // a workstation, whose firmware has no actions
			learned: "separator; separator, table",
		},
		{
			file: "eventlogs/tpm/arch-linux-workstation.bin", banks: []Bank{SHA256}, open: map[Register]string{1: otherDisk, 5: cutOff},
			learned: "separator; separator, table",
		},
		{file: "legacydata/crypto_agile_eventlog", banks: []Bank{SHA256}, open: map[Register]string{1: otherDisk, 5: cutOff}, learned: "separator; separator, table"},
		{file: "legacydata/sb_cert_eventlog", refused: "no separator"},
		{file: "eventlogs/tpm/host-gmes.bin", refused: "no separator"},
		{file: "eventlogs/tpm/debian-10.bin", refused: "digests of sha256"},
	} {
		log, err := ParseLog(readFile(t, filepath.Join(folder, c.file)))
		if err != nil {
			t.Fatal(err)
		}
		p, err := fromLog(t, log)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v, want %q", c.file, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		if !slices.Equal(p.Banks(), c.banks) || p.Log.Locality != c.locality {
			t.Errorf("%s: banks %v, locality %d", c.file, p.Banks(), p.Log.Locality)
		}
		for r := range Register(8) {
			if reason := openReason(p, r); (c.open[r] == "") != (reason == "") || !strings.Contains(reason, c.open[r]) {
				t.Errorf("%s: %v is open: %q, want %q", c.file, r, reason, c.open[r])
			}
		}
		for r := Register(9); r < 15; r++ {
			if reason := openReason(p, r); (reason != "") != (r == 10 && len(c.open) > 0) {
				t.Errorf("%s: %v is open: %q", c.file, r, reason)
			}
		}
		learnedAsLogged(t, c.file, log, p)
		if c.learned != "" && wayOf(t, log) != c.learned {
			t.Errorf("%s: %s, want %s", c.file, wayOf(t, log), c.learned)
		}
		if _, err := json.Marshal(p.Log.Events); err != nil {
			t.Errorf("%s: %v", c.file, err)
		}
		for _, e := range p.Log.Events {
			if err := e.From().Check(); err != nil {
				t.Errorf("%s: %v", c.file, err)
			}
		}
	}
}

// learnedAsLogged holds PCR 0, 2, 3 and 6 to what the log leads to: nothing of them is the image's.
func learnedAsLogged(t *testing.T, name string, log Log, p Prediction) {
	t.Helper()
	for _, bank := range p.Banks() {
		predicted, err := p.Values(bank)
		if err != nil {
			t.Fatal(err)
		}
		logged, err := log.Replay(bank)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []Register{0, 2, 3, 6} {
			if openReason(p, r) == "" && !predicted[r].Equal(logged[r]) {
				t.Errorf("%s: %v (%v) is %v, the machine had %v", name, r, bank, predicted[r], logged[r])
			}
		}
	}
}

// wayOf says in words what is learned of PCR 4 and 5.
func wayOf(t *testing.T, log Log) string {
	t.Helper()
	events, _, err := FirmwareEvents(log)
	if err != nil {
		t.Fatal(err)
	}
	var ways []string
	for _, r := range []Register{4, 5} {
		var words []string
		for _, e := range events {
			if e.Register != r {
				continue
			}
			word := map[EventType]string{EvSeparator: "separator", EvGPT: "table"}[e.Type]
			switch s := e.From(); {
			case word != "":
			case s.Kind == FromAction:
				word, _, _ = strings.Cut(s.Name, " ")
			default:
				word = s.File[strings.LastIndex(s.File, `\`)+1:]
			}
			words = append(words, word)
		}
		ways = append(ways, strings.Join(words, ", "))
	}
	return strings.Join(ways, "; ")
}

// TestLogsOfOtherBoots changes the log of a boot as other firmware, and other boots, have it.
func TestLogsOfOtherBoots(t *testing.T) {
	log := recordedLog(t, "ovmf-2025.02")
	usual := values(t, predictedFromLog(t, log))
	place := func(events []Event, r Register, kind EventType) int {
		return slices.IndexFunc(events, func(e Event) bool { return e.Register == r && e.Type == kind })
	}
	event := func(r Register, kind EventType, data string) Event {
		return Event{Register: r, Type: kind, Data: []byte(data), Digests: DigestsOf([]byte(data), log.Banks...)}
	}
	program := func(path ...byte) Event {
		return event(4, EvBootServicesApplication, string(append(make([]byte, 32), path...)))
	}
	before := func(r Register, kind EventType, more ...Event) func([]Event) []Event {
		return func(events []Event) []Event { return slices.Insert(events, place(events, r, kind), more...) }
	}
	tried := []Event{event(4, EvEFIAction, returningOption), event(4, EvEFIAction, callingOption)}
	volume := efi.VolumePath(efi.GUID{1}, efi.GUID{2})
	onDisk := append(efi.PCIPath(3)[:12], efi.FilePath(efi.Partition{Number: 1}, "EFI/evil.efi")...)
	for _, c := range []struct {
		name   string
		change func([]Event) []Event
		// open are the registers that are not predicted any more, and moved those whose values are others.
		open, moved []Register
		reason      string
	}{
		{name: "an entry was tried that did not start", change: before(4, EvBootServicesApplication, tried...), moved: []Register{4, 10}},
		{
			name: "a program of the firmware was tried first", change: before(4, EvBootServicesApplication, append([]Event{program(volume...)}, tried...)...),
			moved: []Register{4, 10},
		},
		{
			name: "a program of a disk was tried first", change: before(4, EvBootServicesApplication, append([]Event{program(efi.PCIPath(3)...)}, tried...)...),
			open: []Register{4, 5, 8, 9, 10, 12, 14}, reason: "another program",
		},
		{
			name: "a program of a disk was started before the machine was ready to boot", change: before(4, EvEFIAction, program(onDisk...)),
			open: []Register{4, 5, 8, 9, 10, 12, 14}, reason: "another program",
		},
		{
			name: "boot attempts are not measured", change: before(4, EvEFIAction, event(4, EvOmitBootDeviceEvents, "BOOT ATTEMPTS OMITTED")),
			moved: []Register{4, 10},
		},
		{
			name: "a separator of ones", change: func(events []Event) []Event {
				events[place(events, 6, EvSeparator)] = event(6, EvSeparator, "\xff\xff\xff\xff")
				return events
			}, moved: []Register{6, 10},
		},
		{
			name: "a separator of an error", change: func(events []Event) []Event {
				events[place(events, 3, EvSeparator)] = event(3, EvSeparator, "\x01\x00\x00\x00")
				return events
			}, open: []Register{3, 10}, reason: "met an error",
		},
		{
			name: "no separator", change: func(events []Event) []Event {
				at := place(events, 2, EvSeparator)
				return slices.Delete(events, at, at+1)
			}, open: []Register{2, 10}, reason: "no separator",
		},
		{
			name: "types of vendors, devices that are measured, tables", change: before(0, EvSeparator,
				event(0, EvPostCode, "ACPI DATA"), event(1, EvHandOffTables, "SMBIOS"), event(2, EvSPDMFirmwareBlob, "a blob"), event(6, EventType(0x90000001), "a vendor's"),
				event(0, EvNoAction, "says nothing")),
			moved: []Register{0, 1, 2, 6, 10},
		},
		{name: "shim's variables", change: func(events []Event) []Event {
			return append(events, event(14, EvIPL, "MokList"), event(8, EvIPL, "grub_cmd: x"))
		}},
		{
			name: "a program measures its configuration into PCR 5, and a variable into PCR 7", change: func(events []Event) []Event {
				return append(events, event(5, EvEventTag, "loader.conf"), event(7, EvVariableAuthority, "SbatLevel"))
			},
		},
		{
			name: "firmware measures into PCR 12", change: before(0, EvSeparator, event(12, EvIPL, "a setting")),
			open: []Register{12}, reason: "firmware measures into it",
		},
		{
			name: "a table after the program", change: func(events []Event) []Event { return append(events, event(1, EvHandOffTables, "late")) },
			open: []Register{1, 10}, reason: "after the program was started",
		},
		{
			name: "the firmware was not left", change: func(events []Event) []Event {
				return slices.DeleteFunc(events, func(e Event) bool { return strings.HasPrefix(string(e.Data), "Exit Boot") })
			}, open: []Register{5, 10}, reason: "two steps out of the firmware",
		},
		{
			name: "the tables of two disks", change: before(5, EvGPT, event(5, EvGPT, string(otherTable(t)))),
			open: []Register{5, 10}, reason: "partition tables of 2 disks",
		},
		{
			name: "no table", change: func(events []Event) []Event {
				return slices.DeleteFunc(events, func(e Event) bool { return e.Type == EvGPT })
			}, open: []Register{5, 10}, reason: "no partition table",
		},
		{
			name: "a table without GUIDs", change: func(events []Event) []Event {
				events[place(events, 5, EvGPT)].Type = EvGPT2
				return events
			}, open: []Register{5, 10}, reason: "another form",
		},
	} {
		p := predictedFromLog(t, changed(log, c.change))
		got := values(t, p)
		for r := range Register(16) {
			isOpen, isMoved := slices.Contains(c.open, r) || r == 8, slices.Contains(c.moved, r)
			if (openReason(p, r) != "") != isOpen || !isOpen && usual[r].Equal(got[r]) == isMoved {
				t.Errorf("%s: %v: %q, moved %v", c.name, r, openReason(p, r), !usual[r].Equal(got[r]))
			}
			if isOpen && r < 8 && !strings.Contains(openReason(p, r), c.reason) {
				t.Errorf("%s: %v: %q, want %q", c.name, r, openReason(p, r), c.reason)
			}
		}
	}
}

// TestDriverOfADisk refuses the log of a boot in which a variable had the firmware start a driver of a disk: PCR 2 would be learned with it.
func TestDriverOfADisk(t *testing.T) {
	recording, table := recordedLog(t, "ovmf-2025.02"), testTable(t)
	own := table.Partitions[0]
	partition := efi.Partition{Number: 1, First: own.FirstLBA, Sectors: 5, GUID: efi.MustGUID(own.GUID.String())}
	file := efi.FilePath(partition, "EFI/evil.efi")
	for _, kind := range []EventType{EvBootServicesDriver, EvRuntimeServicesDriver} {
		for name, path := range map[string][]byte{"disk": file, "firmware": efi.VolumePath(efi.GUID{1}, efi.GUID{2}), "ROM": efi.PCIPath(3)} {
			data := append(make([]byte, 32), path...)
			_, err := fromLog(t, changed(recording, func(events []Event) []Event {
				return slices.Insert(events, 0, Event{Register: 2, Type: kind, Data: data, Digests: DigestsOf(data, recording.Banks...)})
			}))
			if refused := err != nil && strings.Contains(err.Error(), `a driver out of a file in this boot ("\\EFI\\evil.efi")`); refused != (name == "disk") || err != nil && !refused {
				t.Errorf("%v of a %s: %v", kind, name, err)
			}
		}
	}
}

// otherTable is what firmware measures of another disk.
func otherTable(t testing.TB) []byte {
	table := *testTable(t)
	header := slices.Clone(table.Header)
	header[56]++ // the disk's GUID
	table.Header = header
	return table.Event()
}

// TestOwnTableAmongSeveral takes the log of a boot of an image with this table, on a machine with two disks.
func TestOwnTableAmongSeveral(t *testing.T) {
	log := changed(recordedLog(t, "ovmf-2025.02"), func(events []Event) []Event {
		at := slices.IndexFunc(events, func(e Event) bool { return e.Type == EvGPT })
		table := func(data []byte) Event {
			return Event{Register: 5, Type: EvGPT, Data: data, Digests: DigestsOf(data, SHA1, SHA256, SHA384, SHA512)}
		}
		return slices.Replace(events, at, at+1, table(otherTable(t)), table(testTable(t).Event()))
	})
	p := predictedFromLog(t, log)
	replayed, err := log.Replay(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, p)[5]; !got.Equal(replayed[5]) {
		t.Errorf("PCR 5 is %v, want %v: %s", got, replayed[5], openReason(p, 5))
	}
	var origins []Origin
	for _, e := range p.Log.Of(5) {
		if e.Type == EvGPT {
			origins = append(origins, e.Origin)
		}
	}
	if !slices.Equal(origins, []Origin{Learned, Derived}) {
		t.Errorf("tables are %v", origins)
	}
}

// TestEntriesOfTheImagesDisk puts boot entries into a log that lead to a partition: one of the image's is made for where that is now.
func TestEntriesOfTheImagesDisk(t *testing.T) {
	table := testTable(t)
	own := table.Partitions[0]
	partition := efi.Partition{Number: 1, First: own.FirstLBA, Sectors: own.LastLBA - own.FirstLBA + 1, GUID: efi.MustGUID(own.GUID.String())}
	earlier := partition
	earlier.First, earlier.Sectors = 34, 5
	gone := partition
	gone.GUID[3]++
	second := partition
	second.Number = 2
	recording := recordedLog(t, "ovmf-2025.02")
	with := func(p efi.Partition, kind EventType, whole bool) Log {
		value := efi.LoadOption(efi.OptionActive, "Linux", efi.FilePath(p, "EFI/BOOT/BOOTX64.EFI"), nil)
		name := efi.UTF16("Boot0007")
		data := make([]byte, 32)
		binary.LittleEndian.PutUint64(data[16:], uint64(len(name)/2))
		binary.LittleEndian.PutUint64(data[24:], uint64(len(value)))
		data = append(append(data, name...), value...)
		hashed := value
		if whole {
			hashed = data
		}
		e := Event{Register: 1, Type: kind, Data: data, Digests: DigestsOf(hashed, recording.Banks...)}
		return changed(recording, func(events []Event) []Event {
			at := slices.IndexFunc(events, func(e Event) bool { return e.Register == 1 && e.Type == EvSeparator })
			return slices.Insert(events, at, e)
		})
	}
	for _, whole := range []bool{false, true} {
		kind := map[bool]EventType{false: EvVariableBoot, true: EvVariableBoot2}[whole]
		here := with(partition, kind, whole)
		want, err := here.Replay(SHA256)
		if err != nil {
			t.Fatal(err)
		}
		for _, log := range []Log{here, with(earlier, kind, whole)} {
			p := predictedFromLog(t, log)
			if got := values(t, p)[1]; !got.Equal(want[1]) {
				t.Errorf("PCR 1 is %v, want %v: %s", got, want[1], openReason(p, 1))
			}
			if what := whats(p.Log.Of(1)); !slices.ContainsFunc(what, func(s string) bool { return strings.Contains(s, "with the image's partition ESP") }) {
				t.Errorf("PCR 1 is of %q", what)
			}
		}
	}
	for _, elsewhere := range []efi.Partition{gone, second} {
		if p := predictedFromLog(t, with(elsewhere, EvVariableBoot, false)); !strings.Contains(openReason(p, 1), `variable Boot0007 ("Linux") leads to a partition that is not on the image's disk`) {
			t.Errorf("PCR 1: %q", openReason(p, 1))
		}
	}
	unknown := with(partition, EvVariableBoot, false)
	for i, e := range unknown.Events {
		if strings.Contains(e.What(), "Boot0007") {
			unknown.Events[i].Digests = DigestsOf([]byte("something else"), recording.Banks...)
		}
	}
	if p := predictedFromLog(t, unknown); !strings.Contains(openReason(p, 1), "its digest is not of what the log shows") {
		t.Errorf("PCR 1: %q", openReason(p, 1))
	}
}

func TestIsTable(t *testing.T) {
	good := testTable(t).Event()
	for name, data := range map[string][]byte{"empty": nil, "short": good[:gpt.HeaderSize+7], "cut": good[:len(good)-1], "longer": append(slices.Clone(good), 0), "no header": good[1:]} {
		if isTable(data) {
			t.Errorf("%s is taken for a table", name)
		}
	}
	if !isTable(good) {
		t.Error("a table is not known")
	}
}

func TestFirmwareEventsRefuses(t *testing.T) {
	good := recordedLog(t, "ovmf-2025.02")
	for want, change := range map[string]func(*Log){
		"a TPM's":           func(l *Log) { l.Format = FormatCCEL },
		"digests of sha256": func(l *Log) { l.Banks = []Bank{SHA384} },
		"locality 1":        func(l *Log) { l.Locality = 1 },
		"no separator": func(l *Log) {
			l.Events = slices.DeleteFunc(l.Events, func(e Event) bool { return e.Register == 4 && e.Type == EvSeparator })
		},
		"started no program": func(l *Log) {
			l.Events = slices.DeleteFunc(l.Events, func(e Event) bool { return e.Type == EvBootServicesApplication })
		},
	} {
		log := good
		log.Events = slices.Clone(good.Events)
		change(&log)
		if _, _, err := FirmwareEvents(log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestBanksOfALog predicts what the machine of a log has, and no other bank.
func TestBanksOfALog(t *testing.T) {
	log := changed(recordedLog(t, "ovmf-2025.02"), func(events []Event) []Event {
		for i, e := range events {
			events[i].Digests = Digests{SHA1: e.Digests[SHA1], SHA256: e.Digests[SHA256]}
		}
		return events
	})
	log.Banks = []Bank{SHA1, SHA256}
	p := predictedFromLog(t, log)
	if !slices.Equal(p.Banks(), []Bank{SHA256}) {
		t.Errorf("banks %v", p.Banks())
	}
	if _, err := p.Values(SHA384); err == nil {
		t.Error("a bank that the machine has not is predicted")
	}
	if len(values(t, p)) != 15 {
		t.Errorf("%v are predicted", p.Registers)
	}
}

// TestLocalityOfALog begins PCR 0 where the TPM did.
func TestLocalityOfALog(t *testing.T) {
	log := recordedLog(t, "ovmf-2025.02")
	usual := values(t, predictedFromLog(t, log))
	log.Locality = 3
	p := predictedFromLog(t, log)
	want, err := log.Replay(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, p); !got[0].Equal(want[0]) || got[0].Equal(usual[0]) || got[10].Equal(usual[10]) || !got[2].Equal(usual[2]) {
		t.Errorf("PCR 0 is %v, want %v", got[0], want[0])
	}
}

// TestLogFollows holds a log to the registers of its boot.
func TestLogFollows(t *testing.T) {
	log, measured := recordedLog(t, "ovmf-2025.02"), recordedValues(t, "ovmf-2025.02", SHA256)
	if err := log.Follows(SHA256, measured); err != nil {
		t.Error(err)
	}
	for name, l := range map[string]Log{
		"cut off":   changed(log, func(events []Event) []Event { return events[:len(events)-1] }),
		"reordered": changed(log, func(events []Event) []Event { events[0], events[1] = events[1], events[0]; return events }),
		"forged": changed(log, func(events []Event) []Event {
			events[1].Digests = DigestsOf([]byte("another firmware"), log.Banks...)
			return events
		}),
	} {
		if err := l.Follows(SHA256, measured); err == nil || !strings.Contains(err.Error(), "was cut off, or is of another boot") {
			t.Errorf("%s: %v", name, err)
		}
	}
	delete(measured, 6)
	if err := log.Follows(SHA256, measured); err == nil || !strings.Contains(err.Error(), "PCR 6 is not among the registers") {
		t.Error(err)
	}
}

// FuzzFirmwareEvents predicts by any log that can be read.
func FuzzFirmwareEvents(f *testing.F) {
	for _, name := range recorded {
		f.Add(readFile(f, "testdata/"+name+".log"))
	}
	b := testBoot(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, err := ParseLog(raw)
		if err != nil {
			return
		}
		b.Machine = Machine{Log: &MachineLog{Log: log, SHA256: Digest{1}}}
		p, err := Predict(b)
		if err != nil {
			return
		}
		for _, bank := range p.Banks() {
			if _, err := p.Values(bank); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range p.Log.Events {
			if err := e.From().Check(); err != nil {
				t.Fatal(err)
			}
		}
		for _, u := range p.Unpredicted {
			if len(u.Reason) > maxSourceText {
				t.Fatalf("a reason of %d bytes", len(u.Reason))
			}
		}
	})
}

// What tells a machine from all others of its kind is named, and nothing else is.
func TestOwnHardware(t *testing.T) {
	node := func(kind, subtype byte, body ...byte) []byte {
		return append([]byte{kind, subtype, byte(4 + len(body)), 0}, body...)
	}
	end := []byte{0x7f, 0xff, 4, 0}
	for name, c := range map[string]struct {
		path []byte
		own  bool
	}{
		"a network card":           {node(3, 0x0b, make([]byte, 33)...), true},
		"a SATA disk":              {node(3, 0x12, make([]byte, 6)...), true},
		"a stick":                  {node(3, 5, 0, 0), true},
		"an NVMe disk":             {node(3, 0x17, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0), true},
		"an NVMe disk like others": {node(3, 0x17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), false},
		"a SCSI disk":              {node(3, 2, 0, 0, 0, 0), false},
		"a program of firmware":    {node(4, 6, make([]byte, 16)...), false},
	} {
		for _, description := range []string{name, ""} {
			option, err := efi.ParseLoadOption(efi.LoadOption(efi.OptionActive, description, append(slices.Clone(c.path), end...), nil))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if own := ownHardware(option); (own != "") != c.own || own != "" && description != "" && own != description {
				t.Errorf("%s, called %q: %q", name, description, own)
			}
		}
	}
}
