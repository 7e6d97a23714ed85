package pcrs

import (
	"fmt"
	"path"
	"strings"

	"github.com/hullmark/hullmark/image/uki"
)

// What tells a person what is hashed, and from which bytes.
func (e Event) What() string {
	if e.Unproven {
		return e.From().String() + " (the digest is of other bytes)"
	}
	return e.From().String()
}

// String makes a sentence of the source, in one line; texts of a log are quoted.
func (s Source) String() string {
	if s.Boot != "" {
		boot := s.Boot
		s.Boot = ""
		return s.String() + "; from a boot: " + boot
	}
	if sentence, ok := firmwareSentences[s.Kind]; ok {
		return sentence(s)
	}
	return s.imageSentence()
}

// firmwareSentences are of what firmware measures of itself and of the machine.
var firmwareSentences = map[SourceKind]func(Source) string{
	FromFirmwareVersion: func(s Source) string { return fmt.Sprintf("firmware version %q in UTF-16LE with its NUL", s.Name) },
	FromFirmwareVolume: func(s Source) string {
		if s.Name == EarlyVolume {
			return "firmware volume of early code (PEI) as it lies in memory"
		}
		return "firmware volume of drivers (DXE), unpacked from the firmware file"
	},
	FromACPI: func(s Source) string {
		if s.Name == TPMLogArea {
			return fmt.Sprintf("ACPI blob with the room for the TPM's log: %d KiB of zeros", tpmLogSize>>10)
		}
		return fmt.Sprintf("ACPI blob %d of %d that the virtual machine monitor makes", s.Number, s.Count)
	},
	FromBootVariable: bootVariableSentence,
	FromHardware:     func(s Source) string { return fmt.Sprintf("%q, which no other machine has", s.Name) },
	FromOptionROM: func(s Source) string {
		return fmt.Sprintf("Authenticode hash of EFI driver %d of option ROM %.16s", s.Number, s.Name)
	},
	FromAction:        func(s Source) string { return fmt.Sprintf("the text %q", s.Name) },
	FromSeparator:     separatorSentence,
	FromProgram:       programSentence,
	FromLoadedProgram: func(s Source) string { return fmt.Sprintf("the program %q", s.File) },
	FromPartitionTable: func(s Source) string {
		return fmt.Sprintf("UEFI_GPT_DATA: header and the %d used entries of the disk's partition table", s.Count)
	},
	FromVariable: func(s Source) string {
		if s.File == VariableFile {
			return fmt.Sprintf("variable %s: %d bytes from the variable file", s.Name, s.Bytes)
		}
		return fmt.Sprintf("variable %q: %d bytes", s.Name, s.Bytes)
	},
	FromSecureBoot: secureBootSentence,
	FromAuthority: func(s Source) string {
		switch {
		case s.File == VariableFile && s.Count > 0 && s.Section != "":
			return fmt.Sprintf("entry %d of %d in %s, with its owner: certificate %q, which verifies what firmware starts", s.Number, s.Count, s.Name, s.Section)
		case s.File == VariableFile && s.Count > 0:
			return fmt.Sprintf("entry %d of %d in %s, with its owner: the digest of what firmware starts", s.Number, s.Count, s.Name)
		case s.File == VariableFile:
			return "the only certificate in " + s.Name + ", with its owner: the image is verified with it"
		}
		return fmt.Sprintf("variable %q, by which a program was verified: %d bytes", s.Name, s.Bytes)
	},
	FromLaunch: func(s Source) string { return strings.TrimSuffix("launch measurement of "+s.Name+": "+s.File, ": ") },
	FromText:   func(s Source) string { return fmt.Sprintf("%q", s.Name) },
	FromTag:    func(s Source) string { return fmt.Sprintf("%q", s.Name) },
}

