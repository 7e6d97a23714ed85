package pcrs

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/tooltest"
)

// testAddon is an addon: a PE image without code and with the sections.
func testAddon(t testing.TB, sections ...pe.NewSection) []byte {
	t.Helper()
	image, err := pe.Append(stubOf(t, "257"), sections)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func addonSection(name, data string) pe.NewSection {
	return pe.NewSection{Name: name, Data: []byte(data), Flags: pe.FlagInitializedData | pe.FlagRead}
}

const local, global = uki.LocalFolder + "/", uki.GlobalAddonsFolder + "/"

// bootOf is the test boot with another stub.
func bootOf(t testing.TB, major string, more ...uki.Section) Boot {
	t.Helper()
	b := testBoot(t)
	b.UKI = ukiOf(t, major, append(more, uki.Section{Name: ".cmdline", Data: []byte(cmdline)})...)
	b.AllowUnprovenStub = true
	return b
}

func whats(events []Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, e.What())
	}
	return out
}

// TestCompanionsByVersion holds what every generation makes of one and the same ESP.
func TestCompanionsByVersion(t *testing.T) {
	esp := map[string][]byte{
		local + "b.addon.efi":                 testAddon(t, addonSection(".cmdline", "local")),
		global + "A.ADDON.EFI":                testAddon(t, addonSection(".cmdline", "global")),
		local + "z.cred":                      []byte("z"),
		"EFI/boot/bootx64.efi.extra.d/B.CRED": []byte("b"),
		"loader/credentials/g.cred":           []byte("g"),
		local + "s.raw":                       []byte("s"),
		local + "c.confext.raw":               []byte("c"),
		"loader/extensions/gs.sysext.raw":     []byte("gs"),
		"loader/extensions/gc.confext.raw":    []byte("gc"),
		local + ".hidden.cred":                []byte("x"),
		local + "ü.cred":                      []byte("x"),
		local + "readme.txt":                  []byte("x"),
		local + "folder/x.cred":               []byte("x"),
	}
	creds := []string{"credentials B.CRED, z.cred", "global credentials g.cred"}
	for major, want := range map[string]struct {
		pcr4     int
		cmdlines []string
		pcr12    []string
		pcr13    []string
		initrd   []string
	}{
		"252": {4, nil, creds, []string{"c.confext.raw, s.raw"}, []string{"B.CRED", "g.cred", "s.raw"}},
		"253": {4, nil, creds, []string{"c.confext.raw, s.raw"}, []string{"B.CRED", "g.cred", "s.raw"}},
		"254": {6, []string{`"global"`, `"local"`, `"host"`}, creds, []string{"c.confext.raw, s.raw"}, []string{"B.CRED", "g.cred", "s.raw"}},
		"255": {6, []string{`"global local"`, `"host"`}, creds, []string{"c.confext.raw, s.raw"}, []string{"B.CRED", "g.cred", "s.raw"}},
		"256": {6, []string{`"global local"`, `"host"`}, append(creds, "c.confext.raw"), []string{"system extensions s.raw"}, []string{"B.CRED", "g.cred", "c.confext.raw", "s.raw"}},
		"257": {6, []string{`"global local"`, `"host"`}, append(creds, "c.confext.raw"), []string{"system extensions s.raw"}, []string{"B.CRED", "g.cred", "s.raw", "c.confext.raw", "os-release"}},
		"258": {5, []string{`"global local"`, `"host"`}, append(creds, "c.confext.raw", "gc.confext.raw"), []string{"system extensions s.raw", "gs.sysext.raw"}, []string{"B.CRED", "g.cred", "s.raw", "gs.sysext.raw", "c.confext.raw", "gc.confext.raw", "os-release"}},
	} {
		b := bootOf(t, major)
		b.ESP, b.SMBIOSExtra = esp, []string{"host", "ignored"}
		p, err := Predict(b)
		if err != nil {
			t.Errorf("%s: %v", major, err)
			continue
		}
		if got := len(p.Log.Of(4)); got != want.pcr4 {
			t.Errorf("%s: PCR 4 has %d events, want %d: %q", major, got, want.pcr4, whats(p.Log.Of(4)))
		}
		inOrder(t, major, whats(p.Log.Of(12)), append(slices.Clone(want.cmdlines), want.pcr12...))
		inOrder(t, major, whats(p.Log.Of(13)), want.pcr13)
		inOrder(t, major, strings.Split(p.Log.Of(9)[1].What(), ", archive with ")[1:], want.initrd)
	}
}

// inOrder checks that there are as many texts as parts, and that each contains its part.
func inOrder(t *testing.T, name string, texts, parts []string) {
	t.Helper()
	if len(texts) != len(parts) {
		t.Errorf("%s: %q, want %q", name, texts, parts)
		return
	}
	for i := range parts {
		if !strings.Contains(texts[i], parts[i]) {
			t.Errorf("%s: %q, want %q", name, texts[i], parts[i])
		}
	}
}

