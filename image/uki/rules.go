package uki

import (
	"errors"
	"fmt"
	"slices"
)

// stubRules says what one generation of systemd-stub does with sections.
type stubRules struct {
	// measured lists the sections that go into PCR 11, in that order
	// (systemd, src/fundamental/uki.c; tpm-pcr.c before version 254).
	measured []string
}

// rules252 and rules257 were compared with the stub's measurements or with
// systemd-measure of the same version.
var (
	rules252 = stubRules{measured: []string{
		".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb", ".pcrpkey",
	}}
	rules257 = stubRules{measured: []string{
		".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb",
		".uname", ".sbat", ".pcrpkey",
	}}
)

// unmeasured are sections that may be present and are not measured into PCR 11
// by any known version: the stub's own code and data (its .sbat is measured
// from 254 on), and the signature of the value itself.
var unmeasured = []string{
	".text", ".rodata", ".data", ".reloc", ".dynamic", ".rela", ".dynsym",
	".sdmagic", ".sbat", ".pcrsig",
}

// refused are sections with a meaning that is not modelled.
var refused = []string{".profile", ".dtbauto", ".hwids"}

// rulesFor returns the rules of a stub by systemd's major version.
func rulesFor(major int) (stubRules, error) {
	switch major {
	case 252:
		return rules252, nil
	case 257:
		return rules257, nil
	}
	return stubRules{}, fmt.Errorf("systemd-stub %d: what it measures is not known here; use the stub of systemd 252 or 257", major)
}

// check fails for a section whose effect on the measurements is unknown.
func (r stubRules) check(name string) error {
	switch {
	case slices.Contains(refused, name):
		return errors.New("images with several profiles, device trees or hardware ids are not supported; build one without it")
	case slices.Contains(r.measured, name), slices.Contains(unmeasured, name):
		return nil
	}
	return errors.New("unknown to this version of systemd-stub, so what it would measure is unknown")
}

// place sorts sections for Build: measurement order, then what is not measured,
// .linux last.
func place(name string) int {
	end := len(rules257.measured)
	if name == ".linux" {
		return end + 1
	}
	if i := slices.Index(rules257.measured, name); i >= 0 {
		return i
	}
	return end
}
