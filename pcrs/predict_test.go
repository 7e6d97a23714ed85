package pcrs

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/tooltest"
)

const cmdline = "console=ttyS0 panic=1 quiet"

// stubOf is a real stub that calls itself another version: what it would measure
// is not in its code but in the rules.
func stubOf(t testing.TB, major string) []byte {
	b := packaged(t, "/"+uki.DebianStub, "systemd-boot-efi")
	return bytes.Replace(b, []byte("systemd-stub 252"), []byte("systemd-stub "+major), 1)
}

func stub257(t testing.TB) []byte { return stubOf(t, "257") }

func testUKI(t testing.TB, more ...uki.Section) *uki.UKI {
	t.Helper()
	return ukiOf(t, "257", more...)
}

func ukiOf(t testing.TB, major string, more ...uki.Section) *uki.UKI {
	t.Helper()
	image, err := uki.Build(stubOf(t, major), append([]uki.Section{
		{Name: ".linux", Data: packaged(t, "/"+uki.DebianStub, "systemd-boot-efi")},
		{Name: ".osrel", Data: []byte("ID=test\nVERSION_ID=1\n")},
		{Name: ".initrd", Data: []byte("an initrd")},
	}, more...))
	if err != nil {
		t.Fatal(err)
	}
	return open(t, image)
}

func open(t testing.TB, image []byte) *uki.UKI {
	t.Helper()
	u, err := uki.Open(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func testTable(t testing.TB) *gpt.Table {
	t.Helper()
	const size = 8 << 20
	primary, backup, err := gpt.Encode(size, gpt.GUID{1}, []gpt.Partition{
		{Type: gpt.TypeESP, GUID: gpt.GUID{2}, FirstLBA: 2048, LastLBA: 4095, Name: "ESP"},
	})
	if err != nil {
		t.Fatal(err)
	}
	disk := make([]byte, size)
	copy(disk, primary)
	copy(disk[size-len(backup):], backup)
	table, err := gpt.Read(bytes.NewReader(disk), size)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func testBoot(t testing.TB, more ...uki.Section) Boot {
	t.Helper()
	return Boot{
		Machine: Machine{Vars: vars(t, "testdata/ovmf-2025.02.vars.gz")},
		UKI:     testUKI(t, append(more, uki.Section{Name: ".cmdline", Data: []byte(cmdline)})...),
		Table:   testTable(t),
	}
}

// eventIn finds an event of a recorded boot by its description.
func eventIn(t *testing.T, log Log, r Register, what string) Event {
	t.Helper()
	for _, e := range log.Of(r) {
		if strings.Contains(e.What(), what) {
			return e
		}
	}
	t.Fatalf("%v: no recorded event with %q", r, what)
	return Event{}
}

// TestEventsEqualRecordedOnes compares the events that do not depend on the kernel of the recorded boot.
func TestEventsEqualRecordedOnes(t *testing.T) {
	p, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	log := recordedLog(t, "ovmf-2025.02")
	find := func(r Register, what string) Event {
		return eventIn(t, p.Log, r, what)
	}
	for _, c := range []struct{ got, want Event }{
		{find(4, "Calling EFI"), eventIn(t, log, 4, "Calling EFI")},
		{find(5, "Invocation"), eventIn(t, log, 5, "Invocation")},
		{find(5, "Returned"), eventIn(t, log, 5, "Returned")},
		{find(9, "LoadOptions"), eventIn(t, log, 9, "LoadOptions")},
		{find(11, "section .cmdline"), log.Of(11)[5]},
		{find(11, "section .osrel"), log.Of(11)[3]},
		{find(11, `name ".linux"`), log.Of(11)[0]},
	} {
		for _, bank := range PredictedBanks() {
			if !c.got.Digests[bank].Equal(c.want.Digests[bank]) {
				t.Errorf("%v: %s: predicted %v, recorded %v", c.got.Register, c.got.What(), c.got.Digests[bank], c.want.Digests[bank])
			}
		}
		if c.got.Type != c.want.Type {
			t.Errorf("%s: type %v, recorded %v", c.got.What(), c.got.Type, c.want.Type)
		}
	}
}

// TestValuesByHand computes registers again with nothing but SHA-256.
func TestValuesByHand(t *testing.T) {
	b := testBoot(t)
	b.NodeConfig = []byte(`{"version":1}`)
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	values, err := p.Values(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	config := sha256.Sum256(b.NodeConfig)
	separator := []byte{0, 0, 0, 0}
	wide := func(s string) []byte { return []byte(strings.Join(strings.Split(s, ""), "\x00") + "\x00\x00\x00") }
	for r, want := range map[Register][32]byte{
		5:  replayed(separator, b.Table.Event(), []byte("Exit Boot Services Invocation"), []byte("Exit Boot Services Returned with Success")),
		6:  replayed(separator),
		8:  replayed([]byte("hullmark/v1/config\x00" + string(config[:]))),
		9:  replayed(wide(cmdline), append([]byte("an initrd\x00\x00\x00"), extraArchive("os-release", []byte("ID=test\nVERSION_ID=1\n"))...)),
		12: {}, 13: {}, 14: {}, 15: {},
	} {
		if values[r].String() != fmt.Sprintf("%x", want) {
			t.Errorf("%v: predicted %v, want %x", r, values[r], want)
		}
	}
}

func replayed(measured ...[]byte) (value [32]byte) {
	for _, data := range measured {
		digest := sha256.Sum256(data)
		value = sha256.Sum256(append(value[:], digest[:]...))
	}
	return value
}

// TestExtraArchive lets cpio unpack the archive that the stub would make.
func TestExtraArchive(t *testing.T) {
	cpio := tooltest.Path(t, "cpio", "cpio")
	dir := t.TempDir()
	cmd := exec.Command(cpio, "--extract", "--quiet")
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(extraArchive("os-release", []byte("ID=test\n")))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, ".extra"), 0o755) })
	got, err := os.ReadFile(filepath.Join(dir, ".extra", "os-release"))
	if err != nil || string(got) != "ID=test\n" {
		t.Errorf("unpacked %q, %v", got, err)
	}
}

