package pcrs

import (
	"encoding/binary"
	"fmt"
	"maps"
)

// BootAggregate returns the event with which Linux's IMA begins PCR 10, given
// PCR 0 to 9 of bank SHA256 as they were when the kernel started. It is the only
// one without an IMA policy. Its digests are those of the template ima-sig: the
// length of each field in 32 bits, little-endian, and the field: the hash with
// its name, the event's name, no signature (Documentation/security/IMA-templates.rst).
func BootAggregate(values Values) (Event, error) {
	var registers []byte
	for r := Register(0); r <= 9; r++ {
		if len(values[r]) != SHA256.Size() {
			return Event{}, fmt.Errorf("boot aggregate: %v of bank %v is missing", r, SHA256)
		}
		registers = append(registers, values[r]...)
	}
	var template []byte
	for _, field := range []string{"sha256:\x00" + string(SHA256.sum(registers)), "boot_aggregate\x00", ""} {
		template = binary.LittleEndian.AppendUint32(template, uint32(len(field)))
		template = append(template, field...)
	}
	return Event{
		Register: 10, Type: EvUserSpace, Digests: DigestsOf(template, SHA1, SHA256, SHA384, SHA512), Data: template,
		Source: &Source{Kind: FromBootAggregate}, Origin: Derived,
	}, nil
}

// FollowsFromOthers reports whether PCR 10 of bank SHA256 is what IMA makes of PCR 0 to 9, and nothing more: it says no more
// than they do. PCR 8 is taken as it was when the kernel started, which is zero.
func FollowsFromOthers(values Values) bool {
	before := Values{}
	maps.Copy(before, values)
	before[8] = make(Digest, SHA256.Size())
	e, err := BootAggregate(before)
	if err != nil {
		return false
	}
	replayed, err := Log{Events: []Event{e}}.Replay(SHA256)
	return err == nil && replayed[10].Equal(values[10])
}
