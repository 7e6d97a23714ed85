package pcrs

import (
	"bytes"
	"crypto/sha512"
	"fmt"
	"hash"
	"slices"
)

// EventType says what kind of thing was measured (TCG PC Client PFP §10.4.1).
type EventType uint32

// The types of the specification, and two of our own.
const (
	EvPrebootCert             EventType = 0x00000000
	EvPostCode                EventType = 0x00000001
	EvNoAction                EventType = 0x00000003
	EvSeparator               EventType = 0x00000004
	EvAction                  EventType = 0x00000005
	EvEventTag                EventType = 0x00000006
	EvCRTMContents            EventType = 0x00000007
	EvCRTMVersion             EventType = 0x00000008
	EvCPUMicrocode            EventType = 0x00000009
	EvPlatformConfigFlags     EventType = 0x0000000a
	EvTableOfDevices          EventType = 0x0000000b
	EvCompactHash             EventType = 0x0000000c
	EvIPL                     EventType = 0x0000000d
	EvIPLPartitionData        EventType = 0x0000000e
	EvNonhostCode             EventType = 0x0000000f
	EvNonhostConfig           EventType = 0x00000010
	EvNonhostInfo             EventType = 0x00000011
	EvOmitBootDeviceEvents    EventType = 0x00000012
	EvPostCode2               EventType = 0x00000013
	EvVariableDriverConfig    EventType = 0x80000001
	EvVariableBoot            EventType = 0x80000002
	EvBootServicesApplication EventType = 0x80000003
	EvBootServicesDriver      EventType = 0x80000004
	EvRuntimeServicesDriver   EventType = 0x80000005
	EvGPT                     EventType = 0x80000006
	EvEFIAction               EventType = 0x80000007
	EvPlatformFirmwareBlob    EventType = 0x80000008
	EvHandOffTables           EventType = 0x80000009
	EvPlatformFirmwareBlob2   EventType = 0x8000000a
	EvHandOffTables2          EventType = 0x8000000b
	EvVariableBoot2           EventType = 0x8000000c
	EvGPT2                    EventType = 0x8000000d
	EvHCRTM                   EventType = 0x80000010
	EvVariableAuthority       EventType = 0x800000e0
	EvSPDMFirmwareBlob        EventType = 0x800000e1
	EvSPDMFirmwareConfig      EventType = 0x800000e2
	EvSPDMDevicePolicy        EventType = 0x800000e3
	EvSPDMDeviceAuthority     EventType = 0x800000e4
	// EvUserSpace is not in any log: it marks what an operating system extends with TPM2_PCR_Event.
	EvUserSpace EventType = 0xffffff00
	// EvLaunch is not in any log: it marks what a confidential machine was launched with.
	EvLaunch EventType = 0xffffff01
)