// TestAddonPartsByHand computes PCR 9 and 12 again with nothing but SHA-256.
func TestAddonPartsByHand(t *testing.T) {
	b := bootOf(t, "257", uki.Section{Name: ".ucode", Data: []byte("own")}, uki.Section{Name: ".pcrsig", Data: []byte("{}")})
	b.ESP = map[string][]byte{
		local + "1.addon.efi": testAddon(t, addonSection(".ucode", "micro 1"), addonSection(".initrd", "more 1")),
		local + "2.addon.efi": testAddon(t, addonSection(".ucode", "micro 2"), addonSection(".initrd", "more 2!")),
		local + "3.addon.efi": testAddon(t, addonSection(".osrel", "ID=x")),
	}
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	values, err := p.Values(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	parts := [][]byte{
		[]byte("micro 2\x00micro 1\x00own\x00an initrd\x00\x00\x00"), extraArchive("tpm2-pcr-signature.json", []byte("{}")),
		extraArchive("os-release", []byte("ID=test\nVERSION_ID=1\n")), []byte("more 1\x00\x00more 2!\x00"),
	}
	wide := []byte(strings.Join(strings.Split(cmdline, ""), "\x00") + "\x00\x00\x00")
	for r, want := range map[Register][32]byte{
		9:  replayed(wide, bytes.Join(parts, nil)),
		12: replayed([]byte("micro 2"), []byte("micro 1"), []byte("more 1"), []byte("more 2!")),
	} {
		if values[r].String() != fmt.Sprintf("%x", want) {
			t.Errorf("%v: predicted %v, want %x", r, values[r], want)
		}
	}
	if got := len(p.Log.Of(4)); got != 7 {
		t.Errorf("PCR 4 has %d events, want 7: firmware loads the useless addon too", got)
	}
}

// An initrd that is the only part is handed over as it is.
func TestLonelyInitrd(t *testing.T) {
	p, err := Predict(bootOf(t, "254"))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Log.Of(9)[1].Digests[SHA256]; !got.Equal(SHA256.sum([]byte("an initrd"))) {
		t.Errorf("the initrd was padded: %v", p.Log.Of(9)[1].What())
	}
}

func TestAddonsOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		addon []byte
		used  bool
	}{
		"for this kernel":    {testAddon(t, addonSection(".cmdline", "x"), addonSection(".uname", "6.12")), true},
		"a prefix":           {testAddon(t, addonSection(".cmdline", "x"), addonSection(".uname", "6.1")), true},
		"for any kernel":     {testAddon(t, addonSection(".cmdline", "x")), true},
		"for another kernel": {testAddon(t, addonSection(".cmdline", "x"), addonSection(".uname", "6.13")), false},
		"for a longer one":   {testAddon(t, addonSection(".cmdline", "x"), addonSection(".uname", "6.12.1")), false},
		"a kernel image":     {testAddon(t, addonSection(".cmdline", "x"), addonSection(".linux", "x")), false},
	} {
		b := bootOf(t, "257", uki.Section{Name: ".uname", Data: []byte("6.12")})
		b.ESP = map[string][]byte{local + "x.addon.efi": c.addon}
		p, err := Predict(b)
		if err != nil {
			t.Fatal(err)
		}
		if used := len(p.Log.Of(12)) > 0; used != c.used || len(p.Log.Of(4)) != 5 {
			t.Errorf("%s: used %t, %d events in PCR 4", name, used, len(p.Log.Of(4)))
		}
	}
}

// secureBoot is the test boot on a machine with Secure Boot, which its kernel image is signed for.
func secureBoot(t testing.TB) Boot {
	t.Helper()
	b := testBoot(t)
	b.Machine = machineOf(t, "ovmf-2025.02-secureboot")
	b.Machine.Vars = b.Machine.Vars.With(efi.ImageSecurity, "db", ours(t).list())
	b.UKI = open(t, ours(t).sign(t, rebuilt(t, "", nil)))
	return b
}

// With Secure Boot on, firmware starts a signed kernel image only.
func TestKernelImageAndSecureBoot(t *testing.T) {
	b := secureBoot(t)
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"unsigned":            {rebuilt(t, "", nil), "it is not signed"},
		"signed by others":    {others(t).sign(t, rebuilt(t, "", nil)), `it is signed by "others", and db has "ours"; sign it`},
		"signed over another": {signedAs(t, rebuilt(t, ".initrd", []byte("x")), b.UKI.PE), "over another digest"},
	} {
		b.UKI = open(t, c.image)
		if _, err := Predict(b); err == nil || !strings.Contains(err.Error(), "kernel image: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
		b.Machine = testBoot(t).Machine
		if _, err := Predict(b); err != nil {
			t.Errorf("%s, Secure Boot off: %v", name, err)
		}
		b.Machine = secureBoot(t).Machine
	}
}

