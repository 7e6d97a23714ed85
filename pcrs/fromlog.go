package pcrs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/gpt"
)

// MachineLog is the log of a boot, by which a machine is known whose firmware cannot be had. It is the machine's own claim.
type MachineLog struct {
	Log
	// SHA256 is the digest of the log's file.
	SHA256 Digest
	// Quote is the quote whose values the log leads to; nil if none was shown.
	Quote *LogQuote
}

// LogQuote says what a quote proved of a log. Whose the key is, it does not say.
type LogQuote struct {
	// Key is the SHA-256 of the file with the key that signed.
	Key Digest `json:"key"`
	// Registers are those that the quote covers and to whose values the log leads, ascending.
	Registers []Register `json:"registers"`
}

// loggedRegisters are those that firmware extends. What it measures of itself, of the machine and of its settings, and how it comes to
// start something, is learned from a log.
var loggedRegisters = []Register{0, 1, 2, 3, 4, 5, 6, 7}

// firmwareLog is what the log of a boot says of the firmware: all that follows from no image.
type firmwareLog struct {
	// banks are those of the log that are predicted.
	banks []Bank
	// events are what firmware measured until it started the program that did not come back, in their order. Those of PCR 7 end where
	// entries of db follow that let programs start.
	events []Event
	// open are registers that no image's boot on this firmware is known of.
	open []Unpredicted
	// authority reports that the firmware measured an entry of db as EDK2 does.
	authority bool
}

func (f *firmwareLog) leaveOpen(r Register, format string, a ...any) {
	f.open = append(f.open, Unpredicted{r, brief(fmt.Sprintf(format, a...))})
}

// FirmwareEvents takes from the log of a boot what its firmware measured of itself, of the machine and of its settings: the events,
// with the digests of the banks that are predicted, and the registers that stay open for every image, with the reason. It fails if the
// log is not of a boot by firmware of UEFI.
func FirmwareEvents(log Log) ([]Event, []Unpredicted, error) {
	f, err := readFirmware(log)
	return f.events, f.open, err
}

// readFirmware parts a log at the program that firmware started for good.
func readFirmware(log Log) (f firmwareLog, err error) {
	if log.Format != FormatAgile || !slices.Contains(log.Banks, SHA256) {
		return f, errors.New("log: want a TPM's, with digests of sha256")
	}
	if !slices.Contains([]uint8{0, 3, 4}, log.Locality) {
		return f, fmt.Errorf("log: PCR 0 began with locality %d; 0, 3 and 4 exist", log.Locality)
	}
	f.banks = slices.DeleteFunc(PredictedBanks(), func(b Bank) bool { return !slices.Contains(log.Banks, b) })
	if i := slices.IndexFunc(log.Events, driverOfDisk); i >= 0 {
		return f, fmt.Errorf("log: firmware started a driver out of a file in this boot (%q), which is no part of the machine, and may do what it likes", fileIn(log.Events[i]))
	}
	ready := slices.IndexFunc(log.Events, func(e Event) bool { return e.Register == 4 && e.Type == EvSeparator })
	if ready < 0 {
		return f, errors.New("log: PCR 4 has no separator, by which firmware says that it goes on to boot")
	}
	begun := f.findProgram(log.Events, ready)
	if begun < 0 {
		return f, errors.New("log: firmware started no program in this boot")
	}
	f.take(log.Events, ready, begun)
	f.checkProgram(log.Events[begun])
	f.checkRest(log.Events[begun+1:])
	f.checkSeparators()
	return f, nil
}

// findProgram returns the place of the program that firmware started and that did not come back, or -1. One that did come back leaves
// open what it may have measured, unless it is part of the firmware; so does one of a disk that a variable Driver#### had it start before.
func (f *firmwareLog) findProgram(events []Event, ready int) int {
	from := ready
	for i := len(events) - 1; i > ready; i-- {
		if events[i].Register == 4 && events[i].Type == EvEFIAction && string(events[i].Data) == returningOption {
			from = i
			break
		}
	}
	for i, e := range events[:from+1] {
		if e.Type == EvBootServicesApplication && !fromVolume(e) && (i > ready || ofPartition(e)) {
			for _, r := range afterFirmware {
				f.leaveOpen(r, "firmware first started another program (%q), which came back: what that measures beside the image is not known", loadedFile(e))
			}
		}
	}
	if i := slices.IndexFunc(events[from+1:], func(e Event) bool { return e.Type == EvBootServicesApplication }); i >= 0 {
		return from + 1 + i
	}
	return -1
}

// pathOf is the device path that a program was loaded by, in EFI_IMAGE_LOAD_EVENT (PFP §10.2.3); empty if there is none.
func pathOf(e Event) []byte {
	const header = 32
	return e.Data[min(header, len(e.Data)):]
}

