package devmapper

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEncodeTarget(t *testing.T) {
	m := message{name: "root", uuid: "u", flags: unix.DM_READONLY_FLAG, target: &Target{Length: 8, Type: "verity", Params: "1 a b"}}
	buf, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeTargets(buf[headerSize:], 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != *m.target {
		t.Errorf("targets = %+v, want %+v", got, *m.target)
	}
	if name := cString(buf[48:]); name != "root" {
		t.Errorf("name = %q, want root", name)
	}
}

func TestEncodeRefusesWhatDoesNotFit(t *testing.T) {
	for _, m := range []message{
		{name: ""},
		{name: strings.Repeat("n", nameSize)},
		{name: "n", target: &Target{Type: strings.Repeat("t", 16)}},
		{name: "n", target: &Target{Params: strings.Repeat("p", bufferSize)}},
	} {
		if _, err := m.encode(); err == nil {
			t.Errorf("encode(%.20q …) succeeded", m.name)
		}
	}
}

// Several targets are chained by offsets from the start of the first one.
func TestDecodeChain(t *testing.T) {
	data := make([]byte, 200)
	copy(data[24:], "crypt")
	copy(data[40:], "one")
	binary.LittleEndian.PutUint32(data[20:], 64)
	copy(data[64+24:], "integrity")
	copy(data[64+40:], "two")
	got, err := decodeTargets(data, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Params != "one" || got[1].Type != "integrity" || got[1].Params != "two" {
		t.Errorf("targets = %+v", got)
	}
	binary.LittleEndian.PutUint32(data[20:], 190)
	if _, err := decodeTargets(data, 2); err == nil {
		t.Error("a target outside the answer was accepted")
	}
}
