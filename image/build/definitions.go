package build

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// kind is what the value of a setting is.
type kind int

const (
	ofWords       kind = iota // names, numbers, patterns: they lead to no file of this machine
	ofPaths                   // files and folders
	ofTrees                   // the same, each with its place in the tree behind a colon
	ofDefinitions             // more definitions
	ofVariables               // the environment of scripts
	ofNo                      // a word for no, and nothing else
)

// setting is one that mkosi knows. Definitions may have it unless never says why not, and what to do.
type setting struct {
	kind  kind
	never string
}

// Why definitions may not have a setting.
const (
	byTheLock   = "packages come from the lock alone: name them in Packages= or BuildPackages=, and lock them (hullmark lock)"
	afterwards  = "nothing of an image needs it: take it away"
	notForNodes = "definitions do not have it, as Hullmark sets it, or has no use for it: docs/build.md lists what they may have"
)

// known are the settings of mkosi 25 that definitions have a use for, and those that would run a program or read files where nobody
// expects it. Any other is refused, too: Hullmark sets it on mkosi's command line, or never asks mkosi for what it is about
// (disks, keys, virtual machines).
var known = map[string]setting{
	"Include":      {kind: ofDefinitions},
	"Environment":  {kind: ofVariables},
	"WithNetwork":  {kind: ofNo},
	"BuildSources": {kind: ofTrees},
	"ExtraTrees":   {kind: ofTrees}, "SkeletonTrees": {kind: ofTrees}, "BaseTrees": {kind: ofPaths},
	"PrepareScripts": {kind: ofPaths}, "BuildScripts": {kind: ofPaths}, "PostInstallationScripts": {kind: ofPaths}, "FinalizeScripts": {kind: ofPaths},

	"Profiles": {}, "MinimumVersion": {}, "Distribution": {}, "Release": {}, "Architecture": {}, "Repositories": {},
	"Format": {}, "ManifestFormat": {}, "CompressOutput": {}, "OutputMode": {}, "ImageId": {}, "ImageVersion": {},
	"Packages": {}, "BuildPackages": {}, "WithRecommends": {}, "WithDocs": {}, "RemoveFiles": {}, "CleanPackageMetadata": {},
	"Bootable": {}, "KernelCommandLine": {}, "KernelModulesExclude": {}, "Locale": {}, "LocaleMessages": {}, "Keymap": {}, "Timezone": {},
	"Hostname": {}, "RootPassword": {}, "RootShell": {}, "MachineId": {}, "Autologin": {},
	"Incremental": {}, "BuildSourcesEphemeral": {}, "WithTests": {},

	"SyncScripts":                {ofPaths, "it fetches what no lock holds: put that into the folder, and take the script away"},
	"ConfigureScripts":           {ofPaths, "it changes settings after they were looked at: write them into mkosi.conf"},
	"CleanScripts":               {ofPaths, afterwards},
	"PostOutputScripts":          {ofPaths, afterwards},
	"SandboxTrees":               {ofTrees, "it gives settings to apt, which runs what they name: " + byTheLock},
	"EnvironmentFiles":           {ofPaths, "write Environment= into mkosi.conf"},
	"PackageDirectories":         {ofPaths, byTheLock},
	"VolatilePackageDirectories": {ofPaths, byTheLock},
	"VolatilePackages":           {never: byTheLock},
	"RemovePackages":             {never: "the image has all packages of the lock: name files in RemoveFiles="},
	"Credentials":                {never: "mkosi runs those that are executable, outside of its sandbox: take it away"},
}

// byName are the settings that mkosi takes from a file or folder of a definition folder: by mkosi., such a name, and perhaps an ending.
var byName = map[string]string{
	"build": "BuildScripts", "prepare": "PrepareScripts", "postinst": "PostInstallationScripts", "finalize": "FinalizeScripts",
	"sync": "SyncScripts", "configure": "ConfigureScripts", "clean": "CleanScripts", "postoutput": "PostOutputScripts",
	"extra": "ExtraTrees", "skeleton": "SkeletonTrees", "sandbox": "SandboxTrees", "pkgmngr": "SandboxTrees",
	"env": "EnvironmentFiles", "packages": "PackageDirectories", "credentials": "Credentials",
	"version": "ImageVersion", "rootpw": "RootPassword", "machine-id": "MachineId",
}