// fromVolume reports whether a program was loaded out of the firmware.
func fromVolume(e Event) bool {
	path := pathOf(e)
	return len(path) > 2 && binary.BigEndian.Uint16(path) == efi.NodeVolume
}

// ofPartition reports whether a program was loaded from a partition. Some firmware names no more than the file.
func ofPartition(e Event) bool {
	for nodes := pathOf(e); len(nodes) >= 4; {
		if binary.BigEndian.Uint16(nodes) == efi.NodeHardDrive {
			return true
		}
		nodes = nodes[min(max(4, int(binary.LittleEndian.Uint16(nodes[2:]))), len(nodes)):]
	}
	return false
}

// driverOfDisk reports whether a driver was loaded out of a file, as variables Driver#### name them, and not out of the firmware or an
// option ROM.
func driverOfDisk(e Event) bool {
	return (e.Type == EvBootServicesDriver || e.Type == EvRuntimeServicesDriver) && !fromVolume(e) && fileIn(e) != ""
}

// take learns the events until the program.
func (f *firmwareLog) take(events []Event, ready, begun int) {
	settings := ready // Settings of Secure Boot end with the separator of PCR 7, which some firmware measures after that of PCR 4.
	for i, e := range events[:begun] {
		if e.Register == 7 && e.Type == EvSeparator {
			settings = max(settings, i)
		}
	}
	for i, e := range events {
		switch {
		case e.Type == EvNoAction:
		case e.Register == 7 && e.Type == EvVariableAuthority && i > settings:
			// It let a program of that boot start.
		case i < begun && slices.Contains(loggedRegisters, e.Register):
			f.events = append(f.events, f.learned(e))
		case i < begun && e.Register.PCR() && e.Register < 16 && !f.isOpen(e.Register):
			f.leaveOpen(e.Register, "firmware measures into it: %s", e.What())
		}
	}
	entries := databaseOf(events)
	f.authority = slices.ContainsFunc(events, func(e Event) bool {
		name, value, ok := valueOf(e)
		return ok && e.Type == EvVariableAuthority && name == "db" && entries[string(value)]
	})
}

func (f *firmwareLog) isOpen(r Register) bool {
	return slices.ContainsFunc(f.open, func(u Unpredicted) bool { return u.Register == r })
}

// learned is an event of the log as a prediction has it.
func (f *firmwareLog) learned(e Event) Event {
	source := e.From().bounded()
	digests := Digests{}
	for _, bank := range f.banks {
		digests[bank] = e.Digests[bank]
	}
	return Event{Register: e.Register, Type: e.Type, Digests: digests, Data: e.Data, Source: &source, Origin: Learned}
}

// checkProgram wants the program and the partition table where firmware is known to measure them.
func (f *firmwareLog) checkProgram(program Event) {
	elsewhere := []Register{}
	if program.Register != 4 {
		elsewhere = append(elsewhere, program.Register)
	}
	for _, e := range f.events {
		if e.Register != 5 && (e.Type == EvGPT || e.Type == EvGPT2) {
			elsewhere = append(elsewhere, e.Register)
		}
	}
	if len(elsewhere) == 0 {
		return
	}
	for _, r := range append(elsewhere, 4, 5) {
		if !f.isOpen(r) {
			f.leaveOpen(r, "this firmware measures into %v what it starts, and rules for that were never compared with a boot", elsewhere[0])
		}
	}
}

// checkRest looks at what came after the program was started: it is the program's, but for the two steps out of the firmware, which
// are the same for every Linux that gets out at once.
func (f *firmwareLog) checkRest(rest []Event) {
	var left []string
	for _, e := range rest {
		switch {
		case e.Type == EvNoAction:
		case e.Register == 5 && e.Type == EvEFIAction:
			left = append(left, string(shown(e.Data)))
		case slices.Contains([]Register{0, 1, 2, 3, 6}, e.Register) && !f.isOpen(e.Register):
			f.leaveOpen(e.Register, "%v was measured into it after the program was started: %s", e.Type, e.What())
		}
	}
	if !slices.Equal(left, leavingFirmware) {
		f.leaveOpen(5, "the log does not end with the two steps out of the firmware: %q", left)
	}
}

// checkSeparators wants what ends firmware's own measurements in each register (PFP §3.3.4): without it, or with that of an error, what
// the register holds is not that of an ordinary boot.
func (f *firmwareLog) checkSeparators() {
	for _, r := range loggedRegisters {
		at := slices.IndexFunc(f.events, func(e Event) bool { return e.Register == r && e.Type == EvSeparator })
		switch {
		case f.isOpen(r):
		case at < 0:
			f.leaveOpen(r, "the log has no separator in it")
		case !slices.Contains([]string{"\x00\x00\x00\x00", "\xff\xff\xff\xff"}, string(f.events[at].Data)):
			f.leaveOpen(r, "its separator (%x) says that the firmware met an error", shown(f.events[at].Data))
		}
	}
}

