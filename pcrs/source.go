package pcrs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/gpt"
)

// Source says what an event is a measurement of. Which fields have a meaning depends on Kind; String makes a sentence of them.
// The source of a predicted event is what its digests follow from; that of a logged one is only what the log claims.
type Source struct {
	Kind SourceKind `json:"kind"`
	// Name is what the thing is called, or the text that is hashed.
	Name string `json:"name,omitempty"`
	// Section is the section of a PE image, with its dot.
	Section string `json:"section,omitempty"`
	// File is where the bytes lie: a path on the ESP with slashes, VariableFile, or a program inside the firmware. In a log it
	// is a path as the firmware writes it.
	File string `json:"file,omitempty"`
	// Files are the names of files in the folder File.
	Files []string `json:"files,omitempty"`
	// Number tells several of a kind apart, from 1, and Count is how many there are.
	Number int `json:"number,omitempty"`
	Count  int `json:"count,omitempty"`
	// Bytes is how long the content is.
	Bytes int `json:"bytes,omitempty"`
	// Boot is the boot that a learned digest is from.
	Boot string `json:"boot,omitempty"`
	// Parts are what the bytes were put together from, in order. They have no parts.
	Parts []Source `json:"parts,omitempty"`
}

// SourceKind is the kind of a Source.
type SourceKind string

// The kinds of sources, with the fields that each uses beside Boot.
const (
	// FromFirmwareVersion is what a firmware build calls itself: Name.
	FromFirmwareVersion SourceKind = "firmware-version"
	// FromFirmwareVolume is a volume of the firmware: Name is EarlyVolume or DriverVolume.
	FromFirmwareVolume SourceKind = "firmware-volume"
	// FromACPI is a blob of tables that the virtual machine monitor makes: Number and Count, or Name TPMLogArea.
	FromACPI SourceKind = "acpi"
	// FromBootVariable is BootOrder (Count entries) or a boot entry, by Name: of the disk at PCI device Number, or of the
	// program File of the firmware, or of Bytes in VariableFile, or of a log's that leads to the image's partition Section; in a log Bytes,
	// and, of a machine's that was learned, the part of it that no other machine has.
	FromBootVariable SourceKind = "boot-variable"
	// FromHardware is a piece of a machine that no other machine has, by what firmware calls it: Name.
	FromHardware SourceKind = "hardware"
	// FromOptionROM is EFI driver Number of the ROM with the SHA-256 Name.
	FromOptionROM SourceKind = "option-rom"
	// FromAction is a step of the boot that firmware names: Name.
	FromAction SourceKind = "action"
	// FromSeparator ends the firmware's own measurements; Name is its data in hexadecimal digits, if they are not four zeros.
	FromSeparator SourceKind = "separator"
	// FromProgram is the program File, or the one in its section Section.
	FromProgram SourceKind = "program"
	// FromLoadedProgram is a program that a log says was loaded: File.
	FromLoadedProgram SourceKind = "loaded-program"
	// FromPartitionTable is the table of a disk with Count used entries.
	FromPartitionTable SourceKind = "partition-table"
	// FromVariable is the firmware's variable Name of Bytes.
	FromVariable SourceKind = "variable"
	// FromSecureBoot is the variable SecureBoot: Name is SecureBootAbsent, SecureBootOff or SecureBootOn.
	FromSecureBoot SourceKind = "secure-boot"
	// FromAuthority is an entry of variable Name that a program was verified with: number Number of Count, with the certificate that
	// is called Section; in a log of Bytes.
	FromAuthority SourceKind = "authority"
	// FromNodeConfig is a node's configuration of Bytes.
	FromNodeConfig SourceKind = "node-config"
	// FromSectionName is the name of the kernel image's section Section, FromSection its content of Bytes.
	FromSectionName SourceKind = "section-name"
	FromSection     SourceKind = "section"
	// FromCommandLine is the kernel's command line, of Parts.
	FromCommandLine SourceKind = "command-line"
	// FromAddedText is what was added to the command line from outside the image: the text Name, by Parts.
	FromAddedText SourceKind = "added-command-line"
	// FromInitrd is the initrd as the kernel gets it, of Parts.
	FromInitrd SourceKind = "initrd"
	// FromArchive is an archive of what Name says, of Files in the folder File of the ESP.
	FromArchive SourceKind = "archive"
	// FromExtra is an archive with the section Section as the file Name.
	FromExtra SourceKind = "extra"
	// FromAddon is the section Section of the addon File.
	FromAddon SourceKind = "addon"
	// FromSMBIOS is the SMBIOS string Name.
	FromSMBIOS SourceKind = "smbios"
	// FromBootAggregate is the kernel's measurement of PCR 0 to 9.
	FromBootAggregate SourceKind = "boot-aggregate"
	// FromLaunch is a part of what a confidential machine was launched with: Name says which part; File or Bytes describe it.
	FromLaunch SourceKind = "launch"
	// FromText is a text that stands in a log beside a digest, FromTag one that has a tag: Name.
	FromText SourceKind = "text"
	FromTag  SourceKind = "tag"
	// FromData is data of Bytes in a log, of which no more is known.
	FromData SourceKind = "data"
)

