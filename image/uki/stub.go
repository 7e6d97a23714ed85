package uki

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DebianStub is where Debian's package systemd-boot-efi keeps the stub, from the root of the tree that it is installed in.
const DebianStub = "usr/lib/systemd/boot/efi/linuxx64.efi.stub"

// Stub says what a build of systemd-stub does with its image and with what lies beside it (systemd, src/boot/efi/stub.c,
// src/boot/stub.c, cpio.c, linux.c and src/fundamental/uki.c of each version; docs/measuring.md, "Stub versions and companions").
// Nobody changes its lists.
type Stub struct {
	// Version is what the section .sdmagic names, for instance "257.13-1~deb13u1".
	Version string
	// Proven reports whether predictions were compared with boots of this build in a VM. Otherwise the rules were only read in the source.
	Proven bool
	// KernelThroughFirmware: the stub lets firmware load the kernel, which measures it once more, unless Secure Boot is on.
	// Later stubs jump to it.
	KernelThroughFirmware bool
	// SMBIOS: the stub appends a string of the SMBIOS to the command line.
	SMBIOS bool
	// Addons are the sections of which an addon must have one to be used; a stub without any knows no addons.
	Addons []string
	// FoldersApart: the command lines of a folder's addons are one event; otherwise those of both folders are one together.
	FoldersApart bool
	// Sidecars are the archives made of files on the ESP, in the order in which they are measured and follow the initrd.
	Sidecars []Sidecar
	// Extras are the sections that become files below /.extra, in the order of their archives.
	Extras []Extra

	// measured lists the sections that go into PCR 11, in that order (src/fundamental/uki.c; tpm-pcr.c before version 257).
	measured []string
	// booted: boots of Debian's build of this generation confirmed the rules.
	booted bool
}

// The sections that generations measure. 254 came with .uname and .sbat, 256 with .ucode.
var (
	sections252 = []string{".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb", ".pcrpkey"}
	sections254 = []string{".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb", ".uname", ".sbat", ".pcrpkey"}
	sections256 = []string{".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname", ".sbat", ".pcrpkey"}
)

// stubs are the known generations by systemd's major version. 256 puts the configuration extensions before the system
// extensions in the initrd.
var stubs = map[int]Stub{
	252: {
		measured: sections252, booted: true, KernelThroughFirmware: true,
		Sidecars: []Sidecar{credentials, globalCredentials, anySysexts},
		Extras:   []Extra{signatureFile, publicKeyFile},
	},
	253: {
		measured: sections252, KernelThroughFirmware: true,
		Sidecars: []Sidecar{credentials, globalCredentials, anySysexts},
		Extras:   []Extra{signatureFile, publicKeyFile},
	},
	254: {
		measured: sections254, booted: true, KernelThroughFirmware: true, SMBIOS: true, FoldersApart: true,
		Addons:   []string{".cmdline"},
		Sidecars: []Sidecar{credentials, globalCredentials, anySysexts},
		Extras:   []Extra{signatureFile, publicKeyFile},
	},
	255: {
		measured: sections254, KernelThroughFirmware: true, SMBIOS: true,
		Addons:   []string{".cmdline", ".dtb"},
		Sidecars: []Sidecar{credentials, globalCredentials, anySysexts},
		Extras:   []Extra{signatureFile, publicKeyFile},
	},
	256: {
		measured: sections256, KernelThroughFirmware: true, SMBIOS: true,
		Addons:   []string{".cmdline", ".dtb"},
		Sidecars: []Sidecar{credentials, globalCredentials, confexts, sysexts},
		Extras:   []Extra{signatureFile, publicKeyFile},
	},
	257: {
		measured: sections256, booted: true, KernelThroughFirmware: true, SMBIOS: true,
		Addons:   []string{".cmdline", ".dtb", ".dtbauto", ".initrd", ".ucode"},
		Sidecars: []Sidecar{credentials, globalCredentials, sysexts, confexts},
		Extras:   []Extra{signatureFile, publicKeyFile, releaseFile},
	},
	258: {
		measured: sections256, SMBIOS: true,
		Addons:   []string{".cmdline", ".dtb", ".dtbauto", ".initrd", ".ucode"},
		Sidecars: []Sidecar{credentials, globalCredentials, sysexts, globalSysexts, confexts, globalConfexts},
		Extras:   []Extra{signatureFile, publicKeyFile, releaseFile},
	},
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

// debianBuild matches Debian's builds, of which one of each booted version was booted; stable updates of it are taken to measure alike.
// Others may carry patches that change what is measured: Red Hat's 257 jumps to the kernel.
var debianBuild = regexp.MustCompile(`^[0-9.]+-[0-9]+~(deb|bpo)[0-9u+]+$`)

// StubOf returns the rules of a stub's version, such as "257.13-1~deb13u1". It fails for a generation that is not known.
func StubOf(version string) (Stub, error) {
	number, _, _ := strings.Cut(version, ".")
	number, _, _ = strings.Cut(number, "-")
	major, err := strconv.Atoi(number)
	stub, ok := stubs[major]
	if err != nil || !ok {
		return Stub{}, fmt.Errorf("systemd-stub %s: what it measures is not known here; use the stub of systemd 252 to 258", version)
	}
	stub.Version, stub.Proven = version, stub.booted && debianBuild.MatchString(version)
	return stub, nil
}

// ProvenStubs lists the generations of which boots of Debian's build confirmed the rules, for people: "252, 254, 257".
func ProvenStubs() string {
	var out []string
	for _, major := range slices.Sorted(maps.Keys(stubs)) {
		if stubs[major].booted {
			out = append(out, strconv.Itoa(major))
		}
	}
	return strings.Join(out, ", ")
}

// check fails for a section whose effect on the measurements is unknown.
func (s Stub) check(name string) error {
	switch {
	case slices.Contains(refused, name):
		return errors.New("images with several profiles, device trees, hardware ids or firmware are not supported; build one without it")
	case slices.Contains(s.measured, name), slices.Contains(unmeasured, name):
		return nil
	}
	return errors.New("unknown to this version of systemd-stub, so what it would measure is unknown")
}

// place sorts sections for Build: measurement order, then what is not measured,
// .linux last.
func place(name string) int {
	end := len(sections256)
	if name == ".linux" {
		return end + 1
	}
	if i := slices.Index(sections256, name); i >= 0 {
		return i
	}
	return end
}
