package pcrs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

// Limits of an event log that is read.
const (
	// MaxLog is the largest log, in bytes.
	MaxLog = 1 << 20
	// MaxEvents is the largest number of events.
	MaxEvents = 4096
)

const (
	specIDSignature   = "Spec ID Event03\x00"
	localitySignature = "StartupLocality\x00"
)

// ParseLog reads a crypto-agile event log (TCG PC Client PFP §10.2.2, §10.4.5)
// of at most MaxLog bytes. It is strict: it fails for an unknown hash, for an
// event without exactly one digest of each hash, for trailing bytes, and where
// the data of an event is not what its digest says. A log is only ever an
// explanation: decide on register values.
func ParseLog(raw []byte) (Log, error) {
	if len(raw) > MaxLog {
		return Log{}, fmt.Errorf("read event log: %d bytes, want at most %d", len(raw), MaxLog)
	}
	p := &logParser{rest: raw}
	if err := p.readHeader(); err != nil {
		return Log{}, fmt.Errorf("read event log: header: %w", err)
	}
	for n := 1; len(p.rest) > 0; n++ {
		if n > MaxEvents {
			return Log{}, fmt.Errorf("read event log: more than %d events", MaxEvents)
		}
		if err := p.readEvent(); err != nil {
			return Log{}, fmt.Errorf("read event log: event %d: %w", n, err)
		}
	}
	return p.log, nil
}

type logParser struct {
	rest  []byte
	banks []Bank
	log   Log
}

var errTruncated = errors.New("the log ends in the middle; it is truncated")

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

// readHeader reads the first event, which has the SHA-1 format and lists the hashes of the others.
func (p *logParser) readHeader() error {
	head, err := p.take(8 + SHA1.Size())
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(head) != 0 || EventType(binary.LittleEndian.Uint32(head[4:])) != EvNoAction {
		return errors.New("the first event is not the specification's; this is not a crypto-agile log")
	}
	spec, err := p.sized()
	if err != nil {
		return err
	}
	return p.readSpecID(spec)
}

// readSpecID reads TCG_EfiSpecIDEvent (PFP §10.4.5.1).
func (p *logParser) readSpecID(spec []byte) error {
	const fixed = 28
	if len(spec) < fixed || string(spec[:16]) != specIDSignature {
		return errors.New("no \"Spec ID Event03\"; this is not a crypto-agile log")
	}
	count := binary.LittleEndian.Uint32(spec[24:])
	if count == 0 || count > 8 || len(spec) < fixed+4*int(count)+1 {
		return fmt.Errorf("%d hashes in %d bytes", count, len(spec))
	}
	for i := range int(count) {
		entry := spec[fixed+4*i:]
		bank := Bank(binary.LittleEndian.Uint16(entry))
		if size := int(binary.LittleEndian.Uint16(entry[2:])); !bank.Valid() || size != bank.Size() {
			return fmt.Errorf("%v with digests of %d bytes is not supported", bank, size)
		}
		p.banks = append(p.banks, bank)
	}
	vendor := spec[fixed+4*int(count):]
	if int(vendor[0]) != len(vendor)-1 {
		return errors.New("vendor information does not fill the header")
	}
	return nil
}

// readEvent reads TCG_PCR_EVENT2 (PFP §10.2.2).
func (p *logParser) readEvent() error {
	register, err := p.u32()
	if err != nil {
		return err
	}
	kind, err := p.u32()
	if err != nil {
		return err
	}
	if register >= RegisterCount {
		return fmt.Errorf("no register %d", register)
	}
	e := Event{Register: Register(register), Type: EventType(kind)}
	if e.Digests, err = p.readDigests(); err != nil {
		return err
	}
	if e.Data, err = p.sized(); err != nil {
		return err
	}
	return p.keep(e)
}

func (p *logParser) readDigests() (Digests, error) {
	count, err := p.u32()
	if err != nil {
		return nil, err
	}
	if int64(count) != int64(len(p.banks)) {
		return nil, fmt.Errorf("%d digests, the header names %d hashes", count, len(p.banks))
	}
	out := Digests{}
	for range p.banks {
		id, err := p.take(2)
		if err != nil {
			return nil, err
		}
		bank := Bank(binary.LittleEndian.Uint16(id))
		digest, err := p.take(bank.Size())
		if err != nil {
			return nil, err
		}
		if _, twice := out[bank]; twice || !bank.Valid() {
			return nil, fmt.Errorf("%v: unknown, or there twice", bank)
		}
		out[bank] = digest
	}
	return out, nil
}

// keep checks an event against itself and adds it to the log.
func (p *logParser) keep(e Event) error {
	if e.Type == EvNoAction && bytes.HasPrefix(e.Data, []byte(localitySignature)) {
		if len(e.Data) != len(localitySignature)+1 || e.Register != 0 {
			return errors.New("startup locality is malformed")
		}
		p.log.Locality = e.Data[len(localitySignature)]
	}
	if e.Type.hashesData() {
		for bank, digest := range e.Digests {
			if !digest.Equal(bank.sum(e.Data)) {
				return fmt.Errorf("%v in %v: its %v digest is not the hash of its data", e.Type, e.Register, bank)
			}
		}
	}
	e.What = describe(e)
	p.log.Events = append(p.log.Events, e)
	return nil
}

// describe says what an event of a log claims to be, in one printable line.
func describe(e Event) string {
	switch e.Type {
	case EvEFIAction, EvAction:
		return fmt.Sprintf("the text %q", e.Data)
	case EvSeparator:
		return "separator"
	case EvVariableDriverConfig, EvVariableBoot, EvVariableAuthority:
		if name, size, ok := variableOf(e.Data); ok {
			return fmt.Sprintf("variable %q: %d bytes", name, size)
		}
	case EvIPL, EvCRTMVersion:
		return fmt.Sprintf("%q", decodeUTF16(e.Data))
	case EvEventTag:
		if len(e.Data) >= 8 {
			return fmt.Sprintf("%q", bytes.TrimRight(e.Data[8:], "\x00"))
		}
	}
	return fmt.Sprintf("%v with %d bytes of data", e.Type, len(e.Data))
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

func decodeUTF16(b []byte) string {
	var units []uint16
	for ; len(b) >= 2; b = b[2:] {
		units = append(units, binary.LittleEndian.Uint16(b))
	}
	return strings.TrimRight(string(utf16.Decode(units)), "\x00")
}
