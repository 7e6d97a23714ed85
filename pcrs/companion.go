package pcrs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/authenticode"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/uki"
)

// Limits of what may lie beside the image.
const (
	// MaxESPFiles is how many files Boot.ESP may hold.
	MaxESPFiles = 4096
	// MaxESPBytes is how many bytes they may have together.
	MaxESPBytes = 256 << 20
	// maxName is the longest name of a companion in bytes; the stub skips longer ones.
	maxName = 255
)

// checkESP bounds the files of the ESP and refuses paths that FAT cannot hold: together with each other, beside the kernel
// image, or at all.
func checkESP(esp map[string][]byte) error {
	if len(esp) > MaxESPFiles {
		return fmt.Errorf("ESP: %d files, want at most %d", len(esp), MaxESPFiles)
	}
	total, files, folders := 0, map[string]bool{}, map[string]bool{}
	for _, parent := range parents(strings.ToLower(uki.Path)) {
		folders[parent] = true
	}
	for _, name := range slices.Sorted(maps.Keys(esp)) {
		if !fs.ValidPath(name) || name == "." || strings.ContainsFunc(name, notInFAT) || strings.Contains(name+"/", "./") || strings.Contains(name+"/", " /") {
			return fmt.Errorf("ESP: %q: want a clean relative path with slashes, of characters that FAT has", name)
		}
		lower := strings.ToLower(name)
		if lower == strings.ToLower(uki.Path) {
			return fmt.Errorf("ESP: %q is the kernel image of the disk; name what lies beside it", name)
		}
		if files[lower] {
			return fmt.Errorf("ESP: %q: there twice, FAT does not tell upper from lower case", name)
		}
		files[lower] = true
		for _, parent := range parents(lower) {
			folders[parent] = true
		}
		total += len(esp[name])
	}
	for name := range files {
		if folders[name] {
			return fmt.Errorf("ESP: %q: both a file and a folder", name)
		}
	}
	if total > MaxESPBytes {
		return fmt.Errorf("ESP: %d bytes, want at most %d", total, MaxESPBytes)
	}
	return nil
}

// parents are the folders that a path is in.
func parents(name string) (out []string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		out = append(out, dir)
	}
	return out
}

// notInFAT reports whether a long name of FAT cannot hold a character.
func notInFAT(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune(`\:*?"<>|`, r) }

// espFiles returns the files that the stub picks from a folder of the ESP, in its
// order: by name, byte by byte. It compares folders and suffixes without regard to
// case, and skips hidden files, long names and names outside ASCII.
func espFiles(esp map[string][]byte, folder, suffix, exclude string) []espFile {
	var out []espFile
	for p, data := range esp {
		dir, name := path.Split(p)
		switch {
		case !strings.EqualFold(strings.TrimSuffix(dir, "/"), folder), !hasSuffix(name, suffix):
		case exclude != "" && hasSuffix(name, exclude):
		case strings.HasPrefix(name, "."), len(name) > maxName, !isASCII(name):
		default:
			out = append(out, espFile{name, data})
		}
	}
	slices.SortFunc(out, func(a, b espFile) int { return strings.Compare(a.name, b.name) })
	return out
}

// hasSuffix compares the ASCII letters of a suffix without regard to case.
func hasSuffix(name, suffix string) bool {
	return len(name) >= len(suffix) && strings.EqualFold(name[len(name)-len(suffix):], suffix)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] > 0x7f {
			return false
		}
	}
	return true
}

// addon is an addon that firmware loaded and the stub uses, by its path on the ESP.
type addon struct {
	file string
	*uki.Addon
}

// loadAddons loads the addons of a folder. Firmware measures each that it loads
// into PCR 4; the stub then uses those that are for its image.
func (p *predictor) loadAddons(folder string) ([]addon, error) {
	var out []addon
	for _, f := range espFiles(p.boot.ESP, folder, uki.AddonEnding, "") {
		opened, err := uki.OpenAddon(f.data)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", folder, f.name, err)
		}
		refused, err := p.loads(opened.PE)
		if errors.Is(err, authenticode.ErrNotJudged) {
			p.leaveOpen(fmt.Sprintf("whether firmware loads addon %s/%s is not known: %v", folder, f.name, err), 4, 7, 9, 12)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", folder, f.name, err)
		}
		if refused != "" {
			continue // Firmware verifies before it measures, so there is nothing of it.
		}
		p.add(authenticodeEvent(4, opened.PE, Source{Kind: FromProgram, File: folder + "/" + f.name}))
		if p.uses(opened) {
			out = append(out, addon{folder + "/" + f.name, opened})
		}
	}
	return out, nil
}

