package pcrs

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// moduleFolder is where the Go tool keeps a module that ours requires: others publish the logs of real machines in their tests.
func moduleFolder(t testing.TB, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", path+"@"+moduleVersion(t, path)).Output()
	var m struct{ Dir string }
	if err != nil || json.Unmarshal(out, &m) != nil || m.Dir == "" {
		t.Fatalf("module %s: %v: %s", path, err, out)
	}
	return m.Dir
}

func moduleVersion(t testing.TB, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", path).Output()
	if err != nil {
		t.Fatalf("module %s: %v", path, err)
	}
	return strings.TrimSpace(string(out))
}

// known is testdata/known.txt: the registers that real machines had, by the file of their log, as the module of that log states them.
func known(t testing.TB) map[string]map[string]Values {
	t.Helper()
	out := map[string]map[string]Values{}
	for line := range strings.Lines(string(readFile(t, "testdata/known.txt"))) {
		var file, bank, value string
		var r Register
		if _, err := fmt.Sscanf(line, "%s %s %d %s", &file, &bank, &r, &value); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		decoded, err := hex.DecodeString(value)
		if err != nil {
			t.Fatal(err)
		}
		if out[file] == nil {
			out[file] = map[string]Values{}
		}
		if out[file][bank] == nil {
			out[file][bank] = Values{}
		}
		if bank == "rtmr" {
			r = RTMR(int(r))
		}
		out[file][bank][r] = decoded
	}
	if len(out) < 17 {
		t.Fatalf("only %d logs have known registers", len(out))
	}
	return out
}

func readLog(t testing.TB, file string, ccel bool) (Log, error) {
	t.Helper()
	if ccel {
		return ParseCCEL(readFile(t, file))
	}
	return ParseLog(readFile(t, file))
}

// Every log of a real machine that others publish replays to the registers that they say it had.
func TestReplayOfRealMachines(t *testing.T) {
	folder := filepath.Join(moduleFolder(t, "github.com/google/go-eventlog"), "testdata", "eventlogs")
	for file, banks := range known(t) {
		log, err := readLog(t, filepath.Join(folder, file), strings.HasPrefix(file, "ccel/"))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for name, want := range banks {
			bank := SHA384
			if name != "rtmr" {
				if bank, err = ParseBank(name); err != nil {
					t.Fatal(err)
				}
			}
			got, err := log.Replay(bank)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			for r, value := range want {
				if !value.Equal(got[r]) {
					t.Errorf("%s: %v (%s): replayed %v, the machine had %v", file, r, name, got[r], value)
				}
			}
		}
	}
}

// A log with the registers of its machine, as go-attestation keeps them.
type attested struct {
	Log struct {
		PCRs []struct {
			Index  int
			Digest []byte
		}
		Raw []byte
	}
}

// Windows, and a laptop with a TPM 1.2 under Linux.
func TestReplayOfAttestedMachines(t *testing.T) {
	folder := filepath.Join(moduleFolder(t, "github.com/google/go-eventlog"), "testdata", "legacydata")
	for _, file := range []string{"windows_gcp_shielded_vm.json", "linux_tpm12.json"} {
		var a attested
		if err := json.Unmarshal(readFile(t, filepath.Join(folder, file)), &a); err != nil {
			t.Fatal(err)
		}
		log, err := ParseLog(a.Log.Raw)
		if err != nil || log.Format != FormatSHA1 {
			t.Errorf("%s: format %q, %v", file, log.Format, err)
			continue
		}
		compared := 0
		for _, bank := range log.Banks {
			got, err := log.Replay(bank)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range a.Log.PCRs {
				if len(r.Digest) != bank.Size() || r.Index > 7 {
					continue // what the operating system extended is in logs of its own
				}
				if compared++; !got[Register(r.Index)].Equal(r.Digest) {
					t.Errorf("%s: %v (%v): replayed %v, the machine had %x", file, Register(r.Index), bank, got[Register(r.Index)], r.Digest)
				}
			}
		}
		if compared < 8 {
			t.Errorf("%s: only %d registers compared", file, compared)
		}
	}
}

