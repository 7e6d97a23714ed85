package uki

// Path is where the ESP holds the unified kernel image: the path that firmware tries on a disk without a boot entry of its own
// (UEFI 2.10 §3.5.1.1).
const Path = "EFI/BOOT/BOOTX64.EFI"

// TrialPath is where the ESP holds it while its slot is not the one that starts by itself: a path that firmware tries for nobody, but
// where a boot entry names it.
const TrialPath = "EFI/BOOT/TRIAL.EFI"

// Folders of the ESP that the stub of an image at Path reads.
const (
	LocalFolder             = Path + ".extra.d"
	GlobalAddonsFolder      = "loader/addons"
	globalCredentialsFolder = "loader/credentials"
	globalExtensionsFolder  = "loader/extensions"
)

// AddonEnding ends the names of addons, in letters of either case.
const AddonEnding = ".addon.efi"

// How the names of the other companions end, in letters of either case.
const (
	credentialEnding = ".cred"
	sysextEnding     = ".raw"
	confextEnding    = ".confext.raw"
)

// Sidecar is an archive that the stub makes of files in a folder of the ESP.
type Sidecar struct {
	// What names the content for people: "credentials".
	What string
	// Logged is what the stub calls the archive in the event log.
	Logged string
	// Folder is where the files lie on the ESP.
	Folder string
	// Ending is what the names of the files end with, but not with Exclude if there is one.
	Ending, Exclude string
	// PCR is the number of the register that the archive is measured into.
	PCR int
	// Directory is where the archive puts the files; DirMode and FileMode are the modes of its last directory and of the files.
	Directory         string
	DirMode, FileMode int
}

// Extra is a section that becomes a file in the directory .extra.
type Extra struct{ Section, Name string }

var (
	credentials = Sidecar{
		"credentials", "Credentials initrd", LocalFolder, credentialEnding, "", 12, ".extra/credentials", 0o500, 0o400,
	}
	globalCredentials = Sidecar{
		"global credentials", "Global credentials initrd", globalCredentialsFolder, credentialEnding, "", 12, ".extra/global_credentials", 0o500, 0o400,
	}
	anySysexts = Sidecar{
		"system extensions", "System extension initrd", LocalFolder, sysextEnding, "", 13, ".extra/sysext", 0o555, 0o444,
	}
	sysexts = Sidecar{
		"system extensions", "System extension initrd", LocalFolder, sysextEnding, confextEnding, 13, ".extra/sysext", 0o555, 0o444,
	}
	globalSysexts = Sidecar{
		"global system extensions", "Global system extension initrd", globalExtensionsFolder, sysextEnding, confextEnding, 13,
		".extra/global_sysext", 0o555, 0o444,
	}
	confexts = Sidecar{
		"configuration extensions", "Configuration extension initrd", LocalFolder, confextEnding, "", 12, ".extra/confext", 0o555, 0o444,
	}
	globalConfexts = Sidecar{
		"global configuration extensions", "Global configuration extension initrd", globalExtensionsFolder, confextEnding, "", 12,
		".extra/global_confext", 0o555, 0o444,
	}

	signatureFile = Extra{".pcrsig", "tpm2-pcr-signature.json"}
	publicKeyFile = Extra{".pcrpkey", "tpm2-pcr-public-key.pem"}
	releaseFile   = Extra{".osrel", "os-release"}
)

// LoggedSidecar returns what the archive is that some stub logs by this name.
func LoggedSidecar(logged string) (Sidecar, bool) {
	for _, s := range []Sidecar{credentials, globalCredentials, sysexts, globalSysexts, confexts, globalConfexts} {
		if s.Logged == logged {
			return s, true
		}
	}
	return Sidecar{}, false
}
