package firmware

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/internal/memtest"
	"github.com/ulikunitz/xz/lzma"
)

func gunzip(t testing.TB, path string) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(fileOf(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func vars(t testing.TB, path string) Vars {
	t.Helper()
	v, err := OpenVars(gunzip(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// packaged reads a file of a Debian package that the tests need.
func packaged(t testing.TB, path, pkg string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%s is missing: apt-get install %s", path, pkg)
	}
	return b
}

func TestOpen(t *testing.T) {
	f, err := Open(packaged(t, "/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"))
	if err != nil {
		t.Fatal(err)
	}
	if !f.SecureBoot || f.SHA256 == [32]byte{} {
		t.Errorf("got %+v; Debian 12 builds this file with Secure Boot", f)
	}
	for name, file := range map[string][]byte{
		"empty":     nil,
		"variables": gunzip(t, "../testdata/ovmf-2025.02.vars.gz"),
		"too large": make([]byte, MaxFile+1),
	} {
		if _, err := Open(file); err == nil {
			t.Errorf("%s: opened as firmware", name)
		}
	}
}

func TestFirmwareRefusesHugeVolume(t *testing.T) {
	section := binary.LittleEndian.AppendUint32(nil, 64|2<<24)
	section = append(section, guidLZMASection[:]...)
	section = append(section, 24, 0, 1, 0, 0x5d)
	section = binary.LittleEndian.AppendUint32(section, 1<<23)
	section = binary.LittleEndian.AppendUint64(section, 1<<40)
	if _, err := Open(append(section, make([]byte, 64)...)); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("got %v", err)
	}
}

func TestVarsAfterABoot(t *testing.T) {
	v := vars(t, "../testdata/ovmf-2022.11-booted.vars.gz")
	if order, ok := v.Lookup(efi.GlobalVariable, "BootOrder"); !ok || len(order)%2 != 0 || len(order) == 0 {
		t.Errorf("BootOrder of a machine that has booted: %x, %v", order, ok)
	}
	if _, ok := v.Lookup(efi.GlobalVariable, "PK"); ok {
		t.Error("a platform key was never enrolled")
	}
}

func TestOpenVarsRefuses(t *testing.T) {
	good := gunzip(t, "../testdata/ovmf-2025.02-snakeoil.vars.gz")
	const store, first = 0x48, 0x64
	edit := func(change func([]byte)) []byte {
		b := bytes.Clone(good)
		change(b)
		return b
	}
	second := first + 84
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":         {nil, "no volume"},
		"truncated":     {good[:len(good)/2], "truncated"},
		"checksum":      {edit(func(b []byte) { b[50] ^= 1 }), "checksum"},
		"store type":    {edit(func(b []byte) { b[store] ^= 1 }), "authenticated"},
		"store size":    {edit(func(b []byte) { b[store+18] = 0xff }), "leaves"},
		"store state":   {edit(func(b []byte) { b[store+21] = 0 }), "healthy"},
		"unknown state": {edit(func(b []byte) { b[second+2] = 0x55 }), "unknown"},
		"huge data":     {edit(func(b []byte) { b[second+43] = 0xff }), "do not fit"},
		"twice":         {edit(func(b []byte) { copy(b[second:], b[first:first+84]); b[second+2] = 0x3f; b[first+2] = 0x3f }), "twice"},
		"free space":    {edit(func(b []byte) { b[store+0x3ffb8-1] = 0 }), "not erased"},
	} {
		if _, err := OpenVars(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestDeletedVariablesAreGone(t *testing.T) {
	b := gunzip(t, "../testdata/ovmf-2025.02-snakeoil.vars.gz")
	v, err := OpenVars(b)
	if err != nil {
		t.Fatal(err)
	}
	pk, _ := v.Lookup(efi.GlobalVariable, "PK")
	at := bytes.Index(b, pk) - variableHeaderSize - len("PK\x00")*2
	for state, present := range map[byte]bool{variableReplacing: true, variableDeletedA: false, variableDeletedB: false, variableHeaderOnly: false} {
		b[at+2] = state
		v, err := OpenVars(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := v.Lookup(efi.GlobalVariable, "PK"); ok != present {
			t.Errorf("state %#x: present %v, want %v", state, ok, present)
		}
	}
}

// testROM is an expansion ROM with one image.
func testROM(compression uint16, codeType byte) []byte {
	b := make([]byte, 1024)
	binary.LittleEndian.PutUint16(b, 0xaa55)
	binary.LittleEndian.PutUint32(b[4:], efiSignature)
	binary.LittleEndian.PutUint16(b[8:], subsystemBoot)
	binary.LittleEndian.PutUint16(b[10:], machineX64)
	binary.LittleEndian.PutUint16(b[12:], compression)
	binary.LittleEndian.PutUint16(b[22:], 0x40)
	binary.LittleEndian.PutUint16(b[24:], 0x1c)
	copy(b[0x1c:], "PCIR")
	binary.LittleEndian.PutUint16(b[0x1c+16:], 2)
	b[0x1c+20] = codeType
	b[0x1c+21] = 0x80
	return b
}

// withLengths makes the driver of a test's ROM say that it unpacks to 16 bytes.
func withLengths(rom []byte) []byte {
	binary.LittleEndian.PutUint32(rom[0x44:], 16)
	return rom
}

// TestOpenROMBoundsAllDrivers: each image of a ROM may claim as much as a ROM may have, but not all of them together.
func TestOpenROMBoundsAllDrivers(t *testing.T) {
	var blocks []int
	for range 100 {
		blocks = append(blocks, 16, 0xffff, 5, 0, 5, 0, 9, 0, 9, 'A', 4, 0, 4, 0)
	}
	image := testROM(compressionEFI, codeTypeEFI)
	copy(image[0x40:], packed(100*0xffff, bitstream(blocks...)))
	if _, err := OpenROM(image); err != nil {
		t.Fatal(err)
	}
	image[0x1c+21] = 0 // not the last one
	if _, err := OpenROM(bytes.Repeat(image, 3)); err == nil || !strings.Contains(err.Error(), "image 3: driver: ") {
		t.Errorf("three drivers of 6 MiB: %v", err)
	}
}

func TestOpenROMRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":      {nil, "no ROM signature"},
		"compressed": {withLengths(testROM(1, codeTypeEFI)), "ends in the middle"},
		"packed":     {testROM(2, codeTypeEFI), "not known here"},
		"truncated":  {testROM(0, codeTypeEFI)[:512], "left"},
		"too large":  {make([]byte, MaxROM+1), "at most"},
	} {
		if _, err := OpenROM(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	if rom, err := OpenROM(testROM(0, 0)); err != nil || len(rom.Drivers) != 0 {
		t.Errorf("a ROM for another firmware: %v, %v", rom.Drivers, err)
	}
	rom, err := OpenROM(testROM(0, codeTypeEFI))
	if err != nil {
		t.Fatal(err)
	}
	if len(rom.Drivers) != 1 || rom.Drivers[0].Runtime {
		t.Errorf("one driver for boot: %v", rom.Drivers)
	}
}

// testVolume is a firmware volume in its section, with files that are given by their names.
func testVolume(files map[efi.GUID][]byte) []byte {
	const header = volumeHeaderSize + 16 // with a block map
	v := make([]byte, header)
	for name, content := range files {
		file := append(append([]byte(nil), name[:]...), make([]byte, fileHeaderSize-16)...)
		file = append(file, content...)
		binary.LittleEndian.PutUint32(file[20:], uint32(len(file)))
		v = append(v, file...)
		v = append(v, make([]byte, align8(len(v))-len(v))...)
	}
	v = append(v, bytes.Repeat([]byte{0xff}, 64)...) // free space
	binary.LittleEndian.PutUint64(v[32:], uint64(len(v)))
	copy(v[40:], "_FVH")
	binary.LittleEndian.PutUint16(v[48:], header)
	section := binary.LittleEndian.AppendUint32(nil, uint32(sectionHeaderSize+len(v))|sectionVolume<<24)
	return append(section, v...)
}

// smallFirmware is a firmware file whose volumes hold nothing but the programs that are looked for.
func smallFirmware(t testing.TB) []byte {
	t.Helper()
	version := append(efi.UTF16("a version"), 0, 0)
	program := append(binary.LittleEndian.AppendUint32(nil, uint32(sectionHeaderSize+len(version))|sectionPE<<24), version...)
	early := testVolume(map[efi.GUID][]byte{guidTcg2Pei: program})
	volume := append(early, make([]byte, align4(int64(len(early)))-int64(len(early)))...)
	volume = append(volume, testVolume(map[efi.GUID][]byte{guidTcg2Dxe: nil, guidSecureBootDxe: nil, guidUiApp: nil})...)
	var stream bytes.Buffer
	w, err := lzma.WriterConfig{SizeInHeader: true, Size: int64(len(volume)), DictCap: lzma.MinDictCap}.NewWriter(&stream)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(volume); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	section := binary.LittleEndian.AppendUint32(nil, uint32(24+stream.Len())|2<<24)
	section = append(section, guidLZMASection[:]...)
	return append(append(section, 24, 0, 1, 0), stream.Bytes()...)
}

func TestOpenSmallFirmware(t *testing.T) {
	f, err := Open(smallFirmware(t))
	if err != nil || !f.SecureBoot || !bytes.Equal(f.Version, append(efi.UTF16("a version"), 0, 0)) || len(f.Applications) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(append(guidLZMASection[:], make([]byte, 64)...))
	f.Add(smallFirmware(f))
	f.Add(bomb(1 << 20))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if firmware, err := Open(b); err == nil && firmware.SHA256 == [32]byte{} {
			panic("opened without a digest")
		}
	})
}

// bomb is a firmware file of some hundred bytes whose volume says that it unpacks to length bytes with a dictionary of that size.
func bomb(length uint32) []byte {
	section := binary.LittleEndian.AppendUint32(nil, 164|2<<24)
	section = append(section, guidLZMASection[:]...)
	section = append(section, 24, 0, 1, 0, 0x5d)
	section = binary.LittleEndian.AppendUint32(section, length)
	section = binary.LittleEndian.AppendUint64(section, uint64(length))
	return append(section, make([]byte, 164)...)
}

func notLast(rom []byte) []byte {
	rom[0x1c+21] = 0
	return rom
}

// erased is a variable file in which all but the headers is free space.
func erased(t *testing.T) []byte {
	b := gunzip(t, "../testdata/ovmf-2025.02.vars.gz")
	for i := 200; i < len(b); i++ {
		b[i] = 0xff
	}
	return b
}

func TestReadVolumeRefuses(t *testing.T) {
	header := func(size uint64, length, extended uint16) []byte {
		b := make([]byte, 128)
		binary.LittleEndian.PutUint64(b[32:], size)
		copy(b[40:], "_FVH")
		binary.LittleEndian.PutUint16(b[48:], length)
		binary.LittleEndian.PutUint16(b[52:], extended)
		return b
	}
	for name, b := range map[string][]byte{
		"empty":             nil,
		"no signature":      make([]byte, 128),
		"too long":          header(1<<40, 72, 0),
		"header too long":   header(128, 200, 0),
		"name outside":      header(128, 72, 120),
		"file without size": header(128, 72, 0),
	} {
		if _, err := readVolume(b); err == nil {
			t.Errorf("%s: read as a volume", name)
		}
	}
	if _, err := readSections([]byte{0xff, 0xff, 0, 0x17, 1}); err == nil {
		t.Error("read a section that is longer than its file")
	}
	two := append(append([]byte{4 + 20, 0, 0, sectionPE}, efi.UTF16("version 1")...), 0, 0)
	two = append(append(two, 4+20, 0, 0, sectionTE), append(efi.UTF16("version 2"), 0, 0)...)
	if _, err := versionOf(two); err == nil || !strings.Contains(err.Error(), "more than one") {
		t.Errorf("two versions: %v", err)
	}
}

func FuzzReadVolumes(f *testing.F) {
	f.Add([]byte{0, 0, 0, sectionVolume})
	file, err := unpackVolume(packaged(f, "/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file[:1<<20]) // the volume of early code
	f.Fuzz(func(t *testing.T, b []byte) {
		volumes, err := readVolumes(b)
		if err != nil {
			return
		}
		for _, v := range volumes {
			for _, file := range v.files {
				if len(file) > len(b) {
					t.Error("a file is longer than its volume")
				}
				_, _ = versionOf(file)
			}
		}
	})
}

func fileOf(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWith(t *testing.T) {
	v := vars(t, "../testdata/ovmf-2025.02-snakeoil.vars.gz")
	changed := v.With(efi.GlobalVariable, "PK", []byte("mine"))
	if pk, _ := v.Lookup(efi.GlobalVariable, "PK"); string(pk) == "mine" {
		t.Error("the variables themselves were changed")
	}
	if pk, ok := changed.Lookup(efi.GlobalVariable, "PK"); !ok || string(pk) != "mine" {
		t.Errorf("changed to %q", pk)
	}
	if changed.SHA256 == v.SHA256 {
		t.Error("variables of no file have a file's digest")
	}
}

func FuzzOpenVars(f *testing.F) {
	f.Add(gunzip(f, "../testdata/ovmf-2025.02-snakeoil.vars.gz"))
	f.Add(gunzip(f, "../testdata/ovmf-2022.11-booted.vars.gz"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := OpenVars(b)
		if err != nil {
			return
		}
		all := 0
		for _, data := range v.All() {
			all += len(data)
		}
		if all > len(b) {
			t.Errorf("%d bytes of variables in a file of %d", all, len(b))
		}
	})
}

func FuzzOpenROM(f *testing.F) {
	f.Add(testROM(0, codeTypeEFI))
	f.Add(packaged(f, "/usr/lib/ipxe/qemu/efi-virtio.rom", "ipxe-qemu"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rom, err := OpenROM(b)
		if err != nil {
			return
		}
		all := 0
		for _, d := range rom.Drivers {
			all += len(d.Image)
		}
		if all > len(b)+MaxROM {
			t.Errorf("%d bytes of drivers in a file of %d", all, len(b))
		}
	})
}

// TestHostileFilesCostLittle opens, of each kind, the largest file that is taken, or one that claims most.
func TestHostileFilesCostLittle(t *testing.T) {
	for name, c := range map[string]struct {
		input []byte
		limit uint64 // bytes
		open  func([]byte) error
	}{
		"firmware that claims much": {bomb(maxVolume), 2*maxVolume + 1<<20, func(b []byte) error { _, err := Open(b); return err }},
		"a ROM of many images":      {bytes.Repeat(notLast(testROM(0, codeTypeEFI)), MaxROM/1024), 1 << 20, func(b []byte) error { _, err := OpenROM(b); return err }},
		"variables, all erased":     {erased(t), MaxVars, func(b []byte) error { _, err := OpenVars(b[:len(b)-1]); return err }},
	} {
		var err error
		spent := memtest.Cost(func() { err = c.open(c.input) })
		t.Logf("%s: %d allocated for %d bytes, %v", name, spent, len(c.input), err)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if spent > c.limit {
			t.Errorf("%s: %d bytes cost %d bytes of memory, want at most %d", name, len(c.input), spent, c.limit)
		}
	}
}