// fromLog puts the image's events among those of the firmware.
func (p *predictor) fromLog() error {
	f, err := readFirmware(p.boot.Machine.Log.Log)
	if err != nil {
		return err
	}
	if len(p.boot.Banks) == 0 {
		p.boot.Banks = f.banks
	}
	p.open = f.open
	p.state = p.boot.Machine.secureBootOf()
	p.authorities = map[string]bool{}
	boot := fmt.Sprintf("log %.16s", p.boot.Machine.Log.SHA256)
	for _, e := range f.events {
		if name, value, ok := valueOf(e); ok && e.Type == EvVariableAuthority && name == "db" {
			p.authorities[string(value)] = true // Of an option ROM, say.
		}
		e.Source.Boot = boot
		switch {
		case e.Register == 5 && e.Type == EvGPT:
			e = p.tableOf(f, e)
		case e.Register == 1 && (e.Type == EvVariableBoot || e.Type == EvVariableBoot2):
			e = p.entryOf(e)
		}
		p.add(e)
	}
	p.checkTables(f)
	if p.state != secureBootOn {
		return nil
	}
	if !f.authority {
		p.leaveOpen("Secure Boot is on, and the log shows no entry of db as this firmware measures one", 7)
	}
	return p.databasesFromLog(f.events)
}

// tableOf puts the table of the image's disk in the place of that of the log's: if there are several, in that of its own.
func (p *predictor) tableOf(f firmwareLog, logged Event) Event {
	own := p.tableEvent()
	if tables(f) > 1 && !own.Digests[SHA256].Equal(logged.Digests[SHA256]) {
		return logged
	}
	return own
}

// checkTables leaves PCR 5 open if it is not known which table is the image's.
func (p *predictor) checkTables(f firmwareLog) {
	own := p.tableEvent().Digests[SHA256]
	n := tables(f)
	found := slices.ContainsFunc(f.events, func(e Event) bool { return e.Register == 5 && e.Digests[SHA256].Equal(own) })
	odd := slices.ContainsFunc(f.events, func(e Event) bool {
		return e.Register == 5 && (e.Type == EvGPT2 || e.Type == EvGPT && !isTable(e.Data))
	})
	switch {
	case n == 0:
		p.leaveOpen("the log has no partition table in it", 5)
	case odd:
		p.leaveOpen("the log's partition table has another form than is known here", 5)
	case n > 1 && !found:
		p.leaveOpen(fmt.Sprintf("the log has the partition tables of %d disks, and none is the image's: take the log of a boot of an image of these", n), 5)
	}
}

// tables counts the partition tables in PCR 5.
func tables(f firmwareLog) (n int) {
	for _, e := range f.events {
		if e.Register == 5 && (e.Type == EvGPT || e.Type == EvGPT2) {
			n++
		}
	}
	return n
}

// isTable reports whether data is a UEFI_GPT_DATA (PFP §10.4.3).
func isTable(data []byte) bool {
	const count = gpt.HeaderSize
	return len(data) >= count+8 && bytes.HasPrefix(data, []byte("EFI PART")) &&
		binary.LittleEndian.Uint64(data[count:]) == uint64(len(data)-count-8)/gpt.EntrySize && (len(data)-count-8)%gpt.EntrySize == 0
}

// entryOf decides about a variable that the firmware boots by. An entry that leads to the image's own partition is made anew from the
// image's table; one that leads to another partition is of a system that may be gone.
func (p *predictor) entryOf(e Event) Event {
	name, size, ok := variableOf(e.Data)
	if !ok || size > uint64(len(e.Data)) || !strings.HasPrefix(name, "Boot") || name == "BootOrder" {
		return e
	}
	at := len(e.Data) - int(size)
	option, err := efi.ParseLoadOption(e.Data[at:])
	if err != nil {
		return e // It starts nothing, whatever disk there is.
	}
	data, led := p.relocated(e.Data, option)
	switch {
	case led == "":
		if own := ownHardware(option); own != "" {
			e.Source.Parts = []Source{{Kind: FromHardware, Name: brief(printableText(own))}}
		}
		return e
	case data == nil:
		p.leaveOpen(brief(fmt.Sprintf("variable %s (%q) leads to a partition that is not on the image's disk, and what becomes of it is not known: "+
			"take the log of a boot of an image of these", printableText(name), printableText(option.Description))), 1)
		return e
	}
	hashed := at // Firmware hashes the variable's value, or all of the data (PFP §10.4.2.6).
	if SHA256.sum(e.Data).Equal(e.Digests[SHA256]) {
		hashed = 0
	} else if !SHA256.sum(e.Data[at:]).Equal(e.Digests[SHA256]) {
		p.leaveOpen(fmt.Sprintf("variable %s leads to the image's disk, and its digest is not of what the log shows", printableText(name)), 1)
		return e
	}
	return derived(1, e.Type, data[hashed:], Source{Kind: FromBootVariable, Name: name, Section: led, Bytes: int(size)})
}

