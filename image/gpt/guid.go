package gpt

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// GUID holds the 16 bytes in the order in which the string form prints them.
// On a disk the first three fields are stored little-endian instead.
type GUID [16]byte

// Types of the partitions of a Hullmark disk (UEFI 2.10 table 5.7; UAPI.2
// Discoverable Partitions Specification, x86-64).
var (
	// TypeESP is an EFI system partition.
	TypeESP = mustParse("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
	// TypeRootAMD64 is a root file system.
	TypeRootAMD64 = mustParse("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")
	// TypeRootVerityAMD64 is the dm-verity hash tree of a root file system.
	TypeRootVerityAMD64 = mustParse("2c7357ed-ebd2-46d9-aec1-23d437ec2bf5")
	// TypeLinux is data of Linux, without a meaning to others.
	TypeLinux = mustParse("0fc63daf-8483-4772-8e79-3d69d8477de4")
)

// ParseGUID reads the 8-4-4-4-12 string form, in either case.
func ParseGUID(s string) (GUID, error) {
	var g GUID
	plain := strings.ReplaceAll(s, "-", "")
	if len(s) != 36 || len(plain) != 32 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return g, fmt.Errorf("parse GUID %q: want the form 8-4-4-4-12", s)
	}
	if _, err := hex.Decode(g[:], []byte(plain)); err != nil {
		return g, fmt.Errorf("parse GUID %q: %w", s, err)
	}
	return g, nil
}

// String returns the lower-case 8-4-4-4-12 form.
func (g GUID) String() string {
	h := hex.EncodeToString(g[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// guidFromDisk converts from the mixed-endian form of a disk.
func guidFromDisk(b []byte) GUID {
	return GUID{
		b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6],
		b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15],
	}
}

// disk returns the mixed-endian form; the conversion is its own inverse.
func (g GUID) disk() []byte {
	swapped := guidFromDisk(g[:])
	return swapped[:]
}

func mustParse(s string) GUID {
	g, err := ParseGUID(s)
	if err != nil {
		panic(err)
	}
	return g
}
