//go:build vm

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/authenticode"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

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

// allowHash writes variables with keys that did not sign the disk's kernel image, with that one's hash in db, and with a dbx as large
// as Microsoft's.
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
