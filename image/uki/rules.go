package uki

import (
	"errors"
	"fmt"
	"slices"
)

// stubRules says what one generation of systemd-stub does with sections.
type stubRules struct {
	// measured lists the sections that go into PCR 11, in that order
	// (systemd, src/fundamental/uki.c; tpm-pcr.c before version 257).
	measured []string
}

// The lists of the generations. 254 came with .uname and .sbat, 256 with .ucode.
var (
	rules252 = stubRules{measured: []string{
		".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb", ".pcrpkey",
	}}
	rules254 = stubRules{measured: []string{
		".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb",
		".uname", ".sbat", ".pcrpkey",
	}}
	rules256 = stubRules{measured: []string{
		".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb",
		".uname", ".sbat", ".pcrpkey",
	}}
)

// generations are the known stubs by systemd's major version.
var generations = map[int]stubRules{
	252: rules252, 253: rules252, 254: rules254, 255: rules254, 256: rules256, 257: rules256, 258: rules256,
}

// unmeasured are sections that may be present and are not measured into PCR 11
// by any known version: the stub's own code and data (its .sbat is measured
// from 254 on), and the signature of the value itself.
var unmeasured = []string{
	".text", ".rodata", ".data", ".reloc", ".dynamic", ".rela", ".dynsym",
	".sdmagic", ".sbat", ".pcrsig",
}

// refused are sections with a meaning that is not modelled. The first three
// came with 257, the last with 258.
var refused = []string{".profile", ".dtbauto", ".hwids", ".efifw"}

// rulesFor returns the rules of a stub by systemd's major version.
func rulesFor(major int) (stubRules, error) {
	rules, ok := generations[major]
	if !ok {
		return stubRules{}, fmt.Errorf("systemd-stub %d: what it measures is not known here; use the stub of systemd 252 to 258", major)
	}
	return rules, nil
}

// check fails for a section whose effect on the measurements is unknown.
func (r stubRules) check(name string) error {
	switch {
	case slices.Contains(refused, name):
		return errors.New("images with several profiles, device trees, hardware ids or firmware are not supported; build one without it")
	case slices.Contains(r.measured, name), slices.Contains(unmeasured, name):
		return nil
	}
	return errors.New("unknown to this version of systemd-stub, so what it would measure is unknown")
}

// place sorts sections for Build: measurement order, then what is not measured,
// .linux last.
func place(name string) int {
	end := len(rules256.measured)
	if name == ".linux" {
		return end + 1
	}
	if i := slices.Index(rules256.measured, name); i >= 0 {
		return i
	}
	return end
}