func TestSecureBootHidesTheKernel(t *testing.T) {
	off, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	on, err := Predict(secureBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(off.Log.Of(4)) != 4 || len(on.Log.Of(4)) != 3 {
		t.Errorf("PCR 4 has %d events without Secure Boot and %d with it, want 4 and 3", len(off.Log.Of(4)), len(on.Log.Of(4)))
	}
}

func TestNodeConfigIsPerNode(t *testing.T) {
	p, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	values, err := p.Values(SHA384)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := values[8]; ok {
		t.Error("PCR 8 is predicted without a node configuration")
	}
	var unpredicted []Register
	for _, u := range p.Unpredicted {
		unpredicted = append(unpredicted, u.Register)
	}
	if fmt.Sprint(unpredicted) != "[PCR 0 PCR 1 PCR 8 PCR 10]" || len(p.Registers) != 12 {
		t.Errorf("unpredicted %v, predicted %v", unpredicted, p.Registers)
	}
}

func TestPredictsTheBanksThatAreAskedFor(t *testing.T) {
	b := testBoot(t)
	all, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	b.Banks = []Bank{SHA384}
	some, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range some.Log.Events {
		if len(e.Digests) != 1 || !e.Digests[SHA384].Equal(all.Log.Events[i].Digests[SHA384]) {
			t.Errorf("%s: %v, want the digest of one bank", e.What(), e.Digests)
		}
	}
	b.Banks = []Bank{SHA1}
	if _, err := Predict(b); err == nil || !strings.Contains(err.Error(), "not predicted") {
		t.Errorf("a bank that is only replayed: %v", err)
	}
}

func TestPredictRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		boot Boot
		want string
	}{
		"nothing":     {Boot{}, "missing"},
		"stub 253":    {Boot{UKI: ukiOf(t, "253"), Table: testTable(t)}, "only read in the source"},
		"no cmdline":  {Boot{UKI: testUKI(t), Table: testTable(t), Machine: testBoot(t).Machine}, "no .cmdline"},
		"device tree": {testBoot(t, uki.Section{Name: ".dtb", Data: []byte("x")}), ".dtb"},
		"outer space": {Boot{UKI: testUKI(t, uki.Section{Name: ".cmdline", Data: []byte("a ")}), Table: testTable(t), Machine: testBoot(t).Machine}, "ends with a space"},
		"odd cmdline": {Boot{UKI: testUKI(t, uki.Section{Name: ".cmdline", Data: []byte("a\nb")}), Table: testTable(t), Machine: testBoot(t).Machine}, "printable"},
	} {
		if _, err := Predict(c.boot); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
