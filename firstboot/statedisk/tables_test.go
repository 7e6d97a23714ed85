package statedisk

import (
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/firstboot/devmapper"
	"github.com/hullmark/hullmark/firstboot/luks2"
)

const (
	cryptParams     = "capi:authenc(hmac(sha256),xts(aes))-plain64 :96:logon:cryptsetup:x 0 253:0 0 2 integrity:32:aead sector_size:4096"
	integrityParams = "254:0 32768 32 J 7 block_size:4096 journal_sectors:15872 interleave_sectors:32768 buffer_sectors:128 journal_watermark:50 commit_time:10000 fix_padding"
)

func stack(crypt, integrity, status string) Stack {
	target := func(kind, params string) []devmapper.Target {
		return []devmapper.Target{{Length: 2040800, Type: kind, Params: params}}
	}
	return Stack{
		Crypt: target("crypt", crypt), Integrity: target("integrity", integrity), Status: target("integrity", status),
		Disk: "254:0", IntegrityDevice: "253:0",
	}
}

func TestReadGeometry(t *testing.T) {
	got, err := ReadGeometry(stack(cryptParams, integrityParams, "0 2040800 -"))
	if err != nil || got != exampleReady.Geometry {
		t.Errorf("ReadGeometry = %+v, %v; want %+v", got, err, exampleReady.Geometry)
	}
}

// Each stack is one that a host could hope to get mounted.
func TestReadGeometryRefuses(t *testing.T) {
	const status = "0 2040800 -"
	for name, s := range map[string]Stack{
		"recalculating by status":   stack(cryptParams, integrityParams, "0 2040800 8"),
		"recalculating by argument": stack(cryptParams, "254:0 32768 32 J 4 block_size:4096 journal_sectors:1 interleave_sectors:1 recalculate", status),
		"no journal":                stack(cryptParams, "254:0 32768 32 D 2 block_size:4096 interleave_sectors:32768", status),
		"own hash":                  stack(cryptParams, "254:0 32768 32 J 2 block_size:4096 internal_hash:crc32c", status),
		"other disk":                stack(cryptParams, "254:16 32768 32 J 1 block_size:4096", status),
		"other offset":              stack(cryptParams, "254:0 0 32 J 1 block_size:4096", status),
		"other tag":                 stack(cryptParams, "254:0 32768 4 J 1 block_size:4096", status),
		"argument count":            stack(cryptParams, "254:0 32768 32 J 2 block_size:4096", status),
		"null cipher":               stack("cipher_null-ecb - 0 253:0 0", integrityParams, status),
		"no integrity":              stack("aes-xts-plain64 :64:logon:x 0 253:0 0 1 sector_size:4096", integrityParams, status),
		"past integrity":            stack("capi:authenc(hmac(sha256),xts(aes))-plain64 k 0 254:0 0 2 integrity:32:aead sector_size:4096", integrityParams, status),
		"other start":               stack("capi:authenc(hmac(sha256),xts(aes))-plain64 k 0 253:0 8 2 integrity:32:aead sector_size:4096", integrityParams, status),
		"other vector":              stack("capi:authenc(hmac(sha256),xts(aes))-plain64 k 8 253:0 0 2 integrity:32:aead sector_size:4096", integrityParams, status),
		"discards":                  stack("capi:authenc(hmac(sha256),xts(aes))-plain64 k 0 253:0 0 2 integrity:32:aead allow_discards", integrityParams, status),
		"argument twice":            stack("capi:authenc(hmac(sha256),xts(aes))-plain64 k 0 253:0 0 2 sector_size:4096 sector_size:4096", integrityParams, status),
		"nothing":                   {},
		"short":                     stack("a", "b", "c"),
	} {
		if g, err := ReadGeometry(s); err == nil {
			t.Errorf("%s: accepted as %+v", name, g)
		}
	}
	two := stack(cryptParams, integrityParams, status)
	two.Crypt = append(two.Crypt, devmapper.Target{Type: "linear"})
	if _, err := ReadGeometry(two); err == nil {
		t.Error("a second target was accepted")
	}
}

// FuzzReadGeometry holds the reader of live tables to the one profile.
func FuzzReadGeometry(f *testing.F) {
	f.Add(cryptParams, integrityParams, "0 2040800 -", uint64(2040800))
	f.Add(cryptParams, "254:0 32768 32 J 2 block_size:4096 recalculate", "0 2040800 8", uint64(8))
	f.Fuzz(func(t *testing.T, crypt, integrity, status string, length uint64) {
		s := stack(crypt, integrity, status)
		s.Crypt[0].Length = length
		g, err := ReadGeometry(s)
		if err != nil {
			return
		}
		if g.ProvidedSectors != length || g.TagSize != luks2.TagSize || g.BlockSize != luks2.SectorSize {
			t.Errorf("accepted as %+v, with %d sectors", g, length)
		}
		words := strings.Fields(crypt + " " + integrity)
		for _, word := range []string{"recalculate", "allow_discards", "D", "B", "R"} {
			if slices.Contains(words[2:], word) { // the second word is the key's name
				t.Errorf("accepted with %s", word)
			}
		}
	})
}
