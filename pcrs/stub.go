package pcrs

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// stubRules says what one generation of systemd-stub does beside measuring the
// sections of its image (systemd, src/boot/efi/stub.c, src/boot/stub.c, cpio.c
// and linux.c of each version; docs/measuring.md, "Stub versions and companions").
type stubRules struct {
	// booted: predictions were compared with boots of Debian's build in a VM.
	// Otherwise the rules were only read in the source.
	booted bool
	// loadsKernelThroughFirmware: the stub lets firmware load the kernel, which
	// measures it once more, unless Secure Boot is on. Later stubs jump to it.
	loadsKernelThroughFirmware bool
	// smbios: the stub appends a string of the SMBIOS to the command line.
	smbios bool
	// addons are the sections of which an addon must have one to be used; a stub
	// without any knows no addons.
	addons []string
	// foldersApart: the command lines of a folder's addons are one event;
	// otherwise those of both folders are one together.
	foldersApart bool
	// sidecars are the archives made of files on the ESP, in the order in which
	// they are measured and follow the initrd.
	sidecars []sidecar
	// extras are the sections that become files below /.extra, in the order of their archives.
	extras []extraFile
}

// sidecar is an archive that the stub makes of files in a folder of the ESP.
type sidecar struct {
	// what names the content for people: "credentials".
	what string
	// folder is where the files lie on the ESP.
	folder string
	// suffix is what the names of the files end with, but not with exclude if there is one.
	suffix, exclude string
	register        Register
	// directory is where the archive puts them, and the modes of its last directory and of the files.
	directory         string
	dirMode, fileMode int
}

// extraFile is a section that becomes a file in the directory .extra.
type extraFile struct{ section, name string }

// kernelImage is where the image lies on the ESP.
const kernelImage = "EFI/BOOT/BOOTX64.EFI"

// Folders of the ESP that the image's stub reads.
const (
	localFolder             = kernelImage + ".extra.d"
	globalAddonsFolder      = "loader/addons"
	globalCredentialsFolder = "loader/credentials"
	globalExtensionsFolder  = "loader/extensions"
)

var (
	credentials       = sidecar{"credentials", localFolder, ".cred", "", 12, ".extra/credentials", 0o500, 0o400}
	globalCredentials = sidecar{"global credentials", globalCredentialsFolder, ".cred", "", 12, ".extra/global_credentials", 0o500, 0o400}
	anySysexts        = sidecar{"system extensions", localFolder, ".raw", "", 13, ".extra/sysext", 0o555, 0o444}
	sysexts           = sidecar{"system extensions", localFolder, ".raw", ".confext.raw", 13, ".extra/sysext", 0o555, 0o444}
	globalSysexts     = sidecar{"global system extensions", globalExtensionsFolder, ".raw", ".confext.raw", 13, ".extra/global_sysext", 0o555, 0o444}
	confexts          = sidecar{"configuration extensions", localFolder, ".confext.raw", "", 12, ".extra/confext", 0o555, 0o444}
	globalConfexts    = sidecar{"global configuration extensions", globalExtensionsFolder, ".confext.raw", "", 12, ".extra/global_confext", 0o555, 0o444}

	signatureFile = extraFile{".pcrsig", "tpm2-pcr-signature.json"}
	publicKeyFile = extraFile{".pcrpkey", "tpm2-pcr-public-key.pem"}
	releaseFile   = extraFile{".osrel", "os-release"}
)

// stubs are the known generations by systemd's major version. 256 puts the
// configuration extensions before the system extensions in the initrd.
var stubs = map[int]stubRules{
	252: {
		booted: true, loadsKernelThroughFirmware: true,
		sidecars: []sidecar{credentials, globalCredentials, anySysexts},
		extras:   []extraFile{signatureFile, publicKeyFile},
	},
	253: {
		loadsKernelThroughFirmware: true,
		sidecars:                   []sidecar{credentials, globalCredentials, anySysexts},
		extras:                     []extraFile{signatureFile, publicKeyFile},
	},
	254: {
		booted: true, loadsKernelThroughFirmware: true, smbios: true, foldersApart: true,
		addons:   []string{".cmdline"},
		sidecars: []sidecar{credentials, globalCredentials, anySysexts},
		extras:   []extraFile{signatureFile, publicKeyFile},
	},
	255: {
		loadsKernelThroughFirmware: true, smbios: true,
		addons:   []string{".cmdline", ".dtb"},
		sidecars: []sidecar{credentials, globalCredentials, anySysexts},
		extras:   []extraFile{signatureFile, publicKeyFile},
	},
	256: {
		loadsKernelThroughFirmware: true, smbios: true,
		addons:   []string{".cmdline", ".dtb"},
		sidecars: []sidecar{credentials, globalCredentials, confexts, sysexts},
		extras:   []extraFile{signatureFile, publicKeyFile},
	},
	257: {
		booted: true, loadsKernelThroughFirmware: true, smbios: true,
		addons:   []string{".cmdline", ".dtb", ".dtbauto", ".initrd", ".ucode"},
		sidecars: []sidecar{credentials, globalCredentials, sysexts, confexts},
		extras:   []extraFile{signatureFile, publicKeyFile, releaseFile},
	},
	258: {
		smbios:   true,
		addons:   []string{".cmdline", ".dtb", ".dtbauto", ".initrd", ".ucode"},
		sidecars: []sidecar{credentials, globalCredentials, sysexts, globalSysexts, confexts, globalConfexts},
		extras:   []extraFile{signatureFile, publicKeyFile, releaseFile},
	},
}

// debianBuild matches Debian's builds, of which one of each booted version was booted; stable
// updates of it are taken to measure alike. Others may carry patches that change what is
// measured: Red Hat's 257 jumps to the kernel.
var debianBuild = regexp.MustCompile(`^[0-9.]+-[0-9]+~(deb|bpo)[0-9u+]+$`)

// rulesFor returns the rules of a stub's version, such as "257.13-1~deb13u1".
// Rules that no boot confirmed are returned only if unproven ones are allowed.
func rulesFor(version string, allowUnproven bool) (stubRules, error) {
	number, _, _ := strings.Cut(version, ".")
	number, _, _ = strings.Cut(number, "-")
	major, err := strconv.Atoi(number)
	rules, ok := stubs[major]
	switch {
	case err != nil || !ok:
		return stubRules{}, fmt.Errorf("systemd-stub %s: no rules for this version; use the stub of systemd 252 to 258", version)
	case allowUnproven || rules.booted && debianBuild.MatchString(version):
		return rules, nil
	}
	return stubRules{}, fmt.Errorf("systemd-stub %s: its rules were only read in the source, and no boot of it was compared with a prediction; "+
		"use Debian's stub of systemd %s, or accept it with --unproven-stub", version, bootedVersions())
}

// bootedVersions lists the proven versions for people: "252, 254, 257".
func bootedVersions() string {
	var out []string
	for _, major := range slices.Sorted(maps.Keys(stubs)) {
		if stubs[major].booted {
			out = append(out, strconv.Itoa(major))
		}
	}
	return strings.Join(out, ", ")
}