// readAsText are those of which mkosi takes the text, which is what it prints if it is executable.
var readAsText = []string{"version", "rootpw", "machine-id"}

// endings are what may follow a name in byName: a script for the tree's own programs, a folder of scripts, an archive.
var endings = regexp.MustCompile(`(\.chroot|\.d|\.tar)$`)

// steering are variables by which the loader, Python and mkosi itself are told what to run, outside of mkosi's sandbox.
var steering = regexp.MustCompile(`^(LD_.*|GLIBC_.*|GCONV_PATH|LOCPATH|PYTHON.*|MKOSI_.*|GNUPGHOME|PATH|HOME|TMPDIR)$`)

// CheckDefinitions refuses definitions that would have mkosi run a program elsewhere than in its sandbox, or read files that are
// not theirs, before mkosi sees them. The error names the file, and says why and what to do.
func CheckDefinitions(o Options) error {
	for _, ours := range []string{"mkosi", "systemd"} {
		info, err := os.Lstat(filepath.Join(o.Source, ours))
		if err == nil && !info.IsDir() {
			return fmt.Errorf("check definitions: %w", refuse(filepath.Join(o.Source, ours), "it is no folder: take that of the release"))
		}
	}
	c := definitionCheck{own: ownFolders(filepath.Join(o.Source, "mkosi"), o.Config), seen: map[string]bool{}}
	for _, folder := range o.folders() {
		folder, err := filepath.EvalSymlinks(folder)
		if err == nil {
			err = c.folder(folder)
		}
		if err != nil {
			return fmt.Errorf("check definitions: %w", err)
		}
	}
	return nil
}

// definitionCheck is a look at definitions: each folder and file that mkosi may read settings from, whatever the profile and [Match].
type definitionCheck struct {
	own  []string // folders of what definitions may name
	seen map[string]bool
}

func refuse(what, why string) error { return fmt.Errorf("%s: %s", what, why) }

