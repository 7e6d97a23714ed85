package pcrs

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/uki"
)

// handover is what the stub gathers for the kernel, in the order in which it does.
type handover struct {
	// cmdline is the command line so far; cmdlineFrom says where it is from.
	cmdline     string
	cmdlineFrom []Source
	// used are the addons that the stub uses, global ones first.
	used []addon
	// ucode and initrds are from addons, archives from files on the ESP.
	ucode, archives, initrds []part
}

// part is a part of the initrd.
type part struct {
	data   []byte
	source Source
}

// stubEvents is what systemd-stub measures, and how it starts the kernel inside.
func (p *predictor) stubEvents() error {
	if err := checkESP(p.boot.ESP); err != nil {
		return err
	}
	for _, step := range []func() error{p.sections, p.ownCmdline, p.addons, p.smbios, p.sidecars, p.innerKernel} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// sections are the sections of the image, by name and content.
func (p *predictor) sections() error {
	for _, s := range p.boot.UKI.Measured() {
		name := derived(11, EvIPL, append([]byte(s.Name), 0), Source{Kind: FromSectionName, Section: s.Name})
		data := large(11, EvIPL, sectionSource(s.Name, s.Data), s.Data)
		p.add(name, data)
	}
	return nil
}

func sectionSource(name string, data []byte) Source {
	return Source{Kind: FromSection, Section: name, Bytes: len(data)}
}

// ownCmdline is the command line of the image. The stub drops what firmware passes
// with Secure Boot on; the predicted boot entry passes nothing.
func (p *predictor) ownCmdline() error {
	text, ok := p.boot.UKI.Section(".cmdline")
	if !ok || len(text) == 0 {
		return errors.New("unified kernel image: no .cmdline section, so the host would choose the command line")
	}
	if err := checkText(text); err != nil {
		return fmt.Errorf("section .cmdline: %w", err)
	}
	p.cmdline, p.cmdlineFrom = string(text), []Source{sectionSource(".cmdline", text)}
	return nil
}

// checkText fails for a command line that the stub would rewrite: versions differ in how they do.
func checkText(text []byte) error {
	for _, c := range text {
		if c < ' ' || c > '~' {
			return fmt.Errorf("holds the byte %#02x; the stub rewrites all but printable ASCII, which is not modelled", c)
		}
	}
	if s := string(text); s == "" || strings.TrimSpace(s) != s {
		return errors.New("is empty, or begins or ends with a space, which stubs treat differently; remove it")
	}
	return nil
}

// innerKernel is the kernel once more, if firmware loads it for the stub.
func (p *predictor) innerKernel() error {
	if !p.stub.KernelThroughFirmware || p.state == secureBootOn {
		return nil
	}
	linux, ok := p.boot.UKI.Section(".linux")
	if !ok {
		return errors.New("unified kernel image: no .linux section")
	}
	f, err := pe.Parse(bytes.NewReader(linux), int64(len(linux)))
	if err != nil {
		return fmt.Errorf("kernel in section .linux: %w", err)
	}
	p.add(authenticodeEvent(4, f, Source{Kind: FromProgram, File: uki.Path, Section: ".linux"}))
	return nil
}

// kernel is what Linux's EFI stub measures, then leaving the firmware.
func (p *predictor) kernel() error {
	initrd, err := p.combinedInitrd()
	if err != nil {
		return err
	}
	p.notePolicy(p.cmdline)
	options := append(efi.UTF16(p.cmdline), 0, 0)
	p.add(
		derived(9, EvEventTag, options, Source{Kind: FromCommandLine, Parts: p.cmdlineFrom}),
		initrd,
	)
	for _, step := range leavingFirmware {
		p.add(action(5, step))
	}
	return nil
}

// combinedInitrd is the event of the initrd as the stub hands it to the kernel. If it has
// one part, that is passed on as it is; of several each is padded with zeros to 4 bytes.
func (p *predictor) combinedInitrd() (Event, error) {
	parts, err := p.initrdParts()
	if err != nil {
		return Event{}, err
	}
	var sources []Source
	var pieces [][]byte
	for _, part := range parts {
		sources = append(sources, part.source)
		pieces = append(pieces, part.data)
		if len(parts) > 1 {
			pieces = append(pieces, make([]byte, -len(part.data)&3))
		}
	}
	return large(9, EvEventTag, Source{Kind: FromInitrd, Parts: sources}, pieces...), nil
}

// initrdParts are, in order: microcode of addons and of the image, the initrd of
// the image, archives of files on the ESP, archives of sections, initrds of addons.
func (p *predictor) initrdParts() ([]part, error) {
	if _, ok := p.boot.UKI.Section(".dtb"); ok {
		return nil, errors.New("section .dtb: what a boot measures of it was never observed; build the image without it")
	}
	initrd, ok := p.boot.UKI.Section(".initrd")
	if !ok || len(initrd) == 0 {
		return nil, errors.New("unified kernel image: no .initrd section")
	}
	parts := p.ucode
	if ucode, ok := p.boot.UKI.Section(".ucode"); ok && len(ucode) > 0 {
		parts = append(parts, part{ucode, sectionSource(".ucode", ucode)})
	}
	parts = append(parts, part{initrd, sectionSource(".initrd", initrd)})
	parts = append(parts, p.archives...)
	for _, file := range p.stub.Extras {
		if data, ok := p.boot.UKI.Section(file.Section); ok && len(data) > 0 {
			parts = append(parts, part{extraArchive(file.Name, data), Source{Kind: FromExtra, Name: file.Name, Section: file.Section}})
		}
	}
	return append(parts, p.initrds...), nil
}
