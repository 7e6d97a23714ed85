package pcrs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// MaxList is the largest list of registers that is read, in bytes.
const MaxList = 1 << 16

var (
	// bankLine and valueLine are what tpm2_pcrread(1) prints, "  sha256:" and "    4 : 0x3D4587…".
	bankLine  = regexp.MustCompile(`^\s*(sha[0-9]+):\s*$`)
	valueLine = regexp.MustCompile(`^\s*([0-9]{1,2})\s*:\s*0x([0-9A-Fa-f]{40,128})\s*$`)
	// replayLine is what hullmark eventlog replay prints, "sha256  PCR 4  3d4587…".
	replayLine = regexp.MustCompile(`^\s*(sha[0-9]+)\s+PCR\s+([0-9]{1,2})\s+([0-9A-Fa-f]{40,128})\s*$`)
)

// ParseList reads the registers of all banks as tpm2_pcrread or hullmark eventlog
// replay prints them, at most MaxList bytes. Any other line is an error, and so is a register that is there twice.
func ParseList(text []byte) (map[Bank]Values, error) {
	if len(text) > MaxList {
		return nil, fmt.Errorf("read registers: %d bytes, want at most %d", len(text), MaxList)
	}
	out := map[Bank]Values{}
	var bank string
	for i, line := range strings.Split(string(text), "\n") {
		var err error
		if m := bankLine.FindStringSubmatch(line); m != nil {
			bank = m[1]
		} else if m := valueLine.FindStringSubmatch(line); m != nil {
			err = addValue(out, bank, m[1], m[2])
		} else if m := replayLine.FindStringSubmatch(line); m != nil {
			err = addValue(out, m[1], m[2], m[3])
		} else if strings.TrimSpace(line) != "" {
			err = fmt.Errorf("%.80q is no register; want the output of tpm2_pcrread or hullmark eventlog replay", line)
		}
		if err != nil {
			return nil, fmt.Errorf("read registers: line %d: %w", i+1, err)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("read registers: there are none; want the output of tpm2_pcrread or hullmark eventlog replay")
	}
	return out, nil
}

func addValue(out map[Bank]Values, name, register, digits string) error {
	bank, err := ParseBank(name)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(register)
	if err != nil || !Register(n).PCR() {
		return fmt.Errorf("no register %s", register)
	}
	value, err := hex.DecodeString(digits)
	if err != nil || len(value) != bank.Size() {
		return fmt.Errorf("register %d: want %d bytes for %v", n, bank.Size(), bank)
	}
	if out[bank] == nil {
		out[bank] = Values{}
	}
	if _, twice := out[bank][Register(n)]; twice {
		return fmt.Errorf("%v %v is there twice", bank, Register(n))
	}
	out[bank][Register(n)] = value
	return nil
}
