package uki

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/internal/memtest"
)

const stubPath = "/" + DebianStub

func stub(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile(stubPath)
	if err != nil {
		t.Fatalf("the stub is missing: apt-get install systemd-boot-efi: %v", err)
	}
	return b
}

// sections uses the stub as the kernel: it is an EFI executable too.
func sections(t testing.TB) []Section {
	return []Section{
		{Name: ".linux", Data: stub(t)},
		{Name: ".initrd", Data: bytes.Repeat([]byte("initrd"), 10000)},
		{Name: ".cmdline", Data: []byte("console=ttyS0 roothash=00")},
		{Name: ".osrel", Data: []byte("ID=test\n")},
	}
}

func build(t testing.TB) []byte {
	t.Helper()
	image, err := Build(stub(t), sections(t))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func open(image []byte) (*UKI, error) {
	return Open(bytes.NewReader(image), int64(len(image)))
}

// pcr11 replays the events that the stub makes of the measured sections.
func pcr11(u *UKI) string {
	pcr := make([]byte, sha256.Size)
	extend := func(data []byte) {
		digest := sha256.Sum256(data)
		next := sha256.Sum256(slices.Concat(pcr, digest[:]))
		pcr = next[:]
	}
	for _, s := range u.Measured() {
		extend([]byte(s.Name + "\x00"))
		extend(s.Data)
	}
	return hex.EncodeToString(pcr)
}

// measure asks the systemd-measure of the same Debian release as the stub.
func measure(t *testing.T, u *UKI) string {
	t.Helper()
	program := ""
	for _, p := range []string{"/usr/lib/systemd/systemd-measure", "/lib/systemd/systemd-measure"} {
		if _, err := os.Stat(p); err == nil {
			program = p
		}
	}
	if program == "" {
		t.Fatal("systemd-measure is missing: apt-get install systemd")
	}
	args := []string{"calculate", "--bank=sha256", "--phase=", "--json=short"}
	for _, s := range u.Measured() {
		file := filepath.Join(t.TempDir(), "section")
		if err := os.WriteFile(file, s.Data, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--"+strings.TrimPrefix(s.Name, ".")+"="+file)
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-measure: %v\n%s", err, out)
	}
	return string(out)
}

func TestMeasuredEqualsSystemdMeasure(t *testing.T) {
	u, err := open(build(t))
	if err != nil {
		t.Fatal(err)
	}
	if out := measure(t, u); !strings.Contains(out, pcr11(u)) {
		t.Errorf("PCR 11 is %s, systemd-measure says %s", pcr11(u), out)
	}
}

func TestSectionsReadBack(t *testing.T) {
	u, err := open(build(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range sections(t) {
		if got, ok := u.Section(want.Name); !ok || !bytes.Equal(got, want.Data) {
			t.Errorf("%s: %d bytes, want %d", want.Name, len(got), len(want.Data))
		}
	}
	if _, ok := u.Section(".none"); ok {
		t.Error("a section that is not there was found")
	}
	if major, _, _ := strings.Cut(u.Stub.Version, "."); major != "252" && major != "257" {
		t.Errorf("stub version %q", u.Stub.Version)
	}
	if last := u.PE.Sections[len(u.PE.Sections)-1]; last.Name != ".linux" {
		t.Errorf("the last section is %s", last.Name)
	}
}

func TestBuildDoesNotDependOnOrder(t *testing.T) {
	reversed := sections(t)
	slices.Reverse(reversed)
	image, err := Build(stub(t), reversed)
	if err != nil || !bytes.Equal(image, build(t)) {
		t.Errorf("two orders give two images (%v)", err)
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		sections []Section
		want     string
	}{
		"no kernel":       {sections(t)[1:], "no .linux"},
		"kernel no PE":    {[]Section{{Name: ".linux", Data: []byte("x")}}, "EFI executable"},
		"unknown section": {append(sections(t), Section{Name: ".extra", Data: []byte("x")}), "unknown"},
		"profile":         {append(sections(t), Section{Name: ".profile", Data: []byte("ID=x")}), "not supported"},
		"stub's section":  {append(sections(t), Section{Name: ".sbat", Data: []byte("x")}), "already"},
	} {
		if _, err := Build(stub(t), c.sections); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	image := build(t)
	rename := func(old, name string) []byte {
		return bytes.Replace(image, append([]byte(old), 0), append([]byte(name), 0), 1)
	}
	major := bytes.Index(image, []byte("systemd-stub 25")) + len("systemd-stub ")
	unknown := bytes.Clone(image)
	copy(unknown[major:], "299")
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"unknown stub":     {unknown, "systemd-stub 299"},
		"other magic":      {bytes.ReplaceAll(image, []byte("LoaderInfo"), []byte("Loaderinfo")), "does not name"},
		"unknown section":  {rename(".osrel", ".osrex"), "unknown"},
		"section twice":    {rename(".osrel", ".linux"), "twice"},
		"no kernel":        {rename(".linux", ".ucode"), ""},
		"truncated":        {image[:len(image)-512], "truncated"},
		"a plain stub":     {stub(t), "no .linux"},
		"not a PE":         {make([]byte, 4096), "MZ"},
		"hardware profile": {rename(".osrel", ".hwids"), "not supported"},
	} {
		_, err := open(c.image)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// TestStub257Order holds the order of generation 257 to a value that
// systemd-measure 257.13 computed for sections holding their own names.
func TestStub257Order(t *testing.T) {
	u := &UKI{sections: map[string][]byte{}, Stub: Stub{measured: sections256}}
	for _, name := range sections256 {
		u.sections[name] = []byte(strings.TrimPrefix(name, "."))
	}
	const want = "af6e47d54eebf81d6cc7f778564e755ff9cef40a8d4c27dad334aac435b1c10b"
	if got := pcr11(u); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzOpen changes the headers of a real image and keeps its sections.
func FuzzOpen(f *testing.F) {
	image := build(f)
	f.Add(image[:1024])
	f.Fuzz(func(t *testing.T, headers []byte) {
		b := bytes.Clone(image)
		copy(b[:4096], headers)
		u, err := open(b)
		if err != nil {
			return
		}
		for _, s := range u.Measured() {
			if got, ok := u.Section(s.Name); !ok || !bytes.Equal(got, s.Data) {
				t.Errorf("%s: not the same bytes twice", s.Name)
			}
		}
	})
}

func TestNXCompatFollowsTheKernel(t *testing.T) {
	f, err := pe.Parse(bytes.NewReader(stub(t)), int64(len(stub(t))))
	if err != nil {
		t.Fatal(err)
	}
	u, err := open(build(t))
	if err != nil {
		t.Fatal(err)
	}
	if u.PE.NXCompat() != f.NXCompat() {
		t.Error("image and kernel differ in NX_COMPAT")
	}
}

// TestGenerations opens one image as every known version: sections that came later are refused.
func TestGenerations(t *testing.T) {
	for major, c := range map[string]struct{ uname, ucode bool }{
		"252": {false, false}, "253": {false, false}, "254": {true, false}, "255": {true, false},
		"256": {true, true}, "257": {true, true}, "258": {true, true},
	} {
		renamed := bytes.Replace(stub(t), []byte("systemd-stub 252"), []byte("systemd-stub "+major), 1)
		for name, known := range map[string]bool{".uname": c.uname, ".ucode": c.ucode, ".efifw": false, ".pcrsig": true} {
			if _, err := Build(renamed, append(sections(t), Section{Name: name, Data: []byte("x")})); (err == nil) != known {
				t.Errorf("%s of stub %s: %v", name, major, err)
			}
		}
		u, err := Build(renamed, sections(t))
		if err != nil {
			t.Fatal(err)
		}
		opened, err := open(u)
		if err != nil {
			t.Fatal(err)
		}
		sbat := slices.ContainsFunc(opened.Measured(), func(s Section) bool { return s.Name == ".sbat" })
		if _, has := opened.Section(".sbat"); has && sbat != c.uname {
			t.Errorf("stub %s: .sbat measured: %t", major, sbat)
		}
	}
}

func TestOpenAddonRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"too large":       {make([]byte, MaxAddon+1), "at most"},
		"not a PE":        {make([]byte, 64), "MZ"},
		"unknown section": {bytes.Replace(stub(t), []byte(".dynsym"), []byte(".dynsyx"), 1), "no known addon"},
		"section twice":   {bytes.Replace(stub(t), []byte(".dynsym"), []byte(".text\x00\x00"), 1), "twice"},
	} {
		if _, err := OpenAddon(c.image); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	long, err := pe.Append(stub(t), []pe.NewSection{{Name: ".cmdline", Data: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(long[bytes.Index(long, []byte(".cmdline"))+8:], 16<<20)       // VirtualSize
	binary.LittleEndian.PutUint32(long[binary.LittleEndian.Uint32(long[0x3c:])+24+56:], 32<<20) // SizeOfImage
	if _, err := OpenAddon(long); err == nil || !strings.Contains(err.Error(), "longer in memory") {
		t.Errorf("a section of 16 MiB that the file does not have: %v", err)
	}
	a, err := OpenAddon(stub(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := a.Section(".cmdline"); ok {
		t.Error("a section that is not there was found")
	}
}

// FuzzOpenAddon changes the headers of a real image and keeps its sections.
func FuzzOpenAddon(f *testing.F) {
	image := stub(f)
	f.Add(image[:1024])
	f.Fuzz(func(t *testing.T, headers []byte) {
		b := bytes.Clone(image)
		copy(b[:4096], headers)
		a, err := OpenAddon(b)
		if err != nil {
			return
		}
		for _, s := range a.PE.Sections {
			if data, ok := a.Section(s.Name); ok && len(data) != int(s.VirtualSize) {
				t.Errorf("%s: %d bytes, want %d", s.Name, len(data), s.VirtualSize)
			}
		}
	})
}

// TestOpenRefusesEmptyMemory: a small file may not claim memory that it does not fill.
func TestOpenRefusesEmptyMemory(t *testing.T) {
	image := build(t)
	f, err := pe.Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	last := f.Sections[len(f.Sections)-1]
	entry := bytes.LastIndex(image[:4096], append([]byte(last.Name), 0))
	header := binary.LittleEndian.Uint32(image[0x3c:]) + 24
	binary.LittleEndian.PutUint32(image[header+56:], 1<<31) // the size of the image
	binary.LittleEndian.PutUint32(image[entry+8:], 500<<20) // the section's in memory
	spent := memtest.Cost(func() { _, err = open(image) })
	if err == nil || !strings.Contains(err.Error(), "longer in memory") {
		t.Errorf("got %v", err)
	}
	if spent > uint64(4*len(image)) {
		t.Errorf("%d bytes cost %d bytes of memory", len(image), spent)
	}
}
