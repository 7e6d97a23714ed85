package pcrs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// bootVars are variables of boot entries: their numbers in BootOrder, and their content.
func bootVars(t testing.TB, order []uint16, entries map[uint16][]byte) firmware.Vars {
	t.Helper()
	v := vars(t, "testdata/ovmf-2025.02.vars.gz")
	var data []byte
	for _, n := range order {
		data = binary.LittleEndian.AppendUint16(data, n)
	}
	if len(data) > 0 {
		v = v.With(efi.GlobalVariable, "BootOrder", data)
	}
	for n, entry := range entries {
		v = v.With(efi.GlobalVariable, bootName(n), entry)
	}
	return v
}

// TestBootPlan has variables as machines have them, and what OVMF makes of those.
func TestBootPlan(t *testing.T) {
	m, _ := learnedMachine(t)
	table := testTable(t)
	active := uint32(efi.OptionActive)
	esp := efi.Partition{Number: 1, First: 2048, Sectors: 2048, GUID: efi.MustGUID(table.Partitions[0].GUID.String())}
	gone := efi.Partition{Number: 1, First: 2048, Sectors: 2048, GUID: efi.GUID{9}}
	onESP := func(file string) []byte {
		return efi.LoadOption(active, "Linux Boot Manager", efi.FilePath(esp, file), nil)
	}
	image, other := onESP("EFI/BOOT/BOOTX64.EFI"), onESP("EFI/debian/shimx64.efi")
	onGone := efi.LoadOption(active, "debian", efi.FilePath(gone, "EFI/debian/shimx64.efi"), nil)
	disk := efi.LoadOption(active, "UEFI Misc Device", efi.PCIPath(1), guidAutoCreatedEntry[:])
	anotherDisk := efi.LoadOption(active, "UEFI Misc Device 2", efi.PCIPath(2), guidAutoCreatedEntry[:])
	network := efi.LoadOption(active, "PXE", efi.PCIPath(4), []byte("by hand"))
	named := efi.LoadOption(active, "our disk", efi.PCIPath(1), nil)
	optioned := efi.LoadOption(active, "our disk", efi.PCIPath(1), []byte("q\x00\x00\x00"))
	ui := efi.LoadOption(active|efi.OptionHidden|efi.OptionApplication, "UiApp", efi.VolumePath(guidVolume, guidUiApp), nil)
	renamedUI := efi.LoadOption(active|efi.OptionHidden|efi.OptionApplication, "Setup", efi.VolumePath(guidVolume, guidUiApp), nil)
	shell := efi.LoadOption(active, "EFI Internal Shell", efi.VolumePath(guidVolume, guidShell), nil)
	oldShell := efi.LoadOption(active, "EFI Internal Shell", efi.VolumePath(efi.GUID{7}, guidShell), nil)
	noFile := efi.LoadOption(active, "grub", efi.VolumePath(guidVolume, efi.GUID{8}), nil)
	passive := efi.LoadOption(0, "Linux Boot Manager", efi.FilePath(esp, "EFI/BOOT/BOOTX64.EFI"), nil)
	type entries = map[uint16][]byte
	for name, c := range map[string]struct {
		order   []uint16
		entries entries
		next    []byte
		esp     []string
		want    string
		first   string
		options string
	}{
		"none":                     {want: "1 0 2"},
		"outside of BootOrder":     {entries: entries{0: other, 1: other, 7: image}, want: "1 0 2"},
		"those of an earlier boot": {order: []uint16{1, 0, 2}, entries: entries{1: disk, 0: ui, 2: shell}, want: "1 0 2"},
		"made in another order":    {order: []uint16{2, 0, 1}, entries: entries{1: disk, 0: ui, 2: shell}, want: "1 2 0"},
		"under other numbers":      {order: []uint16{4, 5, 6}, entries: entries{4: ui, 5: shell, 6: disk}, want: "6 4 5"},
		"the image's, by name":     {order: []uint16{5}, entries: entries{5: image}, want: "5 1 0 2"},
		"the same, last":           {order: []uint16{1, 0, 2, 5}, entries: entries{1: disk, 0: ui, 2: shell, 5: image}, want: "1 5 0 2"},
		"not on the ESP":           {order: []uint16{0}, entries: entries{0: other}, want: "2 1 3"},
		"on the ESP":               {order: []uint16{0}, entries: entries{0: other}, esp: []string{"efi/debian/shimx64.efi"}, want: "0 2 1 3", first: `Boot0000 ("Linux Boot Manager")`},
		"on the ESP, after the disk": {
			order: []uint16{3, 7}, entries: entries{3: disk, 7: other}, esp: []string{"efi/debian/shimx64.efi"}, want: "3 7 0 1",
		},
		"of a disk that is gone":    {order: []uint16{0, 1}, entries: entries{0: onGone, 1: anotherDisk}, want: "1 2 3"},
		"of the network":            {order: []uint16{0}, entries: entries{0: network}, want: "2 1 3"},
		"not active":                {order: []uint16{0}, entries: entries{0: passive}, want: "2 1 3"},
		"missing":                   {order: []uint16{0, 3}, want: "1 0 2"},
		"the disk, made by hand":    {order: []uint16{0}, entries: entries{0: named}, want: "0 2 1 3"},
		"with options":              {order: []uint16{0}, entries: entries{0: optioned}, want: "0 2 1 3", options: `Boot0000 ("our disk") hands options`},
		"of an older firmware":      {order: []uint16{0, 1, 2}, entries: entries{0: ui, 1: oldShell, 2: noFile}, want: "3 0 4"},
		"the setup program renamed": {order: []uint16{9}, entries: entries{9: renamedUI}, want: "0 9 1"},
		"BootNext is the disk":      {order: []uint16{1, 0, 2}, entries: entries{1: disk, 0: ui, 2: shell}, next: []byte{1, 0}, want: "1 0 2"},
		"BootNext is another":       {entries: entries{9: other}, next: []byte{9, 0}, want: "1 0 2", first: `Boot0009`},
		"BootNext is setup":         {order: []uint16{1, 0, 2}, entries: entries{1: disk, 0: ui, 2: shell}, next: []byte{0, 0}, want: "1 0 2", first: `Boot0000 ("UiApp")`},
		"BootNext is missing":       {next: []byte{1, 0}, want: "2 0 3"},
		"BootNext is torn":          {next: []byte{1}, want: "1 0 2"},
	} {
		m.Vars = bootVars(t, c.order, c.entries)
		if c.next != nil {
			m.Vars = m.Vars.With(efi.GlobalVariable, "BootNext", c.next)
		}
		files := map[string]bool{"efi/boot/bootx64.efi": true}
		for _, file := range c.esp {
			files[file] = true
		}
		plan, err := m.bootPlan(table, files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var order []string
		for _, e := range plan.order {
			order = append(order, fmt.Sprint(e.number))
		}
		if got := strings.Join(order, " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if (plan.first == "") != (c.first == "") || !strings.Contains(plan.first, c.first) {
			t.Errorf("%s: first is %q, want %q", name, plan.first, c.first)
		}
		if (plan.options == "") != (c.options == "") || !strings.Contains(plan.options, c.options) {
			t.Errorf("%s: options are %q, want %q", name, plan.options, c.options)
		}
	}
}

// TestOpenBootEntries leaves open what the variables leave open, and no more.
func TestOpenBootEntries(t *testing.T) {
	m, log := learnedMachine(t)
	l, err := Learn("a test", m, log)
	if err != nil {
		t.Fatal(err)
	}
	all := []Register{0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15}
	without := func(open ...Register) []Register {
		return slices.DeleteFunc(slices.Clone(all), func(r Register) bool { return slices.Contains(open, r) })
	}
	program := efi.LoadOption(efi.OptionActive, "other", append(efi.PCIPath(1)[:18], 4, 4, 8, 0, 'x', 0, 0, 0, 0x7f, 0xff, 4, 0), nil)
	onESP := efi.FilePath(efi.Partition{Number: 1, GUID: efi.MustGUID(testTable(t).Partitions[0].GUID.String())}, "EFI/debian/shimx64.efi")
	shim := bootVars(t, []uint16{0}, map[uint16][]byte{0: efi.LoadOption(efi.OptionActive, "debian", onESP, nil)})
	uri := []byte{3, 24, 4, 0, 0x7f, 0xff, 4, 0}
	for name, c := range map[string]struct {
		vars firmware.Vars
		want []Register
		says string
		esp  map[string][]byte
	}{
		"none":               {bootVars(t, nil, nil), all, "", nil},
		"no file":            {shim, all, "", nil},
		"no program":         {shim, all, "", map[string][]byte{"EFI/debian/shimx64.efi": make([]byte, 1024)}},
		"a program":          {shim, without(4, 5, 9, 10, 12, 14), `Boot0000 ("debian")`, map[string][]byte{"EFI/Debian/SHIMX64.EFI": stub257(t)}},
		"beginning like one": {shim, all, "", map[string][]byte{"EFI/debian/shimx64.efi": stub257(t)[:300]}},
		"torn":               {bootVars(t, []uint16{0}, map[uint16][]byte{0: {1}}), without(1, 4, 5, 9, 10, 12, 14), "Boot0000", nil},
		"another":            {bootVars(t, []uint16{0}, map[uint16][]byte{0: program}), without(4, 5, 9, 10, 12, 14), `Boot0000 ("other")`, nil},
		"HTTP": {
			bootVars(t, []uint16{0}, map[uint16][]byte{0: efi.LoadOption(efi.OptionActive, "x", uri, nil)}), without(1, 4, 5, 9, 10, 12, 14), "begins with 0x0318", nil,
		},
		"BootNext": {
			bootVars(t, nil, map[uint16][]byte{9: efi.LoadOption(efi.OptionActive, "x", uri, nil)}).With(efi.GlobalVariable, "BootNext", []byte{9, 0}),
			without(4, 5, 9, 10, 12, 14), `Boot0009 ("x")`, nil,
		},
		"options": {
			bootVars(t, []uint16{0}, map[uint16][]byte{0: efi.LoadOption(efi.OptionActive, "x", efi.PCIPath(1), []byte("x"))}), without(9, 10, 12), "replace its command line", nil,
		},
		"drivers":   {bootVars(t, nil, nil).With(efi.GlobalVariable, "DriverOrder", []byte{0, 0}), without(1, 4, 5, 9, 10, 12, 14), "DriverOrder", nil},
		"odd order": {bootVars(t, nil, nil).With(efi.GlobalVariable, "BootOrder", []byte{0}), without(1, 4, 5, 9, 10, 12, 14), "BootOrder has 1 bytes", nil},
		"twice":     {bootVars(t, []uint16{3, 3}, map[uint16][]byte{3: efi.LoadOption(efi.OptionActive, "x", uri, nil)}), without(1, 4, 5, 9, 10, 12, 14), "twice", nil},
	} {
		b := testBoot(t)
		b.Machine = m
		b.Machine.Vars, b.Machine.Learned, b.ESP = c.vars, &l, c.esp
		p, err := Predict(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(p.Registers, c.want) {
			t.Errorf("%s: %v, want %v", name, p.Registers, c.want)
		}
		if c.says != "" && !slices.ContainsFunc(p.Unpredicted, func(u Unpredicted) bool { return strings.Contains(u.Reason, c.says) }) {
			t.Errorf("%s: %v, want a reason with %q", name, p.Unpredicted, c.says)
		}
		for _, e := range p.Log.Events {
			if !slices.Contains(c.want, e.Register) {
				t.Errorf("%s: an event of %v, which is open", name, e.Register)
			}
		}
	}
}