// folder looks at what mkosi takes from a folder because of its name.
func (c definitionCheck) folder(dir string) error {
	if c.seen[dir] {
		return nil
	}
	c.seen[dir] = true
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ofMkosi := strings.CutPrefix(e.Name(), "mkosi.")
		if !ofMkosi && e.Name() != modulesFile {
			continue
		}
		file := filepath.Join(dir, e.Name())
		if err := notALink(file, e); err != nil {
			return err
		}
		switch {
		case !ofMkosi:
		case name == "conf":
			err = c.file(file, dir)
		case name == "conf.d", name == "profiles":
			err = c.each(file, dir)
		default:
			err = c.named(file, name, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notALink refuses a link: what it leads to is not looked at, and may lie anywhere.
func notALink(file string, e fs.DirEntry) error {
	if e.Type()&fs.ModeSymlink != 0 {
		return refuse(file, "it is a link: put there what it leads to")
	}
	return nil
}

// each looks at a folder of definitions, of which each is a file or a folder. Paths in a file begin at base.
func (c definitionCheck) each(dir, base string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		err := notALink(file, e)
		switch {
		case err != nil:
		case e.IsDir():
			err = c.folder(file)
		case filepath.Base(dir) == profilesFolder || filepath.Ext(file) == ".conf":
			err = c.file(file, base)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// named looks at a file or folder that stands for a setting.
func (c definitionCheck) named(file, name string, e fs.DirEntry) error {
	short := endings.ReplaceAllString(name, "")
	s, ok := known[byName[short]]
	info, err := e.Info()
	switch {
	case err != nil:
		return err
	case !ok:
		return refuse(file, notForNodes)
	case s.never != "":
		return refuse(file, s.never)
	case slices.Contains(readAsText, name) && (!info.Mode().IsRegular() || info.Mode().Perm()&0o111 != 0):
		return refuse(file, "mkosi runs it, outside of its sandbox, as it is executable: chmod -x if it is text, or write "+byName[short]+"= into mkosi.conf")
	case !strings.HasSuffix(name, ".d"):
		return nil
	}
	scripts, err := os.ReadDir(file)
	for _, script := range scripts {
		err = errors.Join(err, notALink(filepath.Join(file, script.Name()), script))
	}
	return err
}

// file looks at a file of settings, in which paths begin at base.
func (c definitionCheck) file(file, base string) error {
	if c.seen[file+"\x00"+base] {
		return nil
	}
	c.seen[file+"\x00"+base] = true
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return refuse(file, "it is no file: definitions are files of settings")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	all, err := parseSettings(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, a := range all {
		if err := c.assignment(a, base); err != nil {
			return fmt.Errorf("%s: %s=: %w", file, a.name, err)
		}
	}
	return nil
}

func (c definitionCheck) assignment(a assignment, base string) error {
	if a.isCondition() {
		path := strings.TrimLeft(a.value, "|!")
		if a.name == "PathExists" && (strings.Contains(path, "%") || !filepath.IsLocal(path)) {
			return errors.New("an image does not depend on other files of this machine: name one in the folder")
		}
		return nil
	}
	s, ok := known[a.name]
	switch {
	case !ok:
		return errors.New(notForNodes)
	case s.never != "":
		return errors.New(s.never)
	case s.kind == ofVariables:
		return checkVariables(a.value)
	case s.kind == ofNo && !slices.Contains([]string{"", "0", "false", "no", "n", "f", "off", "never"}, strings.ToLower(a.value)):
		return errors.New("scripts have no network: what they need is a package, or lies in the folder")
	case s.kind == ofPaths, s.kind == ofTrees, s.kind == ofDefinitions:
		for _, item := range strings.FieldsFunc(a.value, func(r rune) bool { return r == ',' || r == '\n' }) {
			if err := c.item(s.kind, item, base); err != nil {
				return err
			}
		}
	}
	return nil
}

// item looks at one path of a setting.
func (c definitionCheck) item(k kind, item, base string) error {
	if strings.ContainsAny(item, "%$") || strings.HasPrefix(strings.TrimSpace(item), "~") {
		return fmt.Errorf("%s: mkosi puts something else in the place of %%, $ and ~: write the path itself", item)
	}
	path := item
	if k == ofTrees {
		var place string
		if path, place, _ = strings.Cut(item, ":"); slices.Contains(strings.Split(place, "/"), "..") {
			return fmt.Errorf("%s: a place with .. may be outside of the tree: write it without", item)
		}
	}
	if !filepath.IsAbs(path) {
		path = base + "/" + path // not joined: .. behind a link leads elsewhere than it seems
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("it is not there: put it into the folder: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !isBelow(c.own, path):
		return fmt.Errorf("%s is outside of the folder: put it there", item)
	case k == ofDefinitions && info.IsDir():
		return c.folder(path)
	case k == ofDefinitions:
		return c.file(path, base)
	case filepath.Ext(path) == ".raw":
		return fmt.Errorf("%s: mkosi mounts a disk: put the files that are on it into a folder", item)
	}
	return nil
}

// checkVariables looks at the words of Environment=: NAME=VALUE each, some in quotes, which are taken for no part of a name.
func checkVariables(value string) error {
	if strings.ContainsAny(value, `%\`) {
		return errors.New(`mkosi puts something else in the place of % and \: write the value itself`)
	}
	for _, word := range strings.Fields(strings.NewReplacer(`"`, "", `'`, "").Replace(value)) {
		if name, _, _ := strings.Cut(word, "="); steering.MatchString(name) {
			return fmt.Errorf("%s tells programs outside of mkosi's sandbox what to run: set it in your script", name)
		}
	}
	return nil
}

// ownFolders are the folders of what definitions may name, by their real paths: the definitions themselves, and what systemd reads.
func ownFolders(definitions, config string, more ...string) []string {
	var own []string
	for _, dir := range append([]string{definitions, filepath.Join(filepath.Dir(definitions), "systemd"), config}, more...) {
		if folder, err := filepath.EvalSymlinks(dir); err == nil && dir != "" {
			own = append(own, folder)
		}
	}
	return own
}

// isBelow tells whether a real path is that of one of the folders, or of something in it.
func isBelow(folders []string, path string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		name, err := filepath.Rel(folder, path)
		return err == nil && filepath.IsLocal(name)
	})
}
