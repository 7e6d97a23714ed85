package pcrs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// Limits of an event log that is read.
const (
	// MaxLog is the largest log, in bytes.
	MaxLog = 1 << 20
	// MaxEvents is the largest number of events.
	MaxEvents = 4096
	// maxHashes is the largest number of hashes that a header names.
	maxHashes = 8
	// usualEvent is about how many bytes of a log an event has; room for as many is made at once.
	usualEvent = 256
)

const (
	specIDSignature   = "Spec ID Event03\x00"
	localitySignature = "StartupLocality\x00"
)

// LogFormat is the form that an event log has.
type LogFormat string

// The formats of event logs.
const (
	// FormatSHA1 is TCG 1.2's: SHA-1 digests only (TCG PC Client PFP §10.2.1).
	FormatSHA1 LogFormat = "sha1"
	// FormatAgile is crypto-agile: a digest for each bank of the TPM (PFP §10.2.2).
	FormatAgile LogFormat = "crypto-agile"
	// FormatCCEL is crypto-agile for a TDX guest, whose registers are RTMR 0 to 3 (UEFI 2.10 §38.4.1; its index counts from MRTD).
	FormatCCEL LogFormat = "ccel"
)

// ParseLog reads the event log of a TPM, of at most MaxLog bytes: a crypto-agile
// one if it begins with the event that says so (TCG PC Client PFP §10.4.5), else one of TCG 1.2.
// It is strict: it fails for an event without exactly one digest of each hash
// that the header names, for a log that ends within an event, and where
// the data of an event is not what its digest says, unless real firmware does so;
// such an event is Unproven. Zeros or ones that fill the
// rest of a buffer are counted and left out. A log is only ever an
// explanation: decide on register values. If banks are named, only their digests are
// read and compared with the data, which saves time; the log must have one of them.
func ParseLog(raw []byte, banks ...Bank) (Log, error) { return parseLog(raw, FormatAgile, banks) }

// ParseCCEL reads the event log of a TDX guest, as ACPI table CCEL leads to it.
// Registers of its events are RTMRs. It is as strict as ParseLog, also in which banks it reads.
func ParseCCEL(raw []byte, banks ...Bank) (Log, error) { return parseLog(raw, FormatCCEL, banks) }

// FormatOf tells whose log raw is by what it says of registers, which count from PCR 0 or from MRTD: nothing extends MRTD, and firmware
// extends PCR 0 first of all. So it is a TPM's if it extends index 0 or one above 4, and a TDX guest's if it extends others alone, in
// SHA-384 alone. Of a log that is neither, the error says so. FormatOf does not judge the log otherwise.
func FormatOf(raw []byte) (LogFormat, error) {
	if len(raw) > MaxLog {
		return "", fmt.Errorf("read event log: %d bytes, want at most %d", len(raw), MaxLog)
	}
	p := &logParser{rest: raw, log: Log{Format: FormatAgile}}
	if err := p.readHeader(); err != nil || p.log.Format == FormatSHA1 {
		return FormatSHA1, err
	}
	guest := false
	for n := 0; n < MaxEvents && !p.atEnd(); n++ {
		index, kind, err := p.skipEvent()
		switch {
		case err != nil:
			return "", fmt.Errorf("read event log: %w", err)
		case kind == EvNoAction:
		case index == 0 || index > rtmrCount:
			return FormatAgile, nil
		default:
			guest = true
		}
	}
	if guest && len(p.hashes) == 1 && p.hashes[0].bank == SHA384 {
		return FormatCCEL, nil
	}
	return "", errors.New("read event log: it extends neither PCR 0 nor RTMRs alone, in SHA-384: whether it is a TPM's or a TDX guest's cannot be told")
}

// skipEvent takes an event's index and type, and passes over the rest of it.
func (p *logParser) skipEvent() (index uint32, kind EventType, err error) {
	if index, err = p.u32(); err != nil {
		return 0, 0, err
	}
	number, err := p.u32()
	if err == nil {
		_, err = p.readDigests()
	}
	if err == nil {
		_, err = p.sized()
	}
	return index, EventType(number), err
}

func parseLog(raw []byte, format LogFormat, banks []Bank) (Log, error) {
	if len(raw) > MaxLog {
		return Log{}, fmt.Errorf("read event log: %d bytes, want at most %d", len(raw), MaxLog)
	}
	p := &logParser{rest: raw, wanted: banks, log: Log{Format: format}}
	if err := p.readHeader(); err != nil {
		return Log{}, fmt.Errorf("read event log: header: %w", err)
	}
	if len(p.log.Banks) == 0 {
		return Log{}, fmt.Errorf("read event log: header: it names no digests of %v", banks)
	}
	p.log.Events = make([]Event, 0, len(raw)/usualEvent)
	for n := 1; !p.atEnd(); n++ {
		if n > MaxEvents {
			return Log{}, fmt.Errorf("read event log: more than %d events", MaxEvents)
		}
		at := len(raw) - len(p.rest)
		if err := p.readEvent(); err != nil {
			return Log{}, fmt.Errorf("read event log: event %d at offset %d: %w", n, at, err)
		}
	}
	return p.log, nil
}

