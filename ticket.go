package hullmark

import (
	"encoding/hex"
	"fmt"
)

// UUID identifies a state disk: 16 random bytes, chosen when it is formatted.
type UUID [16]byte

// String returns the 8-4-4-4-12 form of RFC 9562 §4.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ParseUUID reads what String writes.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return u, fmt.Errorf("uuid %q: want the form 8-4-4-4-12", s)
	}
	if err := decodeHex(u[:], s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:]); err != nil {
		return UUID{}, fmt.Errorf("uuid %q: %w", s, err)
	}
	return u, nil
}

// MarshalText writes String's form.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (u *UUID) UnmarshalText(text []byte) (err error) {
	*u, err = ParseUUID(string(text))
	return err
}

// DiskState is what a node finds on its state disk.
type DiskState int

// The states of a state disk. The zero value is none of them.
const (
	// DiskBlank has zeros at both ends.
	DiskBlank DiskState = iota + 1
	// DiskFormatting was being formatted by us when the power went.
	DiskFormatting
	// DiskReady carries a valid record and holds data.
	DiskReady
	// DiskForeign is neither blank nor ours; it is never written.
	DiskForeign
)

// String returns the state's name in lower case.
func (s DiskState) String() string {
	switch s {
	case DiskBlank:
		return "blank"
	case DiskFormatting:
		return "formatting"
	case DiskReady:
		return "ready"
	case DiskForeign:
		return "foreign"
	}
	return fmt.Sprintf("disk state %d", int(s))
}

// DiskClaim is what a node says of its state disk in its first message.
// Nothing is decided from it alone: another owner or generation just derives a useless key.
type DiskClaim struct {
	State DiskState `json:"state"`
	UUID  UUID      `json:"uuid"`
	// Generation is the keyset generation that the disk was formatted under; 0 for a disk that is not ready.
	Generation uint32 `json:"generation"`
	// Owner is the node that the disk was formatted for; zero for a disk that is not ready.
	Owner EKID `json:"owner"`
}

// DiskGrant is what a node gets for its state disk.
type DiskGrant struct {
	// Key is DK, 32 bytes; the LUKS key and the header key derive from it.
	Key Secret
	// Generation is the keyset generation of Key.
	Generation uint32
	// UUID is the disk that Key is for.
	UUID UUID
	// Owner is the node that Key is for.
	Owner EKID
	// FormatAllowed permits formatting a blank disk; a disk that holds data is never formatted.
	FormatAllowed bool
	// Epoch bounds the counter that the disk may hold.
	Epoch EpochWindow
}

// EpochWindow is the window that a disk's counter e must lie in:
// Committed ≤ e < Issued; the node then writes e = Issued.
type EpochWindow struct {
	Committed uint64 `json:"committed"`
	Issued    uint64 `json:"issued"`
	// Unchecked tells the node to compare later, when the records can be read again.
	Unchecked bool `json:"unchecked,omitempty"`
}

// TicketKind says which exchange a ticket belongs to.
type TicketKind string

// The kinds of ticket. Init and Recover are given on the operator's channel only,
// Join and Rejoin by the join service only.
const (
	Init    TicketKind = "init"
	Join    TicketKind = "join"
	Rejoin  TicketKind = "rejoin"
	Recover TicketKind = "recover"
)

// Ticket is what an admitted node earns.
type Ticket struct {
	Kind TicketKind
	Disk DiskGrant
}
