package pcrs

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func recordedLog(t testing.TB, name string) Log {
	t.Helper()
	log, err := ParseLog(readFile(t, "testdata/"+name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// recordedValues reads the registers that a TPM had after the recorded boot.
func recordedValues(t testing.TB, name string, bank Bank) Values {
	t.Helper()
	out := Values{}
	for line := range strings.Lines(string(readFile(t, "testdata/"+name+".pcrs"))) {
		var b, value string
		var r Register
		if _, err := fmt.Sscanf(line, "%s %d %s", &b, &r, &value); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if b != bank.String() {
			continue
		}
		decoded, err := hex.DecodeString(value)
		if err != nil {
			t.Fatal(err)
		}
		out[r] = decoded
	}
	return out
}

var recorded = []string{"ovmf-2025.02", "ovmf-2025.02-secureboot", "ovmf-2025.02-setupmode", "ovmf-2022.11-e1000e"}

func TestReplayEqualsTheTPM(t *testing.T) {
	for _, name := range recorded {
		log := recordedLog(t, name)
		for _, bank := range []Bank{SHA1, SHA256, SHA384, SHA512} {
			got, err := log.Replay(bank)
			if err != nil {
				t.Fatal(err)
			}
			want := recordedValues(t, name, bank)
			if len(want) != 16 {
				t.Fatalf("%s: %d recorded registers", name, len(want))
			}
			for r, value := range want {
				// IMA's event in PCR 10 is in the kernel's own list, not in the firmware's log.
				if r != 10 && !value.Equal(got[r]) {
					t.Errorf("%s: %v (%v): replayed %v, the TPM has %v", name, r, bank, got[r], value)
				}
			}
		}
	}
}

func TestReplayStartsAsTheTPMDoes(t *testing.T) {
	values, err := Log{Locality: 3}.Replay(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	zero, ones := strings.Repeat("00", 32), strings.Repeat("ff", 32)
	for r, want := range map[Register]string{0: zero[:62] + "03", 1: zero, 15: zero, 16: zero, 17: ones, 22: ones, 23: zero} {
		if values[r].String() != want {
			t.Errorf("%v starts as %v, want %s", r, values[r], want)
		}
	}
}

func TestReplayRefusesMissingDigest(t *testing.T) {
	log := Log{Events: []Event{{Register: 4, Type: EvSeparator, Digests: DigestsOf([]byte{0}, SHA256)}}}
	if _, err := log.Replay(SHA384); err == nil {
		t.Error("replayed an event without a digest of the bank")
	}
}

func TestParseLogReadsTheBanksThatAreAskedFor(t *testing.T) {
	raw := readFile(t, "testdata/ovmf-2025.02.log")
	log, err := ParseLog(raw, SHA256)
	if err != nil || len(log.Banks) != 1 {
		t.Fatalf("banks %v, %v", log.Banks, err)
	}
	for i, e := range recordedLog(t, "ovmf-2025.02").Events {
		if got := log.Events[i].Digests; len(got) != 1 || !got[SHA256].Equal(e.Digests[SHA256]) {
			t.Fatalf("event %d has the digests %v", i+1, got)
		}
	}
	if _, err := ParseLog(raw[:firstEvent(raw)], Bank(0x12)); err == nil || !strings.Contains(err.Error(), "names no digests of") {
		t.Errorf("a bank that the log has not: %v", err)
	}
}

func TestStartupLocality(t *testing.T) {
	raw := readFile(t, "testdata/ovmf-2025.02.log")
	header := 32 + int(binary.LittleEndian.Uint32(raw[28:]))
	event := noAction(t, append([]byte(localitySignature), 3))
	log, err := ParseLog(append(append([]byte{}, raw[:header]...), event...))
	if err != nil {
		t.Fatal(err)
	}
	if log.Locality != 3 {
		t.Errorf("locality %d, want 3", log.Locality)
	}
	if _, err := ParseLog(append(append([]byte{}, raw[:header]...), noAction(t, []byte(localitySignature))...)); err == nil {
		t.Error("accepted a startup locality without its byte")
	}
}

// noAction encodes an EV_NO_ACTION event with zero digests of four hashes.
func noAction(t *testing.T, data []byte) []byte {
	t.Helper()
	b := binary.LittleEndian.AppendUint32(nil, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(EvNoAction))
	b = binary.LittleEndian.AppendUint32(b, 4)
	for _, bank := range []Bank{SHA1, SHA256, SHA384, SHA512} {
		b = binary.LittleEndian.AppendUint16(b, uint16(bank))
		b = append(b, make([]byte, bank.Size())...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func TestParseLogRefuses(t *testing.T) {
	good := readFile(t, "testdata/ovmf-2025.02.log")
	edit := func(change func([]byte)) []byte {
		b := append([]byte{}, good...)
		change(b)
		return b
	}
	separator := strings.LastIndex(string(good), "Exit Boot Services Returned")
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"empty":            {nil, "truncated"},
		"truncated":        {good[:len(good)-1], "truncated"},
		"trailing byte":    {append(append([]byte{}, good...), 7), "truncated"},
		"too large":        {make([]byte, MaxLog+1), "at most"},
		"another header":   {edit(func(b []byte) { b[32] ^= 1 }), "truncated"},
		"unknown hash":     {edit(func(b []byte) { b[32+28] = 0x12 }), "sha1: not in the header"},
		"wrong hash size":  {edit(func(b []byte) { b[32+30]++ }), "wrong size"},
		"2^32 hashes":      {edit(func(b []byte) { copy(b[32+24:], "\xff\xff\xff\xff") }), "hashes"},
		"2^32 digests":     {edit(func(b []byte) { copy(b[firstEvent(b)+8:], "\xff\xff\xff\xff") }), "digests"},
		"wrong algorithm":  {edit(func(b []byte) { b[firstEvent(b)+12] = 0x12 }), "not in the header"},
		"algorithm twice":  {edit(func(b []byte) { b[firstEvent(b)+12+2+20] = byte(SHA1) }), "there twice"},
		"2^32 bytes":       {edit(func(b []byte) { copy(b[firstEvent(b)+12+4*2+20+32+48+64:], "\xff\xff\xff\xff") }), "truncated"},
		"foreign register": {edit(func(b []byte) { b[secondEvent(b)] = 24 }), "no register 24"},
		"changed data":     {edit(func(b []byte) { b[separator] ^= 1 }), "not the hash of its data"},
	} {
		if _, err := ParseLog(c.raw); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// firstEvent is the offset of the event after a log's header.
func firstEvent(log []byte) int { return 32 + int(binary.LittleEndian.Uint32(log[28:])) }

// secondEvent is the offset of the event after that, in a log with four hashes.
func secondEvent(log []byte) int {
	data := firstEvent(log) + 12 + 4*2 + 20 + 32 + 48 + 64
	return data + 4 + int(binary.LittleEndian.Uint32(log[data:]))
}

func FuzzParseLog(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.log")
	if err != nil || len(paths) == 0 {
		f.Fatal("no recorded logs", err)
	}
	for _, path := range paths {
		f.Add(readFile(f, path))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, err := ParseLog(raw)
		if err != nil {
			return
		}
		if len(log.Events) == 0 {
			return
		}
		for bank := range log.Events[0].Digests {
			if _, err := log.Replay(bank); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzExplain explains a real boot by whatever a machine says that it measured.
func FuzzExplain(f *testing.F) {
	for _, name := range recorded {
		f.Add(readFile(f, "testdata/"+name+".log"))
	}
	expected, err := ParseLog(readFile(f, "testdata/ovmf-2025.02-setupmode.log"))
	if err != nil {
		f.Fatal(err)
	}
	p := Prediction{Log: expected, Registers: []Register{2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, err := ParseLog(raw, SHA256)
		if err != nil {
			return
		}
		measured, err := log.Replay(SHA256)
		if err != nil {
			t.Fatal(err)
		}
		differences, err := Explain(p, SHA256, measured, &log)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range differences {
			if d.Expected.Equal(d.Measured) || d.String() == "" {
				t.Errorf("%v is no difference", d.Register)
			}
		}
		if _, err := Explain(p, SHA256, measured, nil); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseCCEL(f *testing.F) {
	f.Add(readFile(f, filepath.Join(moduleFolder(f, "github.com/google/go-eventlog"), "testdata", "eventlogs", "ccel", "CCEL_unpadded.data.bin")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		told, _ := FormatOf(raw)
		log, err := ParseCCEL(raw)
		if err == nil && told == FormatAgile {
			t.Fatal("a log that extends RTMRs alone is told to be a TPM's")
		}
		if err != nil {
			return
		}
		for _, e := range log.Events {
			if e.Register != NoRegister && (e.Register < RTMR(0) || e.Register > RTMR(rtmrCount-1)) {
				t.Fatalf("an event of %v", e.Register)
			}
		}
		for _, bank := range log.Banks {
			if _, err := log.Replay(bank); err != nil {
				t.Fatal(err)
			}
		}
	})
}
