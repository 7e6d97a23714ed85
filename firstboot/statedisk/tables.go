package statedisk

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark/firstboot/devmapper"
	"github.com/hullmark/hullmark/firstboot/luks2"
)

const sector = 512

// Stack is what the kernel says of the two live devices of an open disk.
type Stack struct {
	// Crypt and Integrity are the tables, Status is the integrity target's status.
	Crypt, Integrity, Status []devmapper.Target
	// Disk and IntegrityDevice are the device numbers, as major:minor, of what lies below each.
	Disk, IntegrityDevice string
}

// ReadGeometry returns the layout of a live stack, and fails unless the stack
// is of the one profile: dm-crypt with authenticated encryption straight over
// dm-integrity with a journal, straight over the disk at luks2.DataOffset
// (Linux, Documentation/admin-guide/device-mapper/dm-crypt.rst, dm-integrity.rst).
func ReadGeometry(s Stack) (Geometry, error) {
	g, err := integrityGeometry(s)
	if err != nil {
		return Geometry{}, fmt.Errorf("dm-integrity table: %w", err)
	}
	if err := checkStatus(s.Status); err != nil {
		return Geometry{}, fmt.Errorf("dm-integrity status: %w", err)
	}
	if err := checkCrypt(s, g.ProvidedSectors); err != nil {
		return Geometry{}, fmt.Errorf("dm-crypt table: %w", err)
	}
	return g, nil
}

// harmless are arguments of dm-integrity that change neither layout nor protection.
var harmless = map[string]bool{"buffer_sectors": true, "journal_watermark": true, "commit_time": true, "fix_padding": true, "fix_hmac": true}

func integrityGeometry(s Stack) (Geometry, error) {
	fields, length, err := single(s.Integrity, "integrity", 5)
	if err != nil {
		return Geometry{}, err
	}
	if fields[0] != s.Disk || fields[1] != strconv.Itoa(luks2.DataOffset/sector) || fields[3] != "J" {
		return Geometry{}, fmt.Errorf("want device %s at sector %d in mode J, got %s", s.Disk, luks2.DataOffset/sector, strings.Join(fields[:4], " "))
	}
	if fields[4] != strconv.Itoa(len(fields)-5) {
		return Geometry{}, errors.New("wrong number of arguments")
	}
	g := Geometry{ProvidedSectors: length}
	if err := number(&g.TagSize, fields[2]); err != nil {
		return Geometry{}, err
	}
	targets := map[string]*uint32{"journal_sectors": &g.JournalSectors, "interleave_sectors": &g.InterleaveSectors, "block_size": &g.BlockSize}
	for _, argument := range fields[5:] {
		name, value, _ := strings.Cut(argument, ":")
		if harmless[name] {
			continue
		}
		target, ok := targets[name]
		if !ok {
			return Geometry{}, fmt.Errorf("unexpected argument %q", name)
		}
		if err := number(target, value); err != nil {
			return Geometry{}, err
		}
	}
	if g.TagSize != luks2.TagSize || g.BlockSize != luks2.SectorSize {
		return Geometry{}, fmt.Errorf("want tags of %d bytes for blocks of %d, got %d for %d", luks2.TagSize, luks2.SectorSize, g.TagSize, g.BlockSize)
	}
	return g, nil
}

// checkStatus refuses a device that recalculates tags: it would bless whatever data it finds.
func checkStatus(status []devmapper.Target) error {
	fields, _, err := single(status, "integrity", 2)
	if err != nil {
		return err
	}
	if len(fields) > 2 && fields[2] != "-" {
		return errors.New("tags are being recalculated")
	}
	return nil
}

// checkCrypt looks at every field but the key.
func checkCrypt(s Stack, provided uint64) error {
	fields, length, err := single(s.Crypt, "crypt", 6)
	if err != nil {
		return err
	}
	want := map[string]bool{fmt.Sprintf("integrity:%d:aead", luks2.TagSize): true, fmt.Sprintf("sector_size:%d", luks2.SectorSize): true}
	wantCipher := "capi:authenc(" + luks2.Integrity + ",xts(aes))-plain64"
	switch {
	case length != provided:
		return fmt.Errorf("%d sectors over %d", length, provided)
	case fields[0] != wantCipher:
		return fmt.Errorf("cipher: want %s, got %.60s", wantCipher, fields[0])
	case fields[2] != "0" || fields[3] != s.IntegrityDevice || fields[4] != "0":
		return fmt.Errorf("want all of device %s, got %s %s %s", s.IntegrityDevice, fields[2], fields[3], fields[4])
	case fields[5] != strconv.Itoa(len(want)) || len(fields) != 6+len(want):
		return errors.New("wrong number of arguments")
	}
	for _, argument := range fields[6:] {
		if !want[argument] {
			return fmt.Errorf("unexpected argument %.60q", argument)
		}
		delete(want, argument)
	}
	return nil
}

// single returns the fields of the only target of a table, at least n, and its length.
func single(table []devmapper.Target, kind string, n int) ([]string, uint64, error) {
	if len(table) != 1 || table[0].Type != kind || table[0].Start != 0 {
		return nil, 0, fmt.Errorf("want one %s target", kind)
	}
	fields := strings.Fields(table[0].Params)
	if len(fields) < n {
		return nil, 0, fmt.Errorf("%d fields, want at least %d", len(fields), n)
	}
	return fields, table[0].Length, nil
}

func number(target *uint32, text string) error {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 || *target != 0 {
		return fmt.Errorf("%.20q is no positive number, or given twice", text)
	}
	*target = uint32(n)
	return nil
}
