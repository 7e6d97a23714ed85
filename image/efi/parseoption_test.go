package efi

import (
	"bytes"
	"testing"
)

var testPartition = Partition{Number: 1, First: 2048, Sectors: 4096, GUID: GUID{1, 2, 3}}

func TestParseLoadOption(t *testing.T) {
	b := LoadOption(OptionActive|OptionHidden, "Linux ü", FilePath(testPartition, "EFI/BOOT/BOOTX64.EFI"), []byte("quiet"))
	o, err := ParseLoadOption(b)
	if err != nil || o.Attributes != OptionActive|OptionHidden || o.Description != "Linux ü" || string(o.Optional) != "quiet" || len(o.Nodes) != 2 {
		t.Fatalf("%+v, %v", o, err)
	}
	p, ok := o.Nodes[0].Partition()
	file, named := File(o.Nodes[1:])
	if !ok || p != testPartition || !named || file != "EFI/BOOT/BOOTX64.EFI" {
		t.Errorf("%+v, %v; %q, %v", p, ok, file, named)
	}
	if _, ok := o.Nodes[1].Partition(); ok {
		t.Error("a file is a partition")
	}
	if _, ok := File(o.Nodes); ok {
		t.Error("a partition is part of a file's name")
	}
}

func TestParseLoadOptionRefuses(t *testing.T) {
	good := LoadOption(OptionActive, "x", PCIPath(1), nil)
	for name, b := range map[string][]byte{
		"empty":          nil,
		"no description": good[:8],
		"no path":        good[:12],
		"no end":         append(bytes.Clone(good[:len(good)-4]), 2, 1, 4, 0),
		"short node":     LoadOption(0, "x", []byte{2, 1, 3, 0, 0x7f, 0xff, 4, 0}, nil),
		"after its end":  LoadOption(0, "x", []byte{0x7f, 0xff, 4, 0, 2, 1, 4, 0}, nil),
		"no path at all": LoadOption(0, "x", nil, nil),
		"too large":      make([]byte, MaxLoadOption+1),
	} {
		if o, err := ParseLoadOption(b); err == nil {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func FuzzParseLoadOption(f *testing.F) {
	f.Add(LoadOption(OptionActive, "x", PCIPath(1), []byte("y")))
	f.Add(LoadOption(OptionActive, "x", FilePath(testPartition, "EFI/x.efi"), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseLoadOption(b)
		if err != nil {
			return
		}
		for i, n := range o.Nodes {
			n.Partition()
			File(o.Nodes[i:])
		}
		if got := len(o.Path) + len(o.Optional); got > len(b)-8 {
			t.Errorf("%d bytes of %d", got, len(b))
		}
	})
}
