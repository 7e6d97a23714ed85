package pcrs

import (
	"fmt"
	"strconv"
	"strings"
)

// Register names what holds a measurement of a boot. A platform configuration register of a TPM is its number, 0 to 23
// (TCG PC Client Platform TPM Profile §4.6); the constants and RTMR name those of confidential machines.
type Register int

// RegisterCount is how many registers a bank of a TPM has.
const RegisterCount = 24

// rtmrCount is how many run-time measurement registers a TDX guest has.
const rtmrCount = 4

// What is no register of a TPM. Its values are of bank SHA384 alone.
const (
	// NoRegister stands in events that extend nothing.
	NoRegister Register = -1

	firstRTMR Register = 0x100
	// MRTD is the measurement of a TDX guest before it runs (Intel TDX Module 1.5 Base Architecture Specification §12.2).
	MRTD Register = 0x200
	// LaunchDigest is the measurement of an SEV-SNP guest before it runs (AMD 56860, SNP_LAUNCH_UPDATE).
	LaunchDigest Register = 0x300
)

// RTMR is the run-time measurement register of that number of a TDX guest, 0 to 3; of another number it is NoRegister.
func RTMR(number int) Register {
	if number < 0 || number >= rtmrCount {
		return NoRegister
	}
	return firstRTMR + Register(number)
}

// PCR reports whether the register is a TPM's.
func (r Register) PCR() bool { return r >= 0 && r < RegisterCount }

// Valid reports whether a TPM or a confidential machine has the register.
func (r Register) Valid() bool { return r.Extended() || r == MRTD || r == LaunchDigest }

// Extended reports whether events are extended into the register one after the other. MRTD and LaunchDigest are computed once,
// before the machine runs; each has one event, whose digest is the register's value.
func (r Register) Extended() bool { return r.PCR() || r >= firstRTMR && r < firstRTMR+rtmrCount }

// Banks returns the banks of which a prediction has the register's value.
func (r Register) Banks() []Bank {
	if r.PCR() {
		return PredictedBanks()
	}
	return []Bank{SHA384}
}

// In returns the bank in which the register has values when a TPM's are of bank: bank itself for a PCR, SHA384 for others.
func (r Register) In(bank Bank) Bank {
	if r.PCR() {
		return bank
	}
	return r.Banks()[0]
}

// String returns the name that people use, such as "PCR 11".
func (r Register) String() string {
	switch {
	case r == MRTD:
		return "MRTD"
	case r == LaunchDigest:
		return "launch digest"
	case r == NoRegister:
		return "no register"
	case r.Extended() && !r.PCR():
		return fmt.Sprintf("RTMR %d", int(r-firstRTMR))
	}
	return fmt.Sprintf("PCR %d", int(r))
}

// MarshalText writes a name for programs: "pcr11", "rtmr0", "mrtd", "launch-digest".
func (r Register) MarshalText() ([]byte, error) {
	if !r.Valid() {
		return nil, fmt.Errorf("no register %d", int(r))
	}
	return []byte(strings.NewReplacer("PCR ", "pcr", "RTMR ", "rtmr", "MRTD", "mrtd", "launch digest", "launch-digest").Replace(r.String())), nil
}

// UnmarshalText reads what MarshalText writes.
func (r *Register) UnmarshalText(text []byte) error {
	name := string(text)
	number, first := strings.TrimPrefix(name, "pcr"), Register(0)
	if rest, ok := strings.CutPrefix(name, "rtmr"); ok {
		number, first = rest, firstRTMR
	}
	found := NoRegister
	switch n, err := strconv.Atoi(number); {
	case name == "mrtd":
		found = MRTD
	case name == "launch-digest":
		found = LaunchDigest
	case err == nil:
		found = first + Register(n)
	}
	if again, err := found.MarshalText(); err != nil || string(again) != name {
		return fmt.Errorf("register %q: want pcr0 to pcr%d, rtmr0 to rtmr%d, mrtd or launch-digest", name, RegisterCount-1, rtmrCount-1)
	}
	*r = found
	return nil
}
