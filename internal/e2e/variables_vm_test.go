//go:build vm

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/authenticode"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

var boots = flag.Int("boots", 2, "how often TestVMKeptVariables boots a machine before its variables are predicted from")

// TestVMKeptVariables boots one machine again and again, with keys and with foreign boot entries, so that its firmware writes to its
// variables; what the next boot measures is predicted from what it left there.
func TestVMKeptVariables(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	keys := probe.NewKeys(t)
	parts := b.probeParts(t)
	parts.Sign = keys.Sign(t)
	i := probe.New(t, parts)
	vars := b.microsoft(t, keys)
	gone := b.firstESP(t)
	gone.GUID[0]++
	content := contentOf(t, vars)
	for name, data := range map[string][]byte{
		"Boot0009":  efi.LoadOption(efi.OptionActive, "debian", efi.FilePath(gone, "EFI/debian/shimx64.efi"), nil),
		"BootOrder": {9, 0},
	} {
		content = probe.Replace(t, content, efi.GlobalVariable, name, data)
	}
	described := map[string]any{
		"schema": "hullmark.machine/v1", "tools": b.tools(), "cpus": 1, "memoryMiB": 512, "stateDisk": "0", "secureBoot": true, "variables": b.varsFile(t, content),
	}
	c := b.shaped(t, described)
	c.Image, c.Dir = i.Path, filepath.Join(t.TempDir(), "machine")
	for range *boots {
		probe.Run(t, c)
	}
	kept, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(contentOf(t, kept.Vars), content) {
		t.Fatal("the firmware wrote nothing to its variables")
	}
	described["variables"] = b.varsFile(t, contentOf(t, kept.Vars))
	file := writeMachine(t, described)
	cli(t, 0, "learn", "--machine", file)
	b.compare(t, b.measure(t, i.Path, file), probe.Run(t, c))
}

// firstESP is where the built image's kind of disk has its ESP.
func (b bench) firstESP(t *testing.T) efi.Partition {
	t.Helper()
	p := probe.New(t, b.probeParts(t)).Disk.Table.Partitions[0]
	return efi.Partition{Number: 1, First: p.FirstLBA, Sectors: p.LastLBA - p.FirstLBA + 1, GUID: efi.MustGUID(p.GUID.String())}
}

// microsoft is Debian's file with Microsoft's keys, and own ones behind those in db.
func (b bench) microsoft(t *testing.T, own ...probe.Keys) string {
	t.Helper()
	content := contentOf(t, "/usr/share/OVMF/OVMF_VARS_4M.ms.fd")
	for _, keys := range own {
		content = keys.Allow(t, content)
	}
	return b.varsFile(t, content)
}

func (b bench) varsFile(t *testing.T, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "vars.fd")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// allowHash writes variables with keys that did not sign the disk's kernel image, with that one's hash in db, with a dbx as large
// as Microsoft's, and with the two databases that machines seldom have.
func (b bench) allowHash(t *testing.T, keys probe.Keys, disk *image.Disk, file string) {
	t.Helper()
	h := sha256.New()
	if err := disk.UKI.PE.Authenticode(h); err != nil {
		t.Fatal(err)
	}
	content := keys.Enroll(t, contentOf(t, b.ovmf("OVMF_VARS_4M.fd")))
	v, err := firmware.OpenVars(content)
	if err != nil {
		t.Fatal(err)
	}
	db, _ := v.Lookup(efi.ImageSecurity, "db")
	content = probe.Replace(t, content, efi.ImageSecurity, "db", append(bytes.Clone(db), hashList(h.Sum(nil))...))
	var revoked [][]byte
	for n := range 500 {
		d := sha256.Sum256(fmt.Append(nil, n))
		revoked = append(revoked, d[:])
	}
	content = probe.Replace(t, content, efi.ImageSecurity, "dbx", hashList(revoked...))
	for _, name := range []string{"dbt", "dbr"} {
		content = probe.Replace(t, content, efi.ImageSecurity, name, db)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// hashList is a signature list of SHA-256 digests.
func hashList(digests ...[]byte) []byte {
	const entry = 16 + sha256.Size
	b := bytes.Clone(authenticode.TypeSHA256[:])
	for _, n := range []int{28 + entry*len(digests), 0, entry} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for _, d := range digests {
		b = append(append(b, make([]byte, 16)...), d...)
	}
	return b
}

// bootEntries is a file of variables with boot entries, all of them in BootOrder by their numbers.
func (b bench) bootEntries(t *testing.T, entries map[uint16][]byte) string {
	t.Helper()
	var order []byte
	variables := map[string][]byte{}
	for _, n := range slices.Sorted(maps.Keys(entries)) {
		order = binary.LittleEndian.AppendUint16(order, n)
		variables[fmt.Sprintf("Boot%04X", n)] = entries[n]
	}
	variables["BootOrder"] = order
	return b.varsFile(t, probe.AddVariables(t, contentOf(t, b.ovmf("OVMF_VARS_4M.fd")), variables))
}

// toolsWithSignedROM is a tools tree whose network card's option ROM holds the same driver, signed. Its files are those of the tree
// of all tests.
func (b bench) toolsWithSignedROM(t *testing.T, keys probe.Keys) string {
	t.Helper()
	const rom = "usr/share/qemu/efi-virtio.rom"
	tree := filepath.Join(t.TempDir(), "tools")
	if exec.Command("cp", "-a", "--link", b.tools(), tree).Run() != nil { // on another file system
		if out, err := exec.Command("cp", "-a", b.tools(), tree).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v\n%s", err, out)
		}
	}
	content := contentOf(t, filepath.Join(tree, rom))
	opened, err := firmware.OpenROM(content)
	if err != nil || len(opened.Drivers) != 1 {
		t.Fatalf("%s: %d drivers, %v", rom, len(opened.Drivers), err)
	}
	if err := os.Remove(filepath.Join(tree, rom)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, rom), romWith(t, content, keys.Sign(t)(opened.Drivers[0].Image)), 0o644); err != nil {
		t.Fatal(err)
	}
	return tree
}

// romWith puts another driver into the last image of an option ROM, not compressed (UEFI 2.10 §14.4.21, PCI Firmware 3.3 §5.1.2).
func romWith(t *testing.T, rom, driver []byte) []byte {
	t.Helper()
	le, at := binary.LittleEndian, 0
	structure := func() int { return at + int(le.Uint16(rom[at+0x18:])) }
	for rom[structure()+21]&0x80 == 0 {
		at += int(le.Uint16(rom[structure()+16:])) * 512
	}
	image := bytes.Clone(rom[at:][:int(le.Uint16(rom[at+22:]))])                   // its headers, up to the driver
	image = append(image, make([]byte, (512-(len(image)+len(driver))%512)%512)...) // so that a certificate table ends the image
	le.PutUint16(image[22:], uint16(len(image)))
	image = append(image, driver...)
	le.PutUint16(image[2:], uint16(len(image)/512))
	le.PutUint16(image[12:], 0)
	le.PutUint16(image[int(le.Uint16(image[0x18:]))+16:], uint16(len(image)/512))
	return append(bytes.Clone(rom[:at]), image...)
}
