package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/publish"
	"github.com/hullmark/hullmark/pcrs"
)

// What is compared of images, in the order in which it is shown.
const (
	kindImage    = "image"
	kindSize     = "size"
	kindCmdline  = "command line"
	kindSection  = "kernel image"
	kindConfig   = "kernel configuration"
	kindPackage  = "package"
	kindUnit     = "unit"
	kindFile     = "file"
	kindRegister = "register"
)

var kinds = []string{kindImage, kindSize, kindCmdline, kindSection, kindConfig, kindPackage, kindUnit, kindFile, kindRegister}

// inventory is what is in an image: by kind and name, a value for people that is equal where the things are.
type inventory struct {
	found map[string]map[string]string
	// missing are kinds that could not be looked at, with the reason.
	missing map[string]string
}

func newInventory() inventory {
	return inventory{found: map[string]map[string]string{}, missing: map[string]string{}}
}

func (i inventory) add(kind, name, value string) {
	if i.found[kind] == nil {
		i.found[kind] = map[string]string{}
	}
	i.found[kind][name] = value
}

// lookup makes inventories: all with the same tools, and for the same machine.
type lookup struct{ tools, machine string }

// lookedAt is an image with the inventory of all but its root file system.
type lookedAt struct {
	*os.File
	inventory
	disk     *image.Disk
	rootHash []byte
}

// image opens an image and looks at all but its root file system.
func (l lookup) image(path string) (lookedAt, error) {
	o := lookedAt{inventory: newInventory()}
	options := measureOptions{machine: l.machine}
	if l.machine == "" {
		options.firmware, options.vars = filepath.Join(l.tools, treeFirmware), filepath.Join(l.tools, treeVars)
	}
	document, err := measureImage(path, options) // hashes everything
	if err != nil {
		return o, err
	}
	if o.File, err = os.Open(path); err != nil {
		return o, err
	}
	info, err := o.Stat()
	if err == nil {
		o.disk, err = image.Open(o.File, info.Size())
	}
	if err != nil {
		return o, errors.Join(err, o.Close())
	}
	o.rootHash = o.disk.RootHash[:]
	o.addDocument(document)
	o.addDisk(o.disk, info.Size())
	if err := o.addPackages(lock.Beside(path, lock.SPDXEnding), document.Image.RootHash.String()); err != nil {
		return o, errors.Join(err, o.Close())
	}
	return o, nil
}

func (i inventory) addDocument(d measurements.Document) {
	i.add(kindImage, "name", d.Image.ID)
	i.add(kindImage, "version", d.Image.Version)
	i.add(kindImage, "sha256 of the disk", d.Image.Disk.String())
	i.add(kindImage, "root hash", d.Image.RootHash.String())
	i.add(kindImage, "sha256 of the kernel image", d.Image.UKI.String())
	i.add(kindImage, "boot stub", d.Image.Stub)
	for _, r := range d.Registers {
		name := r.Register.String()
		if r.Register.PCR() {
			name = fmt.Sprintf("PCR %2d", int(r.Register)) // in the order of their numbers
		}
		i.add(kindRegister, name, r.Values[pcrs.SHA256].String())
		seen := map[string]int{}
		for _, e := range r.Events {
			what := name + ", " + e.Source.String()
			if seen[what]++; seen[what] > 1 {
				what += fmt.Sprintf(" (%d)", seen[what])
			}
			i.add(kindRegister, what, e.Digests[pcrs.SHA256].String())
		}
	}
}

func (i inventory) addDisk(d *image.Disk, size int64) {
	i.add(kindSize, "disk", strconv.FormatInt(size, 10))
	i.add(kindSize, "root file system", strconv.FormatInt(d.Root.Size(), 10))
	i.add(kindSize, "kernel image", strconv.Itoa(len(d.UKIBytes)))
	for _, s := range d.UKI.Measured() {
		switch s.Name {
		case ".uname":
			i.add(kindSection, "version", string(s.Data))
		case ".cmdline":
		default:
			i.add(kindSize, s.Name, strconv.Itoa(len(s.Data)))
			i.add(kindSection, s.Name, fmt.Sprintf("sha256 %x", sha256.Sum256(s.Data)))
		}
	}
	words := map[string][]string{}
	for _, word := range strings.Fields(d.Cmdline) {
		name, _, _ := strings.Cut(word, "=")
		words[name] = append(words[name], word)
	}
	for name, all := range words {
		i.add(kindCmdline, name, strings.Join(all, " "))
	}
}

// addPackages reads the bill beside the image, if it is there.
func (i inventory) addPackages(path, rootHash string) error {
	text, err := readBounded(path, publish.MaxSBOM)
	if errors.Is(err, fs.ErrNotExist) {
		i.missing[kindPackage] = path + " is not there"
		return nil
	}
	if err != nil {
		return err
	}
	about, listed, err := lock.ReadSPDX(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if about != rootHash {
		return fmt.Errorf("%s is about another image, with root hash %.64s: put the one that was built with the image in its place, or remove it", path, about)
	}
	for _, l := range listed {
		i.add(kindPackage, l.Name, strings.TrimPrefix(i.found[kindPackage][l.Name]+" "+l.Version, " "))
	}
	return nil
}

// roots looks into both root file systems.
func (l lookup) roots(ctx context.Context, images ...lookedAt) error {
	for _, o := range images {
		err := build.WalkRoot(ctx, l.tools, io.NewSectionReader(o.disk.Root, 0, o.disk.Root.Size()), o.addFile)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Name(), err)
		}
		if len(o.found[kindConfig]) == 0 {
			o.missing[kindConfig] = o.Name() + " has none beside its modules"
		}
	}
	return nil
}

var (
	unitFile   = regexp.MustCompile(`^/(usr/lib|etc)/systemd/system/`)
	configFile = regexp.MustCompile(`^/usr/lib/modules/[^/]+/config$`)
)

// addFile adds one file of the root file system.
func (i inventory) addFile(name, file string, info fs.FileInfo) error {
	value := info.Mode().String()
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if err != nil {
			return err
		}
		value = "-> " + target
	case info.Mode().IsRegular():
		digest, err := digestOf(file)
		if err != nil {
			return err
		}
		value = fmt.Sprintf("%s %d bytes, sha256 %v", info.Mode(), info.Size(), digest)
	}
	kind := kindFile
	if unitFile.MatchString(name) {
		kind = kindUnit
	}
	i.add(kind, name, value)
	if configFile.MatchString(name) && info.Mode().IsRegular() {
		return i.addConfig(file)
	}
	return nil
}

// maxConfig is how long a kernel's configuration may be, in bytes.
const maxConfig = 4 << 20

var configLine = regexp.MustCompile(`^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$`)

func (i inventory) addConfig(file string) error {
	text, err := readBounded(file, maxConfig)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		if m := configLine.FindStringSubmatch(strings.TrimSpace(string(line))); m != nil {
			if m[3] != "" {
				m[1], m[2] = m[3], "n"
			}
			i.add(kindConfig, m[1], m[2])
		}
	}
	return nil
}