// ownHardware is the piece of hardware that an entry leads to, if its path or its name tell it from all others, so that another machine of
// the kind has another entry: a network card by its address, a disk by the number or the name that firmware gives it. So has what is
// plugged in for a while, such as the medium that the machine was installed from. It is empty for programs of the firmware, and for places
// where any machine of the kind has the same.
func ownHardware(option efi.Option) string {
	for _, n := range option.Nodes {
		switch n.Kind {
		case efi.NodeMAC, efi.NodeSATA, efi.NodeUSB:
			return cmp.Or(option.Description, "a device without a name")
		case efi.NodeNVMe:
			if len(n.Raw) == 16 && binary.LittleEndian.Uint64(n.Raw[8:]) != 0 {
				return cmp.Or(option.Description, "a device without a name")
			}
		}
	}
	return ""
}

// relocated returns the data of an entry whose path begins at a partition of a disk, with that partition where the image's table has it,
// and what that is called; no data if it is not the image's. The name is empty for other entries.
func (p *predictor) relocated(data []byte, option efi.Option) ([]byte, string) {
	for _, n := range option.Nodes {
		if n.Kind != efi.NodeHardDrive {
			continue
		}
		partition, ok := n.Partition()
		number := int(partition.Number)
		if !ok || number < 1 || number > len(p.boot.Table.Partitions) || efi.MustGUID(p.boot.Table.Partitions[number-1].GUID.String()) != partition.GUID {
			return nil, "another"
		}
		own := p.boot.Table.Partitions[number-1]
		moved := bytes.Clone(n.Raw)
		binary.LittleEndian.PutUint64(moved[8:], own.FirstLBA)
		binary.LittleEndian.PutUint64(moved[16:], own.LastLBA-own.FirstLBA+1)
		return bytes.Replace(data, n.Raw, moved, 1), own.Name
	}
	return nil, ""
}

// databasesFromLog takes db and dbx out of the variables that a log holds.
func (p *predictor) databasesFromLog(events []Event) (err error) {
	values := map[string][]byte{}
	for _, e := range events {
		if name, value, ok := valueOf(e); ok && e.Type == EvVariableDriverConfig {
			values[name] = value
		}
	}
	p.databases, err = openDatabases(values["db"], values["dbx"], values["dbt"])
	return err
}

// databaseOf are the entries of db in a log, as the firmware measures them.
func databaseOf(events []Event) map[string]bool {
	var p predictor
	out := map[string]bool{}
	if p.databasesFromLog(events) == nil {
		for _, entry := range p.allowed {
			out[string(entry.Raw)] = true
		}
	}
	return out
}

// secureBoot is the state that a log shows.
func (l Log) secureBoot() (state secureBootState) {
	for _, e := range l.Events {
		if s := e.From(); e.Register == 7 && !e.Unproven && s.Kind == FromSecureBoot {
			state = map[string]secureBootState{SecureBootOff: secureBootOff, SecureBootOn: secureBootOn}[s.Name]
		}
	}
	return state
}

// locality is the value that PCR 0 begins with.
func (p *predictor) locality() uint8 {
	if p.boot.Machine.Log == nil {
		return 0
	}
	return p.boot.Machine.Log.Locality
}

// valueOf is the name and the value of the variable that an event of a log measures; false if it is another event, or hashes
// something else.
func valueOf(e Event) (name string, value []byte, ok bool) {
	if e.Type != EvVariableDriverConfig && e.Type != EvVariableAuthority || !SHA256.sum(e.Data).Equal(e.Digests[SHA256]) {
		return "", nil, false
	}
	name, size, ok := variableOf(e.Data)
	if !ok || size > uint64(len(e.Data)) {
		return "", nil, false
	}
	return name, e.Data[uint64(len(e.Data))-size:], true
}

// Follows reports where the registers of a boot depart from those that the log leads to, of those that firmware alone extends. A log
// that was cut off, or is of another boot, does.
func (l Log) Follows(bank Bank, measured Values) error {
	replayed, err := l.Replay(bank)
	if err != nil {
		return err
	}
	for _, r := range loggedRegisters {
		switch {
		case len(measured[r]) == 0:
			return fmt.Errorf("log: %v is not among the registers that it is held against", r)
		case !replayed[r].Equal(measured[r]):
			return fmt.Errorf("log: %v: it leads to %v, and the machine has %v: it was cut off, or is of another boot", r, replayed[r], measured[r])
		}
	}
	return nil
}