type logParser struct {
	rest []byte
	// hashes are those of which every event has a digest, of those too that are no bank here.
	hashes []eventHash
	// wanted are the banks to read; none means all.
	wanted []Bank
	log    Log
}

// eventHash is a hash that a log's header names, and how long its digests are there.
type eventHash struct {
	bank   Bank
	size   int
	wanted bool
}

// hash is the place of a bank in p.hashes, or -1.
func (p *logParser) hash(b Bank) int {
	return slices.IndexFunc(p.hashes, func(h eventHash) bool { return h.bank == b })
}

func (p *logParser) wants(b Bank) bool {
	return b.Valid() && (len(p.wanted) == 0 || slices.Contains(p.wanted, b))
}

var errTruncated = errors.New("the log ends in the middle; it is truncated")

// atEnd reports whether no event is left, but at most padding: bytes that are all zero or all ones.
func (p *logParser) atEnd() bool {
	for _, fill := range []string{"\x00", "\xff"} {
		if len(bytes.TrimLeft(p.rest, fill)) == 0 {
			p.log.Padding = len(p.rest)
			return true
		}
	}
	return false
}

func (p *logParser) take(n int) ([]byte, error) {
	if n < 0 || n > len(p.rest) {
		return nil, errTruncated
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b, nil
}

func (p *logParser) u32() (uint32, error) {
	b, err := p.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

// sized takes a 32-bit length and that many bytes.
func (p *logParser) sized() ([]byte, error) {
	n, err := p.u32()
	if err != nil {
		return nil, err
	}
	if uint64(n) > uint64(len(p.rest)) {
		return nil, errTruncated
	}
	return p.take(int(n))
}

// readHeader reads the first event, which has the SHA-1 format and lists the hashes of the others. A log that begins otherwise
// is one of TCG 1.2.
func (p *logParser) readHeader() error {
	whole := p.rest
	head, err := p.take(8 + SHA1.Size())
	if err != nil {
		return err
	}
	spec, err := p.sized()
	if err != nil {
		return err
	}
	kind := EventType(binary.LittleEndian.Uint32(head[4:]))
	if kind == EvNoAction && bytes.HasPrefix(spec, []byte(specIDSignature)) {
		return p.readSpecID(spec)
	}
	if p.log.Format == FormatCCEL {
		return fmt.Errorf("no %q; this is no CCEL log", specIDSignature[:len(specIDSignature)-1])
	}
	p.rest = whole
	p.log.Format = FormatSHA1
	if p.wants(SHA1) {
		p.log.Banks = []Bank{SHA1}
	}
	return nil
}

// readSpecID reads TCG_EfiSpecIDEvent (PFP §10.4.5.1).
func (p *logParser) readSpecID(spec []byte) error {
	const fixed = 28
	if len(spec) < fixed {
		return fmt.Errorf("%d bytes", len(spec))
	}
	count := binary.LittleEndian.Uint32(spec[24:])
	if count == 0 || count > maxHashes || len(spec) < fixed+4*int(count)+1 {
		return fmt.Errorf("%d hashes in %d bytes", count, len(spec))
	}
	known := false
	for i := range int(count) {
		entry := spec[fixed+4*i:]
		bank, size := Bank(binary.LittleEndian.Uint16(entry)), int(binary.LittleEndian.Uint16(entry[2:]))
		if p.hash(bank) >= 0 || size == 0 || size > SHA512.Size() || bank.Valid() && size != bank.Size() {
			return fmt.Errorf("%v with digests of %d bytes: there twice, or of a wrong size", bank, size)
		}
		p.hashes = append(p.hashes, eventHash{bank, size, p.wants(bank)})
		if known = known || bank.Valid(); p.wants(bank) {
			p.log.Banks = append(p.log.Banks, bank)
		}
	}
	if !known {
		return errors.New("no hash of it is sha1, sha256, sha384 or sha512")
	}
	vendor := spec[fixed+4*int(count):]
	if int(vendor[0]) != len(vendor)-1 {
		return errors.New("vendor information does not fill the header")
	}
	return nil
}

// readEvent reads TCG_PCR_EVENT2 (PFP §10.2.2), or TCG_PCR_EVENT in a log of TCG 1.2.
func (p *logParser) readEvent() error {
	index, err := p.u32()
	if err != nil {
		return err
	}
	kind, err := p.u32()
	if err != nil {
		return err
	}
	e := Event{Type: EventType(kind)}
	if e.Register, err = p.register(e.Type, index); err != nil {
		return err
	}
	if p.log.Format == FormatSHA1 {
		digest, err := p.take(SHA1.Size())
		if err != nil {
			return err
		}
		e.Digests = Digests{SHA1: digest}
	} else if e.Digests, err = p.readDigests(); err != nil {
		return err
	}
	if e.Data, err = p.sized(); err != nil {
		return err
	}
	return p.keep(e)
}

// register is the register of an event's index. A CCEL log counts MRTD as 0, which nothing extends (Intel TDX Virtual Firmware
// Design Guide §8.3.3). An event that extends nothing may name no register at all.
func (p *logParser) register(kind EventType, index uint32) (Register, error) {
	switch {
	case p.log.Format == FormatCCEL && index >= 1 && index <= rtmrCount:
		return RTMR(int(index) - 1), nil
	case p.log.Format != FormatCCEL && index < RegisterCount:
		return Register(index), nil
	case kind == EvNoAction:
		return NoRegister, nil
	case p.log.Format == FormatCCEL:
		return 0, fmt.Errorf("no RTMR has index %d", index)
	}
	return 0, fmt.Errorf("no register %d", index)
}

func (p *logParser) readDigests() (Digests, error) {
	count, err := p.u32()
	if err != nil {
		return nil, err
	}
	if int64(count) != int64(len(p.hashes)) {
		return nil, fmt.Errorf("%d digests, the header names %d hashes", count, len(p.hashes))
	}
	out := Digests{}
	var seen [maxHashes]bool
	for range p.hashes {
		id, err := p.take(2)
		if err != nil {
			return nil, err
		}
		bank := Bank(binary.LittleEndian.Uint16(id))
		i := p.hash(bank)
		if i < 0 || seen[i] {
			return nil, fmt.Errorf("%v: not in the header, or there twice", bank)
		}
		seen[i] = true
		digest, err := p.take(p.hashes[i].size)
		if err != nil {
			return nil, err
		}
		if p.hashes[i].wanted {
			out[bank] = digest
		}
	}
	return out, nil
}

// keep checks an event against itself and adds it to the log.
func (p *logParser) keep(e Event) error {
	if e.Type == EvNoAction && bytes.HasPrefix(e.Data, []byte(localitySignature)) {
		if len(e.Data) != len(localitySignature)+1 || e.Register != 0 && e.Register != RTMR(0) {
			return errors.New("startup locality is malformed")
		}
		p.log.Locality = e.Data[len(localitySignature)]
	}
	if bank, wrong := e.mismatch(p.log.Banks); wrong {
		if !e.Type.logsOtherData(p.log.Format) {
			return fmt.Errorf("%v in %v: its %v digest is not the hash of its data", e.Type, e.Register, bank)
		}
		e.Unproven = true
	}
	p.log.Events = append(p.log.Events, e)
	return nil
}

// variableOf reads the name from UEFI_VARIABLE_DATA.
func variableOf(b []byte) (name string, size uint64, ok bool) {
	if len(b) < 32 {
		return "", 0, false
	}
	length := binary.LittleEndian.Uint64(b[16:])
	if length > uint64(len(b)-32)/2 {
		return "", 0, false
	}
	return decodeUTF16(b[32 : 32+2*length]), binary.LittleEndian.Uint64(b[24:]), true
}

// loadedFile is the path of a program that firmware loaded from a file system, such as
// \EFI\BOOT\BOOTX64.EFI, or nothing.
func loadedFile(e Event) string {
	if e.Type != EvBootServicesApplication {
		return ""
	}
	return fileIn(e)
}

// fileIn is what the file path nodes of the device path in an EFI_IMAGE_LOAD_EVENT say (PFP §10.2.3, UEFI 2.10 §10.3.5.4).
func fileIn(e Event) string {
	const mediaType, fileType = 4, 4
	var out strings.Builder
	for nodes := pathOf(e); len(nodes) >= 4; {
		size := int(binary.LittleEndian.Uint16(nodes[2:]))
		if size < 4 || size > len(nodes) {
			break
		}
		if nodes[0] == mediaType && nodes[1] == fileType {
			out.WriteString(printableASCII([]byte(decodeUTF16(nodes[4:size]))))
		}
		nodes = nodes[size:]
	}
	return out.String()
}

// maxShown is how many bytes of an event's data are told to people; command lines have 4096 at most (2048 characters, as UTF-16).
const maxShown = 4096

// shown cuts text that is longer, since its description would take a multiple of its length.
func shown(b []byte) []byte {
	if len(b) <= maxShown {
		return b
	}
	return append(b[:maxShown:maxShown], "…"...)
}

// tagText is what the kernel or the stub logs behind an event's tag: text with a NUL, or in UTF-16 the name of an addon.
func tagText(b []byte) string {
	if len(b) >= 2 && b[1] == 0 {
		return decodeUTF16(b)
	}
	return string(shown(bytes.TrimRight(b, "\x00")))
}

// decodeUTF16 decodes UTF-16LE up to maxShown bytes.
func decodeUTF16(b []byte) string {
	var units []uint16
	for b = b[:min(len(b), maxShown)]; len(b) >= 2; b = b[2:] {
		units = append(units, binary.LittleEndian.Uint16(b))
	}
	return strings.TrimRight(string(utf16.Decode(units)), "\x00")
}
