package pe

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/tooltest"
)

const stubPath = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"

func stub(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile(stubPath)
	if err != nil {
		t.Fatalf("the stub is missing: apt-get install systemd-boot-efi: %v", err)
	}
	return b
}

func parse(b []byte) (*File, error) {
	return Parse(bytes.NewReader(b), int64(len(b)))
}

func sections() []NewSection {
	return []NewSection{
		{Name: ".osrel", Data: []byte("ID=test\n"), Flags: FlagInitializedData | FlagRead},
		{Name: ".initrd", Data: bytes.Repeat([]byte("initrd"), 5000), Flags: FlagInitializedData | FlagRead},
		{Name: ".linux", Data: bytes.Repeat([]byte("kernel"), 777), Flags: FlagCode | FlagRead},
	}
}

func extended(t testing.TB) []byte {
	t.Helper()
	b, err := Append(stub(t), sections())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func digest(t *testing.T, b []byte) string {
	t.Helper()
	f, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if err := f.Authenticode(h); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// sign returns the image signed by a fresh key with sbsign, and the
// certificate's path.
func sign(t *testing.T, image []byte) (signed, cert string) {
	t.Helper()
	dir := t.TempDir()
	key, in := filepath.Join(dir, "key"), filepath.Join(dir, "in.efi")
	cert, signed = filepath.Join(dir, "cert"), filepath.Join(dir, "out.efi")
	if err := os.WriteFile(in, image, 0o600); err != nil {
		t.Fatal(err)
	}
	tooltest.Run(t, "openssl", "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-keyout", key, "-out", cert)
	tooltest.Run(t, "sbsigntool", "sbsign", "--key", key, "--cert", cert, "--output", signed, in)
	return signed, cert
}

// TestAuthenticodeEqualsSignedDigest compares with the digest that sbsign put
// into a signature, and that sbverify computed again.
func TestAuthenticodeEqualsSignedDigest(t *testing.T) {
	image := extended(t)
	file, cert := sign(t, image)
	tooltest.Run(t, "sbsigntool", "sbverify", "--cert", cert, file)
	signature := filepath.Join(t.TempDir(), "signature")
	tooltest.Run(t, "sbsigntool", "sbattach", "--detach", signature, file)
	report := tooltest.Run(t, "openssl", "openssl", "asn1parse", "-inform", "DER", "-in", signature)
	match := regexp.MustCompile(`OCTET STRING\s*\[HEX DUMP\]:([0-9A-F]{64})\n`).FindStringSubmatch(report)
	if match == nil {
		t.Fatalf("the signature holds no digest:\n%s", report)
	}
	signed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ToLower(match[1])
	if got := digest(t, signed); got != want {
		t.Errorf("signed: got %s, want %s", got, want)
	}
	if got := digest(t, image); got != want {
		t.Errorf("unsigned: got %s, want %s: signing changed the digest", got, want)
	}
	if _, err := Append(signed, sections()[:1]); err == nil || !strings.Contains(err.Error(), "signed") {
		t.Errorf("append to a signed image: %v", err)
	}
}

// TestAuthenticodeHashesTrailingData holds the digest to the file as it is,
// without the padding that signing tools add.
func TestAuthenticodeHashesTrailingData(t *testing.T) {
	image := extended(t)
	short, long := append(bytes.Clone(image), 1), append(bytes.Clone(image), 1, 0)
	if a, b, c := digest(t, image), digest(t, short), digest(t, long); a == b || b == c || a == c {
		t.Errorf("digests are not all different: %s %s %s", a, b, c)
	}
}

func TestAppendReadsBack(t *testing.T) {
	image := extended(t)
	f, err := parse(image)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range sections() {
		s, ok := f.Section(want.Name)
		if !ok {
			t.Fatalf("no %s", want.Name)
		}
		got, err := io.ReadAll(f.Data(s))
		if err != nil || !bytes.Equal(got, want.Data) || s.Flags != want.Flags {
			t.Errorf("%s: %d bytes, flags %#x, %v", want.Name, len(got), s.Flags, err)
		}
		if int64(s.VirtualAddress)%f.sectionAlign != 0 {
			t.Errorf("%s: address %#x is not aligned", want.Name, s.VirtualAddress)
		}
	}
	if !bytes.Equal(image, extended(t)) {
		t.Error("two runs differ")
	}
}

func TestStandardLibraryAndObjdumpReadIt(t *testing.T) {
	image := extended(t)
	other, err := pe.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	f, err := parse(image)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range other.Sections {
		if f.Sections[i].Name != s.Name || f.Sections[i].VirtualAddress != s.VirtualAddress || f.Sections[i].RawOffset != s.Offset {
			t.Errorf("section %d: %+v, debug/pe says %+v", i, f.Sections[i], s.SectionHeader)
		}
	}
	file := filepath.Join(t.TempDir(), "image.efi")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := tooltest.Run(t, "binutils", "objdump", "-h", file); !strings.Contains(out, ".linux") || strings.Contains(out, "arning") {
		t.Errorf("objdump: %s", out)
	}
}

func TestAppendRefuses(t *testing.T) {
	many := make([]NewSection, 90)
	for i := range many {
		many[i] = NewSection{Name: ".s" + string(rune('A'+i%26)) + string(rune('a'+i/26))}
	}
	for name, c := range map[string]struct {
		sections []NewSection
		want     string
	}{
		"twice":     {[]NewSection{{Name: ".a"}, {Name: ".a"}}, "twice"},
		"existing":  {[]NewSection{{Name: ".sbat"}}, "already"},
		"long name": {[]NewSection{{Name: ".toolongname"}}, "8 bytes"},
		"no name":   {[]NewSection{{}}, "empty"},
		"no room":   {many[:85], "headers"},
		"too many":  {many, "want at most"},
	} {
		if _, err := Append(stub(t), c.sections); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestDataIsZeroExtended(t *testing.T) {
	image := extended(t)
	f, err := parse(image)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := f.Section(".linux")
	s.RawSize, s.VirtualSize = 6, 10
	if got, err := io.ReadAll(f.Data(s)); err != nil || string(got) != "kernel\x00\x00\x00\x00" {
		t.Errorf("%q, %v", got, err)
	}
}

// change returns a copy of the image with the change applied.
func change(image []byte, edit func(b []byte, f *File)) []byte {
	f, err := parse(image)
	if err != nil {
		panic(err)
	}
	b := bytes.Clone(image)
	edit(b, f)
	return b
}

func TestParseRefuses(t *testing.T) {
	put16, put32 := binary.LittleEndian.PutUint16, binary.LittleEndian.PutUint32
	entry := func(b []byte, f *File, i int) []byte { return b[f.table+int64(i)*sectionHeaderSize:] }
	for name, c := range map[string]struct {
		edit func(b []byte, f *File)
		want string
	}{
		"no MZ":             {func(b []byte, _ *File) { b[0] = 0 }, "MZ"},
		"no PE":             {func(b []byte, f *File) { b[f.coff-4] = 0 }, "signature"},
		"header far away":   {func(b []byte, _ *File) { put32(b[lfanewOffset:], 1<<30) }, "PE header at"},
		"ARM":               {func(b []byte, f *File) { put16(b[f.coff:], 0xaa64) }, "machine"},
		"no sections":       {func(b []byte, f *File) { put16(b[f.coff+2:], 0) }, "sections"},
		"97 sections":       {func(b []byte, f *File) { put16(b[f.coff+2:], 97) }, "97 sections"},
		"PE32":              {func(b []byte, f *File) { put16(b[f.opt:], 0x10b) }, "magic"},
		"alignment":         {func(b []byte, f *File) { put32(b[f.opt+optFileAlignment:], 513) }, "alignment"},
		"section alignment": {func(b []byte, f *File) { put32(b[f.opt+optSectionAlignment:], 1) }, "alignment"},
		"directories":       {func(b []byte, f *File) { put32(b[f.opt+optNumDirectories:], 17) }, "directories"},
		"headers":           {func(b []byte, f *File) { put32(b[f.opt+optSizeOfHeaders:], 300) }, "headers"},
		"memory overlap":    {func(b []byte, f *File) { put32(entry(b, f, 1)[12:], f.Sections[0].VirtualAddress) }, "overlaps"},
		"file overlap":      {func(b []byte, f *File) { put32(entry(b, f, 1)[20:], f.Sections[0].RawOffset) }, "overlap in the file"},
		"raw alignment":     {func(b []byte, f *File) { put32(entry(b, f, 1)[20:], f.Sections[1].RawOffset+1) }, "multiple"},
		"raw beyond":        {func(b []byte, f *File) { put32(entry(b, f, 1)[16:], 1<<30) }, "truncated"},
		"image size":        {func(b []byte, f *File) { put32(b[f.opt+optSizeOfImage:], 0x2000) }, "image size"},
		"name":              {func(b []byte, f *File) { entry(b, f, 0)[0] = '/' }, "ASCII"},
		"certificates":      {func(b []byte, f *File) { put32(b[f.opt+optFixedSize+32:], 0x1000) }, "certificate"},
	} {
		_, err := parse(change(extended(t), c.edit))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestParseRefusesTruncation(t *testing.T) {
	image := extended(t)
	for _, n := range []int{0, 1, 63, 64, 200, 500, 1024, len(image) / 2, len(image) - 1} {
		if _, err := parse(image[:n]); err == nil {
			t.Errorf("%d of %d bytes: no error", n, len(image))
		}
	}
}

func TestAuthenticodeRefusesGaps(t *testing.T) {
	image := change(extended(t), func(b []byte, f *File) {
		last := f.table + int64(f.count-2)*sectionHeaderSize
		binary.LittleEndian.PutUint32(b[last+16:], 512)
	})
	f, err := parse(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Authenticode(sha256.New()); err == nil || !strings.Contains(err.Error(), "no section") {
		t.Errorf("got %v", err)
	}
}

func TestClearNXCompat(t *testing.T) {
	image := change(extended(t), func(b []byte, f *File) { b[f.opt+optDllChars+1] |= nxCompat >> 8 })
	if err := ClearNXCompat(image); err != nil {
		t.Fatal(err)
	}
	if f, err := parse(image); err != nil || f.NXCompat() {
		t.Errorf("still set, %v", err)
	}
}

// FuzzParse changes the headers of a real image.
func FuzzParse(f *testing.F) {
	image := extended(f)[:8192]
	f.Add(image)
	f.Add(stub(f)[:1024])
	f.Fuzz(func(t *testing.T, headers []byte) {
		b := slices.Concat(headers, make([]byte, 4096))
		file, err := parse(b)
		if err != nil {
			return
		}
		_ = file.Authenticode(sha256.New())
		if signatures, err := file.Signatures(); err == nil {
			again, err := WithSignatures(b, signatures...)
			if err == nil && int64(len(again)) > file.size+certAlign {
				t.Errorf("the same %d signatures make %d bytes of %d", len(signatures), len(again), file.size)
			}
		}
		for _, s := range file.Sections {
			if n, err := io.Copy(io.Discard, io.LimitReader(file.Data(s), 1<<20)); err != nil || n > int64(s.VirtualSize) {
				t.Errorf("%s: %d bytes, %v", s.Name, n, err)
			}
		}
		if _, err := Append(b, []NewSection{{Name: ".fuzz", Data: []byte("x")}}); err == nil {
			return
		}
	})
}

// TestSignatures takes a signature of sbsign's out and puts it in again.
func TestSignatures(t *testing.T) {
	file, _ := sign(t, extended(t))
	signed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parse(signed)
	if err != nil {
		t.Fatal(err)
	}
	found, err := f.Signatures()
	if err != nil || len(found) != 1 {
		t.Fatalf("%d signatures, want one: %v", len(found), err)
	}
	unsigned, err := WithSignatures(signed)
	if err != nil || digest(t, unsigned) != digest(t, signed) || len(unsigned) != len(extended(t)) {
		t.Errorf("without its signature the image is another: %v", err)
	}
	again, err := WithSignatures(unsigned, found[0])
	if err != nil || !bytes.Equal(clearChecksum(again, f), clearChecksum(signed, f)) {
		t.Errorf("with its signature the image is another than sbsign made: %v", err)
	}
	twice, err := WithSignatures(signed, found[0], found[0][:100])
	if err != nil {
		t.Fatal(err)
	}
	if f, err = parse(twice); err != nil {
		t.Fatal(err)
	}
	if two, err := f.Signatures(); err != nil || len(two) != 2 || !bytes.Equal(two[0], found[0]) || !bytes.Equal(two[1], found[0][:100]) {
		t.Errorf("%d signatures, want the two that were put in: %v", len(two), err)
	}
}

// clearChecksum clears a field that sbsign fills in and firmware does not read.
func clearChecksum(image []byte, f *File) []byte {
	out := bytes.Clone(image)
	clear(out[f.opt+optCheckSum:][:4])
	return out
}

func TestSignaturesRefuse(t *testing.T) {
	signed, err := WithSignatures(extended(t), bytes.Repeat([]byte{1}, 92))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit func(table []byte)
		want string
	}{
		"another kind": {func(b []byte) { b[6] = 1 }, "want PKCS #7"},
		"too long":     {func(b []byte) { b[0] += 8 }, "where 104 are left"},
		"empty":        {func(b []byte) { b[0] = 8 }, "an entry of 8 bytes"},
		"a rest":       {func(b []byte) { b[0] = 80 }, "PKCS #7"},
	} {
		changed := change(signed, func(b []byte, f *File) { c.edit(b[f.certOffset:]) })
		f, err := parse(changed)
		if err == nil {
			_, err = f.Signatures()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
