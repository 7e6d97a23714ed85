package build

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// extraFolder is the folder of a definition folder whose files mkosi copies into the tree (mkosi(1), ExtraTrees=).
const extraFolder = "mkosi.extra"

// processed are the places whose files mkosi's last steps read or write: units and their presets, users, what tmpfiles.d makes
// and copies, modules, the device database, links of libraries; those that systemd/ has files for, too; and those that are
// links in the tree. A file anywhere else is in the tree as it is in mkosi.extra.
var processed = []string{
	"bin", "boot", "efi", "lib", "sbin", "usr/local/lib", "usr/share/factory", "etc/depmod.d", "etc/group", "etc/gshadow", "etc/hostname", "etc/kernel", "etc/ld.so", "etc/locale", "etc/localtime", "etc/machine-i",
	"etc/modprobe.d", "etc/os-release", "etc/passwd", "etc/shadow", "etc/sub", "etc/sysusers.d", "etc/systemd", "etc/tmpfiles.d", "etc/udev", "etc/vconsole.conf",
	"usr/lib/depmod.d", "usr/lib/kernel", "usr/lib/locale", "usr/lib/modprobe.d", "usr/lib/modules", "usr/lib/os-release", "usr/lib/sysctl.d", "usr/lib/systemd", "usr/lib/sysusers.d",
	"usr/lib/tmpfiles.d", "usr/lib/udev", "var",
}

// verbatim maps files of the tree to those in the definition folders that they are copies of, and that may change without mkosi
// being run again. What two folders have is not among them; nor is anything where there is a script but ours, which reads none
// of them: scripts may read and write what they like.
func verbatim(o Options) (map[string]string, error) {
	files := map[string]string{}
	var twice []string
	for i, folder := range o.definitions() {
		if scripts, err := hasScripts(folder, i == 0); err != nil || scripts {
			return nil, err
		}
		extra := filepath.Join(folder, extraFolder)
		err := filepath.WalkDir(extra, func(file string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(extra, file)
			if err != nil || slices.ContainsFunc(processed, func(p string) bool { return strings.HasPrefix(name, p) }) {
				return err
			}
			if files[name] != "" {
				twice = append(twice, name)
			}
			files[name] = file
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for _, name := range twice {
		delete(files, name)
	}
	return files, nil
}

// scripts are the kinds that mkosi knows, each a file or a folder of that name, or with more behind it; and what holds more
// settings, or more files for the tree.
var scripts = regexp.MustCompile(`^mkosi\.(configure|sync|prepare|build|postinst|finalize|postoutput|clean|local|extra\.tar)(\.|$)`)

// settings are what a definition file may have in it that names scripts, by any of their names, or other definitions.
var settings = regexp.MustCompile(`(?m)^\s*@?(\w*Scripts?|Include)\s*=`)

// definitionFiles are the files with settings of a definition folder, or of a profile, which may be a file. Some may not be there.
func definitionFiles(folder string) []string {
	more, _ := filepath.Glob(filepath.Join(folder, "mkosi.conf.d", "*"))
	return append(more, filepath.Join(folder, "mkosi.conf"), folder+".conf")
}

// hasScripts tells whether mkosi runs, or may run, a script of a definition folder or of what it includes (mkosi(1),
// "Scripts"), or copies files by a tmpfiles.d of it; ours has one script, mkosi.finalize.
func hasScripts(folder string, ours bool) (bool, error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, e := range entries {
		if scripts.MatchString(e.Name()) && !(ours && e.Name() == "mkosi.finalize") {
			return true, nil
		}
	}
	if copies, _ := filepath.Glob(filepath.Join(folder, extraFolder, "*", "lib", "tmpfiles.d")); len(copies) > 0 {
		return true, nil
	}
	for _, file := range definitionFiles(folder) {
		text, err := os.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil, settings.Match(text):
			return true, nil // a folder of definitions, perhaps
		}
	}
	return false, nil
}

// update gives files of the tree the content that they are copies of. Files that mkosi removed stay away.
func (m members) update(from map[string]string) error {
	for name, file := range from {
		f, ok := m[name]
		if !ok || f.header.Typeflag != tar.TypeReg || f.same != "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("root tree: %w", err)
		}
		f.header.Size, f.open = info.Size(), section(file, 0, info.Size())
		m[name] = f
	}
	return nil
}
