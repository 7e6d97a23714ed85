package pcrs

import (
	"strings"
	"testing"
)

func TestParseList(t *testing.T) {
	value := strings.Repeat("3D", 32)
	for name, text := range map[string]string{
		"tpm2_pcrread": "  sha1:\n    4 : 0x" + value[:40] + "\n  sha256:\n    4 : 0x" + value + "\n    11: 0x" + value + "\n",
		"replay":       "sha1    PCR 4   " + value[:40] + "\nsha256  PCR 4   " + strings.ToLower(value) + "\nsha256  PCR 11  " + value + "\n",
	} {
		got, err := ParseList([]byte(text))
		if err != nil || len(got) != 2 || len(got[SHA256]) != 2 || got[SHA256][11].String() != strings.ToLower(value) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, text := range map[string]string{
		"nothing":         "\n",
		"prose":           "all is well",
		"no bank":         "4 : 0x" + value,
		"unknown bank":    "sha7:\n4 : 0x" + value,
		"wrong length":    "sha384:\n4 : 0x" + value,
		"no such PCR":     "sha256:\n24 : 0x" + value,
		"twice":           "sha256:\n4 : 0x" + value + "\n4 : 0x" + value,
		"too much":        strings.Repeat("\n", MaxList+1),
		"an odd digit":    "sha256:\n4 : 0x" + value + "A",
		"no hexadecimals": "sha256:\n4 : 0x" + strings.Repeat("xy", 32),
	} {
		if got, err := ParseList([]byte(text)); err == nil || got != nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add([]byte("  sha256:\n    4 : 0x" + strings.Repeat("3D", 32) + "\n"))
	f.Add([]byte("sha256  PCR 4   " + strings.Repeat("3d", 32) + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		banks, err := ParseList(text)
		if err != nil {
			return
		}
		for bank, values := range banks {
			for r, v := range values {
				if !r.Valid() || len(v) != bank.Size() {
					t.Fatalf("%v %v: %v", bank, r, v)
				}
			}
		}
	})
}
