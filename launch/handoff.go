package launch

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark/pcrs/firmware"
)

// Where QEMU's machine q35 splits memory (hw/i386/pc_q35.c): from lowFrom on, what is above lowEnd continues at 4 GiB.
const (
	lowFrom = 0xb0000000
	lowEnd  = 0x80000000
)

// span is a range of a guest's memory.
type span struct {
	start, end uint64
	accepted   bool
}

// handOff returns what is measured of the list of memory that QEMU hands over (UEFI PI 1.7, volume 3, chapter 5: hand-off blocks):
// all of it but the block that ends it.
func handOff(sections []firmware.TDXSection, memory uint64) ([]byte, error) {
	if memory == 0 || memory > 1<<46 {
		return nil, fmt.Errorf("%d bytes of memory", memory)
	}
	var accepted []span
	var at uint64
	for _, s := range sections {
		if s.Kind == firmware.TDXHandOff {
			if at != 0 {
				return nil, errors.New("the firmware has two places for the list of memory")
			}
			at = s.Address
		}
		if s.Kind == firmware.TDXHandOff || s.Kind == firmware.TDXMemory {
			accepted = append(accepted, span{s.Address, s.Address + s.Size, true})
		}
	}
	if at == 0 {
		return nil, errors.New("the firmware has no place for a list of memory")
	}
	slices.SortFunc(accepted, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	spans, err := split(accepted, memory)
	if err != nil {
		return nil, err
	}
	return encodeHandOff(spans, at), nil
}

// split covers the memory with spans, of which those that the host adds are accepted.
func split(accepted []span, memory uint64) ([]span, error) {
	end, high := memory, uint64(0)
	if memory >= lowFrom {
		end, high = lowEnd, memory-lowEnd
	}
	var spans []span
	var at uint64
	for _, s := range accepted {
		if s.end > end {
			return nil, fmt.Errorf("the firmware wants memory up to %#x, and the machine has %#x bytes below 4 GiB", s.end, end)
		}
		if s.start > at {
			spans = append(spans, span{at, s.start, false})
		}
		spans, at = append(spans, s), s.end
	}
	if at < end {
		spans = append(spans, span{at, end, false})
	}
	if high > 0 {
		spans = append(spans, span{fourGiB, fourGiB + high, false})
	}
	return spans, nil
}

// encodeHandOff writes the blocks for a list at an address: one that names the list's end, and one for each span.
func encodeHandOff(spans []span, address uint64) []byte {
	const first, resource, last = 56, 48, 8
	const accepted, unaccepted, attributes = 0, 7, 7
	le := binary.LittleEndian
	out := make([]byte, first+resource*len(spans))
	le.PutUint16(out, 1)
	le.PutUint16(out[2:], first)
	le.PutUint32(out[8:], 9)
	le.PutUint64(out[48:], address+uint64(len(out))+last)
	for i, s := range spans {
		b := out[first+resource*i:]
		le.PutUint16(b, 3)
		le.PutUint16(b[2:], resource)
		le.PutUint32(b[24:], unaccepted)
		if s.accepted {
			le.PutUint32(b[24:], accepted)
		}
		le.PutUint32(b[28:], attributes)
		le.PutUint64(b[32:], s.start)
		le.PutUint64(b[40:], s.end-s.start)
	}
	return out
}
