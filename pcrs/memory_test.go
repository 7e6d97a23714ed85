package pcrs

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/hullmark/hullmark/internal/memtest"
)

// hostileLog is how long a log is that tries to exhaust its reader, and costLimit what reading and explaining it may allocate, in bytes.
const (
	hostileLog = 16 << 20
	costLimit  = 64 << 20
)

// logHeader is the first event of a crypto-agile log, with the given hashes and digest sizes.
func logHeader(sizes map[Bank]int) []byte {
	spec := append([]byte(specIDSignature), make([]byte, 8)...)
	spec = binary.LittleEndian.AppendUint32(spec, uint32(len(sizes)))
	for bank, size := range sizes {
		spec = binary.LittleEndian.AppendUint16(spec, uint16(bank))
		spec = binary.LittleEndian.AppendUint16(spec, uint16(size))
	}
	spec = append(spec, 0)
	b := binary.LittleEndian.AppendUint32(nil, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(EvNoAction))
	b = append(b, make([]byte, SHA1.Size())...)
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(spec))), spec...)
}

// logEvent is an event whose digests are right where the bank is known.
func logEvent(sizes map[Bank]int, r Register, kind EventType, data []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(r))
	b = binary.LittleEndian.AppendUint32(b, uint32(kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(sizes)))
	for bank, size := range sizes {
		digest := make([]byte, size)
		if bank.Valid() {
			digest = bank.sum(data)
		}
		b = append(binary.LittleEndian.AppendUint16(b, uint16(bank)), digest...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// filled repeats an event until a log has the length, and fills the rest with zeros.
func filled(header, event []byte, length int) []byte {
	out := append(header, bytes.Repeat(event, (length-len(header))/len(event))...)
	return append(out, make([]byte, length-len(out))...)
}

var (
	fourBanks  = map[Bank]int{SHA1: 20, SHA256: 32, SHA384: 48, SHA512: 64}
	eightBanks = map[Bank]int{SHA1: 20, SHA256: 32, SHA384: 48, SHA512: 64, 0x12: 1, 0x27: 1, 0x28: 1, 0x29: 1}
)

// hostileLogs are logs of the given length, by what they try.
func hostileLogs(length int) map[string][]byte {
	// The worst data for a description: no byte is printable, so each takes four to ten.
	odd := func(n int) []byte { return bytes.Repeat([]byte{1, 0, 0xff, 0xd8}, n/4) }
	one := func(kind EventType) []byte {
		header := logHeader(fourBanks)
		return append(header, logEvent(fourBanks, 4, kind, odd(length-len(header)-1024))...)
	}
	name := append(make([]byte, 32), odd(length-2048)...)
	binary.LittleEndian.PutUint64(name[16:], uint64(len(name)-32)/2)
	many := func(sizes map[Bank]int, kind EventType, data []byte) []byte {
		return filled(logHeader(sizes), logEvent(sizes, 0, kind, data), length)
	}
	noAction := many(fourBanks, EvNoAction, append([]byte(localitySignature), 3))
	tiny := map[Bank]int{SHA1: 20}
	return map[string][]byte{
		"one text":                         one(EvEFIAction),
		"one load option":                  one(EvIPL),
		"one tagged event":                 one(EvEventTag),
		"one variable":                     append(logHeader(fourBanks), logEvent(fourBanks, 7, EvVariableDriverConfig, name)...),
		"one unknown event":                one(0x7777),
		"tiny events":                      many(tiny, EvIPL, nil),
		"tiny events, 1.2":                 bytes.Repeat(append(binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(EvIPL)), make([]byte, 24)...), length/32),
		"eight hashes":                     many(eightBanks, EvIPL, nil),
		"as many events as a log may have": filled(logHeader(eightBanks), bytes.Repeat(logEvent(eightBanks, 0, EvIPL, nil), MaxEvents), length),
		"all padding":                      append(logHeader(fourBanks), make([]byte, length-4096)...),
		"nothing but ones":                 append(logHeader(fourBanks), bytes.Repeat([]byte{0xff}, length-4096)...),
		"startup localities":               noAction,
	}
}

// A hostile log of any length costs no more than it should, whether it is read or refused.
func TestHostileLogsCostLittle(t *testing.T) {
	p, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{hostileLog, MaxLog} {
		for name, raw := range hostileLogs(length) {
			if len(raw) > length || len(raw) < length-8192 {
				t.Fatalf("%s: the test made %d bytes of %d", name, len(raw), length)
			}
			var read error
			spent := memtest.Cost(func() { read = explainLog(t, p, raw) })
			t.Logf("%8d bytes of %s: %d allocated, %v", length, name, spent, read)
			if spent > costLimit/hostileLog*uint64(length) {
				t.Errorf("%d bytes of %s cost %d bytes of memory", length, name, spent)
			}
		}
	}
}

// explainLog does with a log all that can be done with it.
func explainLog(t *testing.T, p Prediction, raw []byte) error {
	log, err := ParseLog(raw)
	if err != nil {
		return err
	}
	for _, bank := range log.Banks {
		values, err := log.Replay(bank)
		if err != nil {
			t.Fatal(err)
		}
		if bank != SHA256 {
			continue
		}
		differences, err := Explain(p, bank, values, &log)
		if err != nil || len(differences) == 0 {
			t.Fatalf("%d differences, %v", len(differences), err)
		}
		for _, d := range differences {
			_ = d.String()
		}
	}
	return nil
}

// bomb is a firmware file of some hundred bytes whose volume says that it unpacks to length bytes with a dictionary of that size.
func bomb(length uint32) []byte {
	section := binary.LittleEndian.AppendUint32(nil, 164|2<<24)
	section = append(section, guidLZMASection[:]...)
	section = append(section, 24, 0, 1, 0, 0x5d)
	section = binary.LittleEndian.AppendUint32(section, length)
	section = binary.LittleEndian.AppendUint64(section, uint64(length))
	return append(section, make([]byte, 164)...)
}

// The other decoders, each with the largest input that it takes, or one that claims most.
func TestHostileFilesCostLittle(t *testing.T) {
	list := func(b []byte) error { _, err := ParseList(b); return err }
	for name, c := range map[string]struct {
		input []byte
		limit uint64 // bytes
		open  func([]byte) error
	}{
		"firmware that claims much": {bomb(maxFirmwareVolume), 2*maxFirmwareVolume + 1<<20, func(b []byte) error { _, err := OpenFirmware(b); return err }},
		"registers, empty lines":    {bytes.Repeat([]byte("\n"), MaxList), 32 * MaxList, list},
		"registers, no values":      {bytes.Repeat([]byte("sha1:\n"), MaxList/6), 32 * MaxList, list},
		"a ROM of many images":      {bytes.Repeat(notLast(testROM(0, codeTypeEFI)), MaxROM/1024), 1 << 20, func(b []byte) error { _, err := OpenROM(b); return err }},
		"variables, all erased":     {erased(t), MaxVars, func(b []byte) error { _, err := OpenVars(b[:len(b)-1]); return err }},
	} {
		var err error
		spent := memtest.Cost(func() { err = c.open(c.input) })
		t.Logf("%s: %d allocated for %d bytes, %v", name, spent, len(c.input), err)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if spent > c.limit {
			t.Errorf("%s: %d bytes cost %d bytes of memory, want at most %d", name, len(c.input), spent, c.limit)
		}
	}
}

func notLast(rom []byte) []byte {
	rom[0x1c+21] = 0
	return rom
}

// erased is a variable file in which all but the headers is free space.
func erased(t *testing.T) []byte {
	b := gunzip(t, "testdata/ovmf-2025.02.vars.gz")
	for i := 200; i < len(b); i++ {
		b[i] = 0xff
	}
	return b
}
