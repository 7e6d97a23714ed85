package launch

import (
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"

	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// PageOrder is the order in which a host adds pages to a TDX guest and has their content measured.
type PageOrder string

// The orders. Which one a host has depends on its monitor, not on the guest; a document names both values.
const (
	// Interleaved measures each page right after it was added, as KVM of Linux does, and GCE.
	Interleaved PageOrder = "interleaved"
	// AddedFirst adds all pages of a section before it measures them, as trees around QEMU 8.2 do.
	AddedFirst PageOrder = "added-first"
)

// MRTD returns the one event of the register pcrs.MRTD, for a whole OVMF image: variables and code.
func MRTD(image []byte, order PageOrder) (pcrs.Event, error) {
	sections, err := firmware.OpenTDX(image)
	if err != nil {
		return pcrs.Event{}, fmt.Errorf("MRTD: %w", err)
	}
	m := mrtd{sha512.New384()}
	var parts []pcrs.Source
	for _, s := range sections {
		if s.Augmented {
			continue
		}
		switch order {
		case Interleaved:
			for at := uint64(0); at < s.Size; at += firmware.PageSize {
				m.add(s.Address + at)
				m.content(s, at)
			}
		case AddedFirst:
			for at := uint64(0); at < s.Size; at += firmware.PageSize {
				m.add(s.Address + at)
			}
			for at := uint64(0); at < s.Size; at += firmware.PageSize {
				m.content(s, at)
			}
		default:
			return pcrs.Event{}, fmt.Errorf("MRTD: page order %q: %s and %s are known", order, Interleaved, AddedFirst)
		}
		parts = append(parts, part(fmt.Sprintf("%s at %#x, content measured: %t", sectionNames[s.Kind], s.Address, s.Measured), int(s.Size)))
	}
	return event(pcrs.MRTD, m.Sum(nil), pcrs.Derived, pcrs.Source{Kind: pcrs.FromLaunch, Name: "a TDX guest, pages " + string(order), Parts: parts}), nil
}

var sectionNames = map[firmware.TDXSectionKind]string{
	firmware.TDXCode: "code", firmware.TDXVariables: "variables", firmware.TDXHandOff: "list of memory", firmware.TDXMemory: "memory",
}

// mrtd is the measurement while a guest is built (Intel TDX Module 1.5 Base Architecture Specification §12.2.1).
type mrtd struct{ hash.Hash }

// record is the 128 bytes that name what is done to which address.
func (m mrtd) record(what string, address uint64) {
	var b [128]byte
	copy(b[:], what)
	binary.LittleEndian.PutUint64(b[16:], address)
	m.Write(b[:])
}

// add is TDH.MEM.PAGE.ADD.
func (m mrtd) add(address uint64) { m.record("MEM.PAGE.ADD", address) }

// content is TDH.MR.EXTEND for the chunks of a page, if the section is measured.
func (m mrtd) content(s firmware.TDXSection, page uint64) {
	const chunk = 256
	if !s.Measured {
		return
	}
	for at := page; at < page+firmware.PageSize; at += chunk {
		m.record("MR.EXTEND", s.Address+at)
		m.Write(s.Content[at : at+chunk])
	}
}

// TD is a TDX guest that QEMU starts from a disk.
type TD struct {
	// Firmware is a whole OVMF image: variables and code.
	Firmware []byte
	Order    PageOrder
	// MemoryMiB is the guest's memory.
	MemoryMiB int
	// Machine is what its boot depends on beside that: the variables, and the shape, of which the disk's slot counts.
	Machine pcrs.Machine
	// Platform are the events that cannot be derived, as LearnTD returns them; nil if no boot of such a machine was learned, and
	// RTMR 0 is then not predicted.
	Platform []pcrs.Event
}

// Predict computes MRTD and the RTMRs of a boot. boot is the prediction of the same boot for a TPM: the firmware extends the same
// events, into fewer registers (edk2, SecurityPkg/Library/TdxMeasurementCommon: PCR 1 and 7 are RTMR 0, 2 to 6 RTMR 1, 8 to 15
// RTMR 2). What only a TPM gets, the kernel's IMA and what user space extends, is in no RTMR.
func (t TD) Predict(boot pcrs.Prediction) (p pcrs.Prediction, err error) {
	first, err := MRTD(t.Firmware, t.Order)
	if err != nil {
		return p, err
	}
	p.Registers = []pcrs.Register{pcrs.RTMR(1), pcrs.RTMR(2), pcrs.RTMR(3), pcrs.MRTD}
	p.Log.Events = append(p.Log.Events, first)
	if t.Platform == nil {
		p.Unpredicted = []pcrs.Unpredicted{{Register: pcrs.RTMR(0), Reason: "it holds tables that the host makes, and no log of such a machine was learned"}}
	} else {
		platform, err := t.platform(boot)
		if err != nil {
			return pcrs.Prediction{}, err
		}
		p.Registers = slices.Insert(p.Registers, 0, pcrs.RTMR(0))
		p.Log.Events = append(p.Log.Events, platform...)
	}
	for _, e := range boot.Log.Events {
		if r := registerOf(e); r == pcrs.RTMR(1) || r == pcrs.RTMR(2) {
			moved, err := moved(e, r)
			if err != nil {
				return pcrs.Prediction{}, err
			}
			p.Log.Events = append(p.Log.Events, moved)
		}
	}
	return p, nil
}

// registerOf is the RTMR that an event of a TPM's register goes to; NoRegister if none.
func registerOf(e pcrs.Event) pcrs.Register {
	switch r := e.Register; {
	case e.Type == pcrs.EvUserSpace || r == 10:
		return pcrs.NoRegister
	case e.Type == pcrs.EvSeparator && r != 4 && r != 7:
		return pcrs.NoRegister // Of the registers that become one, one has its separator.
	case r == 1 || r == 7:
		return pcrs.RTMR(0)
	case r >= 2 && r <= 6:
		return pcrs.RTMR(1)
	case r >= 8 && r <= 15:
		return pcrs.RTMR(2)
	}
	return pcrs.NoRegister
}

// moved is an event in another register.
func moved(e pcrs.Event, r pcrs.Register) (pcrs.Event, error) {
	digest, ok := e.Digests[pcrs.SHA384]
	if !ok {
		return e, fmt.Errorf("%v: %s has no digest of bank %v; predict the boot with it", e.Register, e.What(), pcrs.SHA384)
	}
	e.Register, e.Digests = r, pcrs.Digests{pcrs.SHA384: digest}
	return e, nil
}

// platform returns the events of RTMR 0 in their order: the list of memory and the variables' volume, Secure Boot, what was
// learned, and the boot variables.
func (t TD) platform(boot pcrs.Prediction) ([]pcrs.Event, error) {
	events, err := TDEvents(t.Firmware, t.MemoryMiB)
	if err != nil {
		return nil, err
	}
	var secure, later []pcrs.Event
	separated := false
	for _, e := range boot.Log.Events {
		if e.Register != 7 {
			continue
		}
		if e, err = moved(e, pcrs.RTMR(0)); err != nil {
			return nil, err
		}
		if separated {
			later = append(later, e)
			continue
		}
		secure, separated = append(secure, e), e.Type == pcrs.EvSeparator
	}
	events = append(append(events, secure...), t.Platform...)
	for _, e := range t.Machine.BootVariables() {
		if e, err = moved(e, pcrs.RTMR(0)); err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return append(events, later...), nil
}

// TDEvents returns the first events of RTMR 0 of a guest that QEMU starts with a whole OVMF image: the list of its memory, and the
// volume of the variables.
func TDEvents(image []byte, memoryMiB int) ([]pcrs.Event, error) {
	sections, err := firmware.OpenTDX(image)
	if err != nil {
		return nil, err
	}
	if memoryMiB < 1 {
		return nil, fmt.Errorf("%d MiB of memory", memoryMiB)
	}
	list, err := handOff(sections, uint64(memoryMiB)<<20)
	if err != nil {
		return nil, err
	}
	events := []pcrs.Event{rtmr0(list, pcrs.EvHandOffTables2, part(fmt.Sprintf("list of %d MiB of memory", memoryMiB), len(list)))}
	for _, s := range sections {
		if s.Kind == firmware.TDXVariables {
			events = append(events, rtmr0(s.Content, pcrs.EvPlatformFirmwareBlob2, part("variables' volume", len(s.Content))))
		}
	}
	return events, nil
}

// rtmr0 is an event whose digest is the hash of data.
func rtmr0(data []byte, t pcrs.EventType, source pcrs.Source) pcrs.Event {
	return pcrs.Event{Register: pcrs.RTMR(0), Type: t, Digests: pcrs.DigestsOf(data, pcrs.SHA384), Source: &source, Origin: pcrs.Derived}
}

// LearnTD takes from the log of a TDX guest what cannot be derived of its machine: the events of RTMR 0 between the separator and
// the first boot variable, which are tables and settings that the host makes. The log is a claim; what a quote of the same boot
// shows confirms it, by a prediction that it leads to.
func LearnTD(log pcrs.Log) ([]pcrs.Event, error) {
	if log.Format != pcrs.FormatCCEL {
		return nil, errors.New("learn: want the log of a TDX guest")
	}
	separated := false
	learned := []pcrs.Event{}
	for _, e := range log.Of(pcrs.RTMR(0)) {
		switch {
		case e.Type == pcrs.EvSeparator:
			separated = true
		case separated && e.Type == pcrs.EvVariableBoot:
			return learned, nil
		case separated:
			source := e.From()
			learned = append(learned, pcrs.Event{Register: e.Register, Type: e.Type, Digests: e.Digests, Source: &source, Origin: pcrs.Learned})
		}
	}
	return nil, errors.New("learn: RTMR 0 has no boot variable after a separator: a machine of another shape")
}
