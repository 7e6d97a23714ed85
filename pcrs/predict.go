package pcrs

import (
	"errors"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/authenticode"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// Machine is what a boot depends on beside the image.
type Machine struct {
	// Firmware is what its file says. The zero value is a build without Secure Boot, which decides PCR 7 and with it 4: of a machine
	// that exists, open the file (firmware.Open).
	Firmware Firmware
	// Vars are the firmware's variables before the boot.
	Vars firmware.Vars
	// ROMs are the expansion ROMs in the order in which firmware finds the devices.
	ROMs []firmware.ROM
	// Shape has a meaning only with Learned.
	Shape Shape
	// Learned is what cannot be derived of a machine of that shape; nil if it is not known, and PCR 0, 1 and 10 are then not predicted.
	Learned *LearnedData
	// Log is the log of another boot of such a machine, in the place of all of the above, where its firmware cannot be had.
	Log *MachineLog
}

// Boot is one boot of an image on a machine: firmware starts the image's UKI
// from the disk's only boot entry, without load options.
type Boot struct {
	Machine Machine
	UKI     *uki.UKI
	// Table is the partition table of the disk.
	Table *gpt.Table
	// NodeConfig is the node configuration as the node reads it, or nil where
	// the prediction is for all nodes.
	NodeConfig []byte
	// ESP holds what lies on the ESP beside the kernel image, by path with slashes:
	// "EFI/BOOT/BOOTX64.EFI.extra.d/a.cred", "loader/addons/b.addon.efi". The path
	// decides what a file is; the stub reads no others.
	ESP map[string][]byte
	// SMBIOSExtra are the values of io.systemd.stub.kernel-cmdline-extra= among the
	// SMBIOS strings of type 11, in order: the stub takes the first. In a
	// confidential VM it takes none, so there this must be empty.
	SMBIOSExtra []string
	// Fallback is a boot in which the firmware first tried another boot entry, which did not start: that of a slot on trial that is torn.
	Fallback bool
	// Medium is a boot of the medium that installs the image: Table is that one's, and all else is as in a boot of the disk.
	Medium bool
	// AllowUnprovenStub accepts a stub whose rules no boot has confirmed.
	AllowUnprovenStub bool
	// Banks are the banks to predict, out of PredictedBanks; none means all of them, or those that the machine's log has.
	Banks []Bank
	// Hardware adds to what a TPM has, or puts in its place, what the hardware of a confidential machine measures (package launch); nil
	// for other machines.
	Hardware func(Prediction) (Prediction, error)
}

// Prediction is what a boot will measure.
type Prediction struct {
	// Log holds the predicted events in the order in which they happen, for those of the boot's Banks that the register has.
	Log Log
	// Registers are those that the log predicts, ascending. One without events stays zero.
	Registers []Register
	// Unpredicted are the other registers of a boot, each with the reason.
	Unpredicted []Unpredicted
}

// Unpredicted is a register that a prediction says nothing about.
type Unpredicted struct {
	Register Register
	Reason   string
}

// Predict computes the events of a boot. It predicts the state when the node's
// agent answers its first challenge: PCR 15 is still zero. It fails wherever a
// rule is missing.
func Predict(b Boot) (Prediction, error) {
	if b.UKI == nil || b.Table == nil {
		return Prediction{}, errors.New("predict boot: the kernel image or the partition table is missing")
	}
	stub := b.UKI.Stub
	if !stub.Proven && !b.AllowUnprovenStub {
		return Prediction{}, fmt.Errorf("predict boot: systemd-stub %s: its rules were only read in the source, and no boot of it was compared with a prediction; "+
			"use Debian's stub of systemd %s, or accept it with --unproven-stub", stub.Version, uki.ProvenStubs())
	}
	p := &predictor{boot: b, stub: stub}
	steps := []func() error{p.platform, p.secureBoot, p.optionROMs, p.bootAttempt}
	if b.Machine.Log != nil {
		steps = []func() error{p.fromLog}
	}
	for _, step := range append(steps, p.startUKI, p.stubEvents, p.kernel, p.bootAggregate, p.nodeConfig) {
		if err := step(); err != nil {
			return Prediction{}, fmt.Errorf("predict boot: %w", err)
		}
	}
	if err := p.hash(); err != nil {
		return Prediction{}, fmt.Errorf("predict boot: %w", err)
	}
	if b.Hardware == nil {
		return p.prediction(), nil
	}
	return b.Hardware(p.prediction())
}

// Banks returns the banks that the prediction has values of.
func (p Prediction) Banks() []Bank {
	if len(p.Log.Banks) == 0 {
		return PredictedBanks()
	}
	return p.Log.Banks
}

// Values replays the log for the predicted registers: PCRs in bank, other registers in their only one (Register.In).
func (p Prediction) Values(bank Bank) (Values, error) {
	out, err := p.Log.valuesOf(p.Registers, bank)
	if err != nil {
		return nil, err
	}
	for _, r := range p.Registers {
		if _, ok := out[r]; !ok && r.Extended() {
			out[r] = p.Log.start(r.In(bank), r)
		}
	}
	return out, nil
}

// predictor collects events step by step, in the order of the boot; each of its methods is a step, or a part of one.
type predictor struct {
	boot  Boot
	stub  uki.Stub
	state secureBootState
	databases
	authorities map[string]bool // entries of db that were measured
	policy      string          // the word of the command line that gives IMA a policy or another form
	open        []Unpredicted   // registers that stay open, with the reason
	events      []Event
	handover
}

func (p *predictor) add(events ...Event) { p.events = append(p.events, events...) }

// leaveOpen says that registers are not predicted, and why; the first reason stays.
func (p *predictor) leaveOpen(reason string, registers ...Register) {
	for _, r := range registers {
		p.open = append(p.open, Unpredicted{r, reason})
	}
}

func (p *predictor) prediction() Prediction {
	p.events = slices.DeleteFunc(p.events, func(e Event) bool {
		return slices.ContainsFunc(p.open, func(u Unpredicted) bool { return u.Register == e.Register })
	})
	out := Prediction{Log: Log{Events: p.events, Banks: p.boot.Banks, Locality: p.locality()}}
	for r := range Register(16) {
		if reason := p.unpredicted(r); reason != "" {
			out.Unpredicted = append(out.Unpredicted, Unpredicted{r, reason})
			continue
		}
		out.Registers = append(out.Registers, r)
	}
	return out
}

// unpredicted says why a register is not predicted, or nothing.
func (p *predictor) unpredicted(r Register) string {
	learned := p.boot.Machine.Learned != nil || p.boot.Machine.Log != nil
	for _, u := range p.open {
		if u.Register == r {
			return u.Reason
		}
	}
	switch {
	case r == 10 && slices.ContainsFunc(p.open, func(u Unpredicted) bool { return u.Register < 10 }):
		return "the kernel's IMA measures PCR 0 to 9 into it, and not all of those are predicted"
	case r == 0 && !learned:
		return "the firmware changes its own code in memory before it measures it, and no boot of this machine was learned (hullmark learn)"
	case r == 1 && !learned:
		return "depends on processors, memory and devices, and no boot of this machine was learned (hullmark learn)"
	case r == 8 && p.boot.NodeConfig == nil:
		return "differs per node: it holds the node's configuration"
	case r == 10 && !learned:
		return "the kernel's IMA measures PCR 0 to 9 into it, and those include 0 and 1"
	case r == 10 && len(p.boot.Banks) > 0 && !slices.Contains(p.boot.Banks, SHA256):
		return "IMA hashes the registers of bank sha256, which was not asked for"
	case r == 10 && p.policy != "":
		return fmt.Sprintf("the kernel command line has %s, so IMA measures what runs", p.policy)
	}
	return ""
}

// platform is what the firmware measures of itself and of the machine before it looks for something to boot (PFP §3.3.4.1 and §3.3.4.2).
func (p *predictor) platform() error {
	m, entries := p.boot.Machine, p.bootEntries()
	if m.Learned == nil {
		return nil
	}
	if err := m.Learned.fits(m); err != nil {
		return fmt.Errorf("learned data: %w", err)
	}
	p.add(m.firmwareEvents()...)
	p.add(m.platformEvents()...)
	p.add(entries...)
	return nil
}

// bootAggregate is what IMA measures when the kernel starts, before anything measures into PCR 8. The kernel is taken to have
// IMA, as distributions build it, and no policy but what the command line says.
func (p *predictor) bootAggregate() error {
	if p.unpredicted(10) != "" {
		return nil
	}
	if err := p.hash(); err != nil {
		return err
	}
	values, err := Log{Events: p.events, Locality: p.locality()}.Replay(SHA256)
	if err != nil {
		return err
	}
	e, err := BootAggregate(values)
	if err != nil {
		return err
	}
	e.Digests = predictedOnly(e.Digests)
	p.add(e)
	return nil
}

// optionROMs are measured, signed or not, and add nothing to PCR 7: OVMF starts all of them, whatever Secure Boot says
// (PcdOptionRomImageVerificationPolicy), because the host that gives them also gives the firmware. Under SEV it verifies them.
func (p *predictor) optionROMs() error {
	for _, rom := range p.boot.Machine.ROMs {
		events, err := romEvents(rom)
		if err != nil {
			return err
		}
		if p.state == secureBootOn && p.boot.Hardware != nil {
			return errors.New("option ROMs together with Secure Boot are not supported on confidential machines; start the machine with an empty ROM file for that device")
		}
		p.add(events...)
	}
	return nil
}

// callingOption is what firmware measures each time when it starts a boot entry (PFP §10.4.1).
const callingOption = "Calling EFI Application from Boot Option"

// returningOption is what it measures when an entry did not start, or came back.
const returningOption = "Returning from EFI Application from Boot Option"

// leavingFirmware is what it measures when Linux takes over (PFP §10.4.1).
var leavingFirmware = []string{"Exit Boot Services Invocation", "Exit Boot Services Returned with Success"}

// bootAttempt is what firmware measures when it is ready to boot (PFP §3.3.4, §10.4.1).
func (p *predictor) bootAttempt() error {
	p.add(action(4, callingOption))
	for r := Register(0); r <= 6; r++ {
		if r > 1 || p.boot.Machine.Learned != nil {
			p.add(separator(r))
		}
	}
	return nil
}

// startUKI is the table of the disk, and the kernel image if firmware takes it.
func (p *predictor) startUKI() error {
	refused, err := p.loads(p.boot.UKI.PE)
	if errors.Is(err, authenticode.ErrNotJudged) { // Where the machine boots, firmware took it.
		p.leaveOpen(fmt.Sprintf("by which entry of db the kernel image starts is not known: %v", err), 7)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("kernel image: %w", err)
	}
	if refused != "" {
		return fmt.Errorf("kernel image: Secure Boot is on, and firmware does not start it: %s; sign it with a certificate in db (hullmark keys sign), or enrol the one that signed it", refused)
	}
	if p.boot.Fallback {
		p.add(action(4, returningOption), action(4, callingOption))
	}
	if p.boot.Machine.Log == nil { // A log says at which place it is.
		p.add(p.tableEvent())
	}
	p.add(authenticodeEvent(4, p.boot.UKI.PE, Source{Kind: FromProgram, File: uki.Path}))
	return nil
}

// tableEvent is the partition table of the image's disk.
func (p *predictor) tableEvent() Event {
	return dataEvent(5, EvGPT, p.boot.Table.Event(), Source{Kind: FromPartitionTable, Count: len(p.boot.Table.Partitions)})
}

// notePolicy remembers a parameter of IMA's, such as ima_policy= or ima_hash=: with it, IMA measures more, or otherwise.
func (p *predictor) notePolicy(cmdline string) {
	for word := range strings.FieldsSeq(cmdline) {
		// The kernel takes a dash for an underscore in a name, and drops quotes (kernel/params.c).
		if name, _, _ := strings.Cut(strings.Trim(word, `"`), "="); strings.HasPrefix(strings.ReplaceAll(name, "-", "_"), "ima_") {
			p.policy = word
		}
	}
}

func (p *predictor) nodeConfig() error {
	if p.boot.NodeConfig == nil {
		return nil
	}
	e := dataEvent(8, EvUserSpace, hullmark.ConfigEvent(p.boot.NodeConfig), Source{Kind: FromNodeConfig, Bytes: len(p.boot.NodeConfig)})
	e.Origin = Node
	p.add(e)
	return nil
}

// hash computes the digests of the events that have none yet, and leaves no digests but those of the boot's banks.
func (p *predictor) hash() error {
	if len(p.boot.Banks) == 0 {
		p.boot.Banks = PredictedBanks()
	}
	for _, bank := range p.boot.Banks {
		if !slices.Contains(PredictedBanks(), bank) {
			return fmt.Errorf("bank %v is not predicted; want some of %v", bank, PredictedBanks())
		}
	}
	for i := range p.events {
		if err := p.events[i].hash(p.boot.Banks); err != nil {
			return err
		}
		digests := maps.Clone(p.events[i].Digests) // learned ones are shared
		maps.DeleteFunc(digests, func(b Bank, _ Digest) bool { return !slices.Contains(p.boot.Banks, b) })
		p.events[i].Digests = digests
	}
	return nil
}

// hash computes the digests of an event that was made with a content, and lets go of that.
// Each bank is a pass over the bytes, which are not copied.
func (e *Event) hash(banks []Bank) error {
	if e.content == nil {
		return nil
	}
	e.Digests = Digests{}
	for _, bank := range banks {
		if !slices.Contains(e.Register.Banks(), bank) {
			continue
		}
		h := bank.Hash().New()
		if err := e.content(h); err != nil {
			return fmt.Errorf("%s: %w", e.What(), err)
		}
		e.Digests[bank] = h.Sum(nil)
	}
	e.content = nil
	return nil
}

// derived is an event whose digests are the hash of data, which the event does not keep.
func derived(r Register, t EventType, data []byte, source Source) Event {
	return Event{Register: r, Type: t, Digests: DigestsOf(data, r.Banks()...), Source: &source, Origin: Derived}
}

// large is an event whose digests are the hash of the pieces of data, one after the other; they are computed last.
func large(r Register, t EventType, source Source, pieces ...[]byte) Event {
	content := func(h hash.Hash) error {
		for _, piece := range pieces {
			h.Write(piece)
		}
		return nil
	}
	return Event{Register: r, Type: t, content: content, Source: &source, Origin: Derived}
}

// dataEvent is an event that keeps the data that is hashed.
func dataEvent(r Register, t EventType, data []byte, source Source) Event {
	e := derived(r, t, data, source)
	e.Data = data
	return e
}

func separator(r Register) Event {
	return dataEvent(r, EvSeparator, make([]byte, 4), Source{Kind: FromSeparator})
}

// action is a text without a NUL.
func action(r Register, text string) Event {
	return dataEvent(r, EvEFIAction, []byte(text), Source{Kind: FromAction, Name: text})
}

func authenticodeEvent(r Register, f *pe.File, source Source) Event {
	return Event{Register: r, Type: EvBootServicesApplication, content: f.Authenticode, Source: &source, Origin: Derived}
}