var eventNames = map[EventType]string{
	EvPrebootCert: "EV_PREBOOT_CERT", EvPostCode: "EV_POST_CODE", EvNoAction: "EV_NO_ACTION", EvSeparator: "EV_SEPARATOR", EvAction: "EV_ACTION",
	EvEventTag: "EV_EVENT_TAG", EvCRTMContents: "EV_S_CRTM_CONTENTS", EvCRTMVersion: "EV_S_CRTM_VERSION", EvCPUMicrocode: "EV_CPU_MICROCODE",
	EvPlatformConfigFlags: "EV_PLATFORM_CONFIG_FLAGS", EvTableOfDevices: "EV_TABLE_OF_DEVICES", EvCompactHash: "EV_COMPACT_HASH", EvIPL: "EV_IPL",
	EvIPLPartitionData: "EV_IPL_PARTITION_DATA", EvNonhostCode: "EV_NONHOST_CODE", EvNonhostConfig: "EV_NONHOST_CONFIG", EvNonhostInfo: "EV_NONHOST_INFO",
	EvOmitBootDeviceEvents: "EV_OMIT_BOOT_DEVICE_EVENTS", EvPostCode2: "EV_POST_CODE2",
	EvVariableDriverConfig: "EV_EFI_VARIABLE_DRIVER_CONFIG", EvVariableBoot: "EV_EFI_VARIABLE_BOOT", EvVariableBoot2: "EV_EFI_VARIABLE_BOOT2",
	EvBootServicesApplication: "EV_EFI_BOOT_SERVICES_APPLICATION", EvBootServicesDriver: "EV_EFI_BOOT_SERVICES_DRIVER",
	EvRuntimeServicesDriver: "EV_EFI_RUNTIME_SERVICES_DRIVER", EvGPT: "EV_EFI_GPT_EVENT", EvGPT2: "EV_EFI_GPT_EVENT2", EvEFIAction: "EV_EFI_ACTION",
	EvPlatformFirmwareBlob: "EV_EFI_PLATFORM_FIRMWARE_BLOB", EvPlatformFirmwareBlob2: "EV_EFI_PLATFORM_FIRMWARE_BLOB2",
	EvHandOffTables: "EV_EFI_HANDOFF_TABLES", EvHandOffTables2: "EV_EFI_HANDOFF_TABLES2", EvHCRTM: "EV_EFI_HCRTM_EVENT",
	EvVariableAuthority: "EV_EFI_VARIABLE_AUTHORITY", EvSPDMFirmwareBlob: "EV_EFI_SPDM_FIRMWARE_BLOB", EvSPDMFirmwareConfig: "EV_EFI_SPDM_FIRMWARE_CONFIG",
	EvSPDMDevicePolicy: "EV_EFI_SPDM_DEVICE_POLICY", EvSPDMDeviceAuthority: "EV_EFI_SPDM_DEVICE_AUTHORITY",
	EvUserSpace: "TPM2_PCR_Event", EvLaunch: "launch",
}

// String returns the specification's name, or the number if it has no name here.
func (t EventType) String() string {
	if name, ok := eventNames[t]; ok {
		return name
	}
	return fmt.Sprintf("EV_%#08x", uint32(t))
}