var sourceKinds = []SourceKind{
	FromFirmwareVersion, FromFirmwareVolume, FromACPI, FromBootVariable, FromHardware, FromOptionROM, FromAction, FromSeparator, FromProgram,
	FromLoadedProgram, FromPartitionTable, FromVariable, FromSecureBoot, FromAuthority, FromNodeConfig, FromSectionName, FromSection, FromCommandLine, FromAddedText,
	FromInitrd, FromArchive, FromExtra, FromAddon, FromSMBIOS, FromBootAggregate, FromLaunch, FromText, FromTag, FromData,
}

// SourceKinds returns all kinds.
func SourceKinds() []SourceKind { return slices.Clone(sourceKinds) }

// Names and files of sources.
const (
	EarlyVolume      = "early"
	DriverVolume     = "drivers"
	TPMLogArea       = "tpm-log"
	SecureBootAbsent = "absent"
	SecureBootOff    = "off"
	SecureBootOn     = "on"
	// VariableFile is the file with the firmware's variables.
	VariableFile = "variables"
)

// Limits of a source in a document.
const (
	maxSourceText  = 512 // bytes of a text
	maxSourceFiles = 128
	maxSourceParts = 64
)

// Check refuses what the source of a predicted event cannot be: a kind that is not known, more or longer texts than a document
// may have, parts of parts.
func (s Source) Check() error {
	if len(s.Parts) > maxSourceParts {
		return fmt.Errorf("source: %d parts, want at most %d", len(s.Parts), maxSourceParts)
	}
	for _, part := range s.Parts {
		if len(part.Parts) > 0 {
			return errors.New("source: a part has parts")
		}
		if err := part.Check(); err != nil {
			return err
		}
	}
	if !slices.Contains(sourceKinds, s.Kind) {
		return fmt.Errorf("source: kind %.64q is unknown", s.Kind)
	}
	if s.Number < 0 || s.Count < 0 || s.Bytes < 0 || len(s.Files) > maxSourceFiles {
		return fmt.Errorf("source: a number is negative, or there are more than %d files", maxSourceFiles)
	}
	for _, text := range append([]string{s.Name, s.Section, s.File, s.Boot}, s.Files...) {
		if len(text) > maxSourceText {
			return fmt.Errorf("source: a text of %d bytes, want at most %d", len(text), maxSourceText)
		}
	}
	return nil
}

// bounded is a source of a log as a document may have it: its texts are cut, and are UTF-8.
func (s Source) bounded() Source {
	s.Name, s.File = brief(s.Name), brief(s.File)
	return s
}

// brief is a text that a log had a part in, as a document may have it.
func brief(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxSourceText)], "?")
}

// From returns the event's source. That of an event without one, which was read from a log, is only what its data claims.
func (e Event) From() Source {
	if e.Source != nil {
		return *e.Source
	}
	return claimed(e)
}

// claimed is what an event of a log claims to be.
func claimed(e Event) Source {
	switch e.Type {
	case EvEFIAction, EvAction:
		return Source{Kind: FromAction, Name: string(shown(e.Data))}
	case EvSeparator:
		return separatorOf(e.Data)
	case EvGPT:
		if isTable(e.Data) {
			return Source{Kind: FromPartitionTable, Count: (len(e.Data) - gpt.HeaderSize - 8) / gpt.EntrySize}
		}
	case EvVariableDriverConfig, EvVariableBoot, EvVariableBoot2, EvVariableAuthority:
		if name, size, ok := variableOf(e.Data); ok {
			return variableSource(e, name, size)
		}
	case EvCRTMVersion:
		return Source{Kind: FromFirmwareVersion, Name: decodeUTF16(e.Data)}
	case EvIPL:
		return Source{Kind: FromText, Name: decodeUTF16(e.Data)}
	case EvBootServicesApplication:
		if file := loadedFile(e); file != "" {
			return Source{Kind: FromLoadedProgram, File: file}
		}
	case EvEventTag:
		if len(e.Data) >= 8 {
			return Source{Kind: FromTag, Name: tagText(e.Data[8:])}
		}
	}
	return Source{Kind: FromData, Bytes: len(e.Data)}
}

func separatorOf(data []byte) Source {
	s := Source{Kind: FromSeparator}
	if !bytes.Equal(data, make([]byte, 4)) {
		s.Name = hex.EncodeToString(shown(data))
	}
	return s
}

// variableSource is what a log claims of a variable. The value is the rest of the data.
func variableSource(e Event, name string, size uint64) Source {
	kind := map[EventType]SourceKind{EvVariableDriverConfig: FromVariable, EvVariableBoot: FromBootVariable, EvVariableBoot2: FromBootVariable, EvVariableAuthority: FromAuthority}[e.Type]
	s := Source{Kind: kind, Name: name, Bytes: int(min(size, MaxLog))}
	if kind == FromVariable && name == "SecureBoot" {
		return Source{Kind: FromSecureBoot, Name: secureBootLogged(e.Data, size).name()}
	}
	return s
}

func secureBootLogged(data []byte, size uint64) secureBootState {
	switch {
	case size == 0:
		return secureBootUnknown
	case data[len(data)-1] == 1:
		return secureBootOn
	}
	return secureBootOff
}
