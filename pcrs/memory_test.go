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

// TestHostileListsCostLittle reads the largest lists of registers that are taken.
func TestHostileListsCostLittle(t *testing.T) {
	list := func(b []byte) error { _, err := ParseList(b); return err }
	for name, c := range map[string]struct {
		input []byte
		limit uint64 // bytes
		open  func([]byte) error
	}{
		"registers, empty lines": {bytes.Repeat([]byte("\n"), MaxList), 32 * MaxList, list},
		"registers, no values":   {bytes.Repeat([]byte("sha1:\n"), MaxList/6), 32 * MaxList, list},
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
