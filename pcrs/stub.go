package pcrs

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hullmark/hullmark/image/uki"
)

// stubRules says how one generation of systemd-stub starts the kernel.
type stubRules struct {
	// loadsKernelThroughFirmware: the stub lets firmware load the kernel, which
	// measures it once more, unless Secure Boot is on.
	loadsKernelThroughFirmware bool
}

// rulesFor returns the rules of a stub's version, such as "257.13-1". Only
// versions whose measurements were compared with a boot are here.
func rulesFor(version string) (stubRules, error) {
	major, _, _ := strings.Cut(version, ".")
	major, _, _ = strings.Cut(major, "-")
	if major == "257" {
		return stubRules{loadsKernelThroughFirmware: true}, nil
	}
	return stubRules{}, fmt.Errorf("systemd-stub %s: its boot was never compared with a prediction; use the stub of systemd 257", version)
}

// loadOptions returns the command line as the stub passes it on: UTF-16LE with a NUL.
func loadOptions(cmdline []byte) ([]byte, error) {
	if !utf8.Valid(cmdline) {
		return nil, errors.New("is not UTF-8")
	}
	for _, c := range cmdline {
		if c < ' ' || c > '~' {
			return nil, fmt.Errorf("holds the byte %#02x; the stub rewrites all but printable ASCII, which is not modelled", c)
		}
	}
	return append(utf16Bytes(string(cmdline)), 0, 0), nil
}

// refusedByPrediction are sections that are measured into PCR 11 by known
// rules, but whose effect on later events was never compared with a boot.
var refusedByPrediction = []string{".dtb", ".pcrsig", ".ucode"}

// combinedInitrd is the event of the initrd as the stub hands it to the kernel: the
// section .initrd, then an archive for each section that becomes a file below
// /.extra; each part is padded with zeros to 4 bytes.
func combinedInitrd(u *uki.UKI) (Event, error) {
	for _, name := range refusedByPrediction {
		if _, ok := u.Section(name); ok {
			return Event{}, fmt.Errorf("section %s: what a boot measures of it was never observed; build the image without it", name)
		}
	}
	initrd, ok := u.Section(".initrd")
	if !ok {
		return Event{}, errors.New("unified kernel image: no .initrd section")
	}
	pieces := [][]byte{initrd, make([]byte, -len(initrd)&3)}
	what := fmt.Sprintf("the initrd that the stub hands over: section .initrd (%d bytes)", len(initrd))
	for _, file := range []struct{ section, name string }{
		{".pcrpkey", "tpm2-pcr-public-key.pem"},
		{".osrel", "os-release"},
	} {
		data, ok := u.Section(file.section)
		if !ok {
			continue
		}
		pieces = append(pieces, extraArchive(file.name, data))
		what += fmt.Sprintf(", archive with /.extra/%s from section %s", file.name, file.section)
	}
	return large(9, EvEventTag, what, pieces...), nil
}

// cpioTrailer ends an archive as the stub writes it: unlike in its headers, the
// hexadecimal digit of the name's length is upper-case.
const cpioTrailer = "070701" + "00000000" + "00000000" + "00000000" + "00000000" + "00000001" + "00000000" + "00000000" +
	"00000000" + "00000000" + "00000000" + "00000000" + "0000000B" + "00000000" + "TRAILER!!!\x00\x00\x00\x00"

// extraArchive is the cpio archive that the stub makes of one section: the
// directory .extra and one file in it.
func extraArchive(name string, data []byte) []byte {
	out := newcHeader(1, 0o40555, 0, ".extra")
	out = append(out, newcHeader(2, 0o100444, len(data), ".extra/"+name)...)
	out = pad4(append(out, data...))
	return append(out, cpioTrailer...)
}

// newcHeader is a header of the newc format with one link and everything else
// that could vary at zero, in lower-case hexadecimal digits.
func newcHeader(inode, mode, size int, name string) []byte {
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	return pad4([]byte(header))
}

func pad4(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