// Every log that others publish is read; what is wrong with some is told.
func TestParseEveryPublishedLog(t *testing.T) {
	for _, c := range []struct{ module, pattern string }{
		{"github.com/google/go-eventlog", "testdata/eventlogs/tpm/*"},
		{"github.com/google/go-eventlog", "testdata/eventlogs/ccel/[ceug]*[^e].bin"},
		{"github.com/google/go-eventlog", "testdata/legacydata/*_eventlog"},
		{"github.com/google/go-tdx-guest", "testing/testdata/ccel/ccel_data.dat"},
		{"github.com/google/go-tpm-tools", "internal/test/eventlogs/*"},
	} {
		files, err := filepath.Glob(filepath.Join(moduleFolder(t, c.module), c.pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no %s: %v", c.module, c.pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, ".table.bin") {
				continue // the ACPI table that leads to a log
			}
			log, err := readLog(t, file, strings.Contains(c.pattern, "ccel"))
			if err != nil || len(log.Events) == 0 {
				t.Errorf("%s: %d events, %v", file, len(log.Events), err)
			}
			if format, err := FormatOf(readFile(t, file)); err != nil || format != log.Format {
				t.Errorf("%s: told as %q, want %q; %v", file, format, log.Format, err)
			}
		}
	}
}

func TestParseLogTellsPaddingFromTruncation(t *testing.T) {
	raw := readFile(t, "testdata/ovmf-2025.02.log")
	whole, err := ParseLog(raw)
	if err != nil || whole.Padding != 0 || whole.Format != FormatAgile || len(whole.Banks) != 4 {
		t.Fatalf("padding %d, format %q, banks %v, %v", whole.Padding, whole.Format, whole.Banks, err)
	}
	for _, fill := range []byte{0, 0xff} {
		log, err := ParseLog(append(raw[:len(raw):len(raw)], bytes.Repeat([]byte{fill}, 333)...))
		if err != nil || log.Padding != 333 || len(log.Events) != len(whole.Events) {
			t.Errorf("filled with %#x: padding %d, %d events, %v", fill, log.Padding, len(log.Events), err)
		}
		if _, err := ParseLog(append(append(raw[:len(raw):len(raw)], bytes.Repeat([]byte{fill}, 333)...), 1)); err == nil {
			t.Errorf("filled with %#x and another byte: accepted", fill)
		}
	}
}

// What is neither a TPM's log nor a TDX guest's is not taken for either.
func TestFormatOfRefuses(t *testing.T) {
	raw := readFile(t, filepath.Join(moduleFolder(t, "github.com/google/go-tdx-guest"), "testing", "testdata", "ccel", "ccel_data.dat"))
	const first = 65 // the header of this log is 65 bytes long
	with := func(index uint32) []byte {
		changed := bytes.Clone(raw)
		binary.LittleEndian.PutUint32(changed[first:], index)
		return changed
	}
	twoBanks := readFile(t, "testdata/ovmf-2025.02.log")
	for name, c := range map[string]struct {
		raw  []byte
		want LogFormat
		says string
	}{
		"a TDX guest's":        {raw, FormatCCEL, ""},
		"one that extends 0":   {with(0), FormatAgile, ""},
		"one that extends 5":   {with(5), FormatAgile, ""},
		"one that extends 4":   {with(4), FormatCCEL, ""},
		"a header alone":       {raw[:first], "", "cannot be told"},
		"a header and padding": {append(raw[:first:first], make([]byte, 99)...), "", "cannot be told"},
		"cut off":              {raw[:first+30], "", "truncated"},
		"nothing":              {nil, FormatSHA1, "truncated"},
		"a TPM's":              {twoBanks, FormatAgile, ""},
		"too large":            {make([]byte, MaxLog+1), "", "at most"},
	} {
		format, err := FormatOf(c.raw)
		if format != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, format, err)
		}
	}
}

func TestParseCCELRefuses(t *testing.T) {
	raw := readFile(t, filepath.Join(moduleFolder(t, "github.com/google/go-tdx-guest"), "testing", "testdata", "ccel", "ccel_data.dat"))
	log, err := ParseCCEL(raw)
	if err != nil || log.Events[1].Register.String() != "RTMR 0" {
		t.Fatal(err)
	}
	const first = 65 // the header of this log is 65 bytes long
	foreign := bytes.Clone(raw)
	binary.LittleEndian.PutUint32(foreign[first:], 5)
	if _, err := ParseCCEL(foreign); err == nil || !strings.Contains(err.Error(), "no RTMR has index 5") {
		t.Errorf("RTMR 4: %v", err)
	}
	old := readFile(t, filepath.Join(moduleFolder(t, "github.com/google/go-eventlog"), "testdata", "legacydata", "ebs_event_missing_eventlog"))
	if _, err := ParseCCEL(old); err == nil || !strings.Contains(err.Error(), "no CCEL log") {
		t.Errorf("a log of TCG 1.2: %v", err)
	}
}