// MarshalText writes String's form.
func (t EventType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (t *EventType) UnmarshalText(text []byte) error {
	for known, name := range eventNames {
		if name == string(text) {
			*t = known
			return nil
		}
	}
	var number uint32
	if _, err := fmt.Sscanf(string(text), "EV_0x%x", &number); err != nil || EventType(number).String() != string(text) {
		return fmt.Errorf("event type %.64q is unknown", text)
	}
	*t = EventType(number)
	return nil
}

// hashesData reports whether the digest of such an event is the hash of its
// data. Of the others the log holds only a description.
func (t EventType) hashesData() bool {
	switch t {
	case EvSeparator, EvEFIAction, EvVariableDriverConfig, EvVariableAuthority, EvGPT, EvCRTMVersion:
		return true
	}
	return false
}

// logsOtherData reports whether real machines log such events with other data than they hash: firmware that measures its
// version as a volume's bytes and logs a name, shims that log a key in place of the variable that holds it, and firmware of TPM
// 1.2, which hashes a variable's value alone.
func (t EventType) logsOtherData(f LogFormat) bool {
	return t == EvCRTMVersion || t == EvVariableAuthority || t == EvVariableDriverConfig && f == FormatSHA1
}

// Origin says how a digest came to be known.
type Origin string

// The origins of an event.
const (
	// Derived digests are computed from the bytes that Source names.
	Derived Origin = "derived"
	// Learned digests were taken from a boot that was observed.
	Learned Origin = "learned"
	// Node digests are computed from what one node was configured with.
	Node Origin = "node"
)

// Event is one extend of one register.
type Event struct {
	// Register is NoRegister in an event that extends nothing and names none.
	Register Register
	Type     EventType
	// Digests are what is extended, per bank.
	Digests Digests
	// Data is the log's description of the event; predictions of large things leave it empty.
	Data []byte
	// Source says what is hashed. It is nil in an event that was read from a log: see From.
	Source *Source
	// Unproven says that Data is not what the digests are the hash of, although it should be.
	Unproven bool
	// Origin is empty for events that were read from a log.
	Origin Origin

	// content writes the bytes that a predicted event is the hash of, until Digests are computed.
	content func(hash.Hash) error
}

// mismatch returns a bank whose digest is not the hash of the data, if the type says that it is.
func (e Event) mismatch(banks []Bank) (Bank, bool) {
	if !e.Type.hashesData() {
		return 0, false
	}
	var room [sha512.Size]byte
	for _, bank := range banks {
		if !e.Digests[bank].Equal(bank.appendSum(room[:0], e.Data)) {
			return bank, true
		}
	}
	return 0, false
}

// Log is a sequence of events in the order in which they were measured.
type Log struct {
	// Format is what the log was read from; it is empty in a prediction.
	Format LogFormat
	// Banks are the banks of which every event has a digest: in the order of the log's header, or as they were predicted.
	Banks []Bank
	// Padding is how many bytes filled the rest of the log's buffer.
	Padding int
	// Locality is the startup locality, the last byte of PCR 0 before the first event (PFP §10.4.5.3).
	Locality uint8
	Events   []Event
}

// Replay returns the value that each register of a bank has after all events:
// value = H(value ‖ digest). PCR 17 to 22 start with ones, all others with
// zeros (TCG PC Client Platform TPM Profile §4.6.2). It fails if an event lacks a digest of the bank,
// but for a register that has no value in the bank, which it leaves out.
func (l Log) Replay(bank Bank) (Values, error) {
	if !bank.Valid() {
		return nil, fmt.Errorf("replay event log: %v is unknown", bank)
	}
	values := l.initial(bank)
	var both [2 * sha512.Size]byte
	for i, e := range l.Events {
		digest := e.Digests[bank]
		switch {
		case e.Type == EvNoAction, len(digest) == 0 && e.Register.Valid() && !slices.Contains(e.Register.Banks(), bank) && !e.Register.PCR():
			continue
		case !e.Register.Valid():
			return nil, fmt.Errorf("replay event log: event %d: no register %d", i, int(e.Register))
		case len(digest) != bank.Size():
			return nil, fmt.Errorf("replay event log: event %d (%v): %v digest of %d bytes, want %d", i, e.Register, bank, len(digest), bank.Size())
		}
		value, begun := values[e.Register]
		switch {
		case !e.Register.Extended() && begun:
			return nil, fmt.Errorf("replay event log: event %d: %v is computed once, and has a value already", i, e.Register)
		case !e.Register.Extended():
			values[e.Register] = bytes.Clone(digest)
			continue
		case !begun:
			value = l.start(bank, e.Register)
			values[e.Register] = value
		}
		bank.appendSum(value[:0], append(append(both[:0], value...), digest...))
	}
	return values, nil
}

// valuesOf replays the log for registers: those of a TPM in the bank, and others in their own. It leaves out those that the
// log says nothing of.
func (l Log) valuesOf(registers []Register, bank Bank) (Values, error) {
	out, replayed := Values{}, map[Bank]Values{}
	for _, r := range registers {
		in := r.In(bank)
		if replayed[in] == nil {
			values, err := l.Replay(in)
			if err != nil {
				return nil, err
			}
			replayed[in] = values
		}
		if value, ok := replayed[in][r]; ok {
			out[r] = value
		}
	}
	return out, nil
}

// initial returns the registers of the machine that the log is of, before the first event.
func (l Log) initial(bank Bank) Values {
	values := make(Values, RegisterCount)
	if l.Format == FormatCCEL {
		for n := range rtmrCount {
			values[RTMR(n)] = l.start(bank, RTMR(n))
		}
		return values
	}
	for r := range Register(RegisterCount) {
		values[r] = l.start(bank, r)
	}
	return values
}

// start is the value of a register when the machine starts: PCR 0 ends with the startup locality.
func (l Log) start(bank Bank, r Register) Digest {
	fill := byte(0)
	if r >= 17 && r <= 22 {
		fill = 0xff
	}
	value := bytes.Repeat([]byte{fill}, bank.Size())
	if r == 0 {
		value[bank.Size()-1] = l.Locality
	}
	return value
}

// Of returns the events of one register, in order.
func (l Log) Of(r Register) []Event {
	var out []Event
	for _, e := range l.Events {
		if e.Register == r && e.Type != EvNoAction {
			out = append(out, e)
		}
	}
	return out
}

func extend(bank Bank, value, digest Digest) Digest {
	h := bank.Hash().New()
	h.Write(value)
	h.Write(digest)
	return h.Sum(nil)
}