// imageSentence is of what the stub, the kernel and the node measure.
func (s Source) imageSentence() string {
	switch s.Kind {
	case FromNodeConfig:
		return fmt.Sprintf("\"hullmark/v1/config\\0\" and the SHA-256 of the node configuration of %d bytes", s.Bytes)
	case FromSectionName:
		return fmt.Sprintf("section name %q with its NUL", s.Section)
	case FromSection:
		return fmt.Sprintf("%d bytes of section %s of the unified kernel image", s.Bytes, s.Section)
	case FromCommandLine:
		return "kernel command line from " + s.parts() + " as UTF-16LE with its NUL (LOADED_IMAGE::LoadOptions)"
	case FromAddedText:
		return fmt.Sprintf("%q as UTF-16LE with its NUL: %s", s.Name, s.parts())
	case FromInitrd:
		return "the initrd that the stub hands over: " + s.parts()
	case FromArchive:
		return fmt.Sprintf("archive with the %s %s from the ESP (%s)", s.Name, strings.Join(s.Files, ", "), s.File)
	case FromExtra:
		return fmt.Sprintf("archive with /.extra/%s from section %s", s.Name, s.Section)
	case FromAddon:
		return fmt.Sprintf("%s of the addon %s on the ESP", s.Section, path.Base(s.File))
	case FromSMBIOS:
		return "SMBIOS string " + s.Name
	case FromBootAggregate:
		return "IMA's boot_aggregate: the SHA-256 of PCR 0 to 9"
	}
	return fmt.Sprintf("%d bytes of data", s.Bytes)
}

// parts lists what the bytes were put together from. A section is part of the kernel image unless more is said.
func (s Source) parts() string {
	var out []string
	for _, part := range s.Parts {
		text := part.String()
		if part.Kind == FromSection {
			text = fmt.Sprintf("section %s (%d bytes)", part.Section, part.Bytes)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func bootVariableSentence(s Source) string {
	switch {
	case s.Count > 0 && s.File == VariableFile:
		return fmt.Sprintf("variable %s: what the firmware makes of the one in the variable file, %d entries", s.Name, s.Count)
	case s.File == VariableFile:
		return fmt.Sprintf("variable %s: %d bytes from the variable file", s.Name, s.Bytes)
	case s.Section != "":
		return fmt.Sprintf("variable %q: the log's entry, with the image's partition %s", s.Name, s.Section)
	case s.Count > 0:
		return fmt.Sprintf("variable %s: the disk, then what the firmware brings, %d entries", s.Name, s.Count)
	case s.Number > 0:
		return fmt.Sprintf("variable %s: the disk at PCI device %d, as firmware names it", s.Name, s.Number)
	case s.File != "":
		return fmt.Sprintf("variable %s: %q, which is part of the firmware", s.Name, s.File)
	}
	if len(s.Parts) > 0 {
		return fmt.Sprintf("variable %q: %d bytes, with %s", s.Name, s.Bytes, s.Parts[0])
	}
	return fmt.Sprintf("variable %q: %d bytes", s.Name, s.Bytes)
}

func separatorSentence(s Source) string {
	if s.Name != "" {
		return "separator with the data " + s.Name
	}
	return "four zero bytes: the end of the firmware's own measurements"
}

func programSentence(s Source) string {
	switch {
	case s.Section != "":
		return "Authenticode hash of the kernel in section " + s.Section
	case s.addon():
		return fmt.Sprintf("Authenticode hash of the addon %s on the ESP (%s)", path.Base(s.File), path.Dir(s.File))
	}
	return "Authenticode hash of the unified kernel image on the ESP"
}

// recorded reports a source that is read from a log which does not say what was measured.
func (s Source) recorded() bool { return s.Kind == FromData || s.Kind == FromTag }

// addon reports whether the source is an addon that firmware loads.
func (s Source) addon() bool {
	return (s.Kind == FromProgram || s.Kind == FromLoadedProgram) && hasSuffix(s.File, uki.AddonEnding)
}

func secureBootSentence(s Source) string {
	switch s.Name {
	case SecureBootOn:
		return "variable SecureBoot: 1, as firmware sets it from PK and SecureBootEnable"
	case SecureBootOff:
		return "variable SecureBoot: 0, as firmware sets it from PK and SecureBootEnable"
	}
	return "variable SecureBoot: absent, because the firmware build has no Secure Boot"
}