// With Secure Boot on, firmware loads addons that db allows, and measures nothing of others.
func TestAddonsAndSecureBoot(t *testing.T) {
	b := secureBoot(t)
	addon := testAddon(t, addonSection(".cmdline", "x"))
	signed := ours(t).sign(t, addon)
	opened, err := uki.OpenAddon(signed)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		addon  []byte
		events int
	}{
		"unsigned":            {addon, 0},
		"signed":              {signed, 1},
		"signed by others":    {others(t).sign(t, addon), 0},
		"signed over another": {signedAs(t, testAddon(t, addonSection(".cmdline", "y")), opened.PE), 0},
	} {
		b.ESP = map[string][]byte{local + "x.addon.efi": c.addon}
		p, err := Predict(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(p.Log.Of(12)) != c.events || len(p.Log.Of(4)) != 3+c.events {
			t.Errorf("%s: %q %q", name, whats(p.Log.Of(4)), whats(p.Log.Of(12)))
		}
	}
}

func TestCompanionsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		esp  map[string][]byte
		want string
	}{
		"not a PE":        {map[string][]byte{local + "x.addon.efi": make([]byte, 64)}, "MZ"},
		"device tree":     {map[string][]byte{local + "x.addon.efi": testAddon(t, addonSection(".dtb", "x"))}, "device trees"},
		"odd section":     {map[string][]byte{local + "x.addon.efi": testAddon(t, addonSection(".cmdlin", "x"))}, "no known addon"},
		"outer space":     {map[string][]byte{local + "x.addon.efi": testAddon(t, addonSection(".cmdline", "x "))}, "space"},
		"a newline":       {map[string][]byte{local + "x.addon.efi": testAddon(t, addonSection(".cmdline", "x\n"))}, "0x0a"},
		"twice for FAT":   {map[string][]byte{local + "x.cred": nil, local + "X.cred": nil}, "twice"},
		"path upwards":    {map[string][]byte{"../x.cred": nil}, "clean relative path"},
		"backslashes":     {map[string][]byte{`loader\credentials\x.cred`: nil}, "slashes"},
		"kernel image":    {map[string][]byte{"efi/boot/bootx64.efi": nil}, "is the kernel image"},
		"file and folder": {map[string][]byte{"loader": nil, "loader/x": nil}, "both a file and a folder"},
		"a folder of it":  {map[string][]byte{"EFI": nil}, "both a file and a folder"},
		"trailing dot":    {map[string][]byte{local + "a.cred.": nil}, "characters that FAT has"},
		"escape codes":    {map[string][]byte{local + "\x1b[2J.cred": nil}, "characters that FAT has"},
		"too many bytes":  {map[string][]byte{"x": make([]byte, MaxESPBytes+1)}, "at most"},
		"too large addon": {map[string][]byte{local + "x.addon.efi": make([]byte, uki.MaxAddon+1)}, "at most"},
	} {
		b := testBoot(t)
		b.ESP = c.esp
		if _, err := Predict(b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	b := testBoot(t)
	b.SMBIOSExtra = []string{"a\tb"}
	if _, err := Predict(b); err == nil || !strings.Contains(err.Error(), "SMBIOS string") {
		t.Errorf("a tab in the SMBIOS: %v", err)
	}
}

// TestArchiveUnpacks lets cpio read what the stub would make of credentials.
func TestArchiveUnpacks(t *testing.T) {
	cpio := tooltest.Path(t, "cpio", "cpio")
	credentials, _ := uki.LoggedSidecar("Credentials initrd")
	list := exec.Command(cpio, "--list", "--verbose", "--numeric-uid-gid", "--quiet")
	list.Stdin = bytes.NewReader(archive(credentials.Directory, credentials.DirMode, credentials.FileMode, []espFile{{"a.cred", []byte("12345")}, {"b.cred", nil}}))
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	for _, want := range []string{"dr-xr-xr-x", "dr-x------", "-r--------", " .extra/credentials/a.cred", " .extra/credentials/b.cred"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// FuzzCompanions lets anything lie on the ESP.
func FuzzCompanions(f *testing.F) {
	b := testBoot(f)
	addon := testAddon(f, addonSection(".cmdline", "x"), addonSection(".initrd", "y"))
	f.Add(local+"a.addon.efi", addon[:1024], "x=1")
	f.Add("loader/credentials/a.cred", []byte("x"), "")
	f.Fuzz(func(t *testing.T, name string, data []byte, extra string) {
		if strings.HasSuffix(name, ".efi") && len(data) <= len(addon) {
			data = append(slices.Clone(data), addon[len(data):]...)
		}
		b.ESP, b.SMBIOSExtra = map[string][]byte{name: data}, []string{extra}
		p, err := Predict(b)
		if err != nil {
			return
		}
		if _, err := p.Values(SHA256); err != nil {
			t.Error(err)
		}
	})
}