// uses reports whether the stub uses an addon: it has a section that counts, is no
// kernel image, and is for this kernel if both name one.
func (p *predictor) uses(a *uki.Addon) bool {
	useful := slices.ContainsFunc(p.stub.Addons, func(name string) bool {
		_, ok := a.Section(name)
		return ok
	})
	_, kernel := a.Section(".linux")
	ours, named := p.boot.UKI.Section(".uname")
	theirs, names := a.Section(".uname")
	return useful && !kernel && (!named || !names || sameText(ours, theirs))
}

// sameText compares as the stub does: up to a NUL, and no further than theirs is long.
func sameText(ours, theirs []byte) bool {
	for i, c := range theirs {
		own := byte(0)
		if i < len(ours) {
			own = ours[i]
		}
		if own != c {
			return false
		}
		if c == 0 {
			break
		}
	}
	return true
}

// addons loads the global addons, then those of the image, and appends their command lines.
func (p *predictor) addons() error {
	if p.stub.Addons == nil {
		return nil
	}
	var together []addon
	for _, folder := range []string{uki.GlobalAddonsFolder, uki.LocalFolder} {
		found, err := p.loadAddons(folder)
		if err != nil {
			return err
		}
		together = append(together, found...)
		if p.stub.FoldersApart {
			if err := p.appendCmdlines(found); err != nil {
				return err
			}
		}
	}
	p.used = together
	if p.stub.FoldersApart {
		return nil
	}
	return p.appendCmdlines(together)
}

// appendCmdlines measures the command lines of addons together and appends them.
func (p *predictor) appendCmdlines(addons []addon) error {
	var lines []string
	var from []Source
	for _, a := range addons {
		if slices.ContainsFunc([]string{".dtb", ".dtbauto"}, func(name string) bool { _, ok := a.Section(name); return ok }) {
			return fmt.Errorf("addon %s: device trees are not supported; remove it", a.file)
		}
		line, ok := a.Section(".cmdline")
		if !ok {
			continue
		}
		if err := checkText(line); err != nil {
			return fmt.Errorf("addon %s: section .cmdline: %w", a.file, err)
		}
		lines, from = append(lines, string(line)), append(from, Source{Kind: FromAddon, Section: ".cmdline", File: a.file})
	}
	if len(lines) > 0 {
		p.appendCmdline(strings.Join(lines, " "), from...)
	}
	return nil
}

// appendCmdline measures a text from outside the image and appends it to the command line.
func (p *predictor) appendCmdline(text string, from ...Source) {
	wide := append(efi.UTF16(text), 0, 0)
	p.add(derived(12, EvIPL, wide, Source{Kind: FromAddedText, Name: text, Parts: from}))
	p.cmdline += " " + text
	p.cmdlineFrom = append(p.cmdlineFrom, from...)
}

// smbios appends what the host passes in the SMBIOS, with Secure Boot or without.
func (p *predictor) smbios() error {
	if !p.stub.SMBIOS || len(p.boot.SMBIOSExtra) == 0 {
		return nil
	}
	extra := p.boot.SMBIOSExtra[0]
	if err := checkText([]byte(extra)); err != nil {
		return fmt.Errorf("SMBIOS string io.systemd.stub.kernel-cmdline-extra: %w", err)
	}
	p.appendCmdline(extra, Source{Kind: FromSMBIOS, Name: "io.systemd.stub.kernel-cmdline-extra"})
	return nil
}

// sidecars measures the archives that the stub makes of files on the ESP, then
// what addons bring to the initrd: microcode backwards, because the kernel takes
// the first that fits.
func (p *predictor) sidecars() error {
	for _, s := range p.stub.Sidecars {
		files := espFiles(p.boot.ESP, s.Folder, s.Ending, s.Exclude)
		if len(files) == 0 {
			continue
		}
		data := archive(s.Directory, s.DirMode, s.FileMode, files)
		source := Source{Kind: FromArchive, Name: s.What, Files: names(files), File: s.Folder}
		p.add(large(Register(s.PCR), EvIPL, source, data))
		p.archives = append(p.archives, part{data, source})
	}
	for _, a := range slices.Backward(p.used) {
		p.ucode = append(p.ucode, p.addonPart(a, ".ucode")...)
	}
	for _, a := range p.used {
		p.initrds = append(p.initrds, p.addonPart(a, ".initrd")...)
	}
	return nil
}

// addonPart measures a section of an addon that becomes part of the initrd.
func (p *predictor) addonPart(a addon, section string) []part {
	data, ok := a.Section(section)
	if !ok || !slices.Contains(p.stub.Addons, section) {
		return nil
	}
	source := Source{Kind: FromAddon, Section: section, File: a.file}
	p.add(large(12, EvEventTag, source, data))
	return []part{{data, source}}
}
