package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Kind is a kind of thing in an image, in words for people.
type Kind string

// What is looked at in images, in the order in which it is shown.
const (
	KindImage    Kind = "image"
	KindSize     Kind = "size"
	KindCmdline  Kind = "command line"
	KindSection  Kind = "kernel image"
	KindConfig   Kind = "kernel configuration"
	KindPackage  Kind = "package"
	KindUnit     Kind = "unit"
	KindFile     Kind = "file"
	KindRegister Kind = "register"
)

var kinds = []Kind{KindImage, KindSize, KindCmdline, KindSection, KindConfig, KindPackage, KindUnit, KindFile, KindRegister}

// Inventory is what is in an image.
type Inventory struct {
	// Found has, by kind and name, a value for people that is equal where the things are.
	Found map[Kind]map[string]string
	// Missing are kinds that could not be looked at, with the reason.
	Missing map[Kind]string
}

// Walk calls visit for everything in a root file system, in the order of names: with its path in the image ("/etc/hosts"), and with a file
// that has its content, which visit may read.
type Walk func(ctx context.Context, root io.Reader, visit func(name, file string, info fs.FileInfo) error) error

// List says all that is in the raw disk in a file. Registers are predicted for boot's machine, and walk looks into the root file system.
func List(ctx context.Context, boot pcrs.Boot, walk Walk, file string) (Inventory, error) {
	i, err := openListed(file, boot)
	if err != nil {
		return Inventory{}, err
	}
	defer i.Close()
	return i.Inventory, i.addRoot(ctx, walk)
}

func newInventory() Inventory {
	return Inventory{Found: map[Kind]map[string]string{}, Missing: map[Kind]string{}}
}

func (i Inventory) add(kind Kind, name, value string) {
	if i.Found[kind] == nil {
		i.Found[kind] = map[string]string{}
	}
	i.Found[kind][name] = value
}

// listed is an open image with the inventory of all but its root file system.
type listed struct {
	*os.File
	Inventory
	disk *image.Disk
}

// openListed opens an image and looks at all but its root file system.
func openListed(path string, boot pcrs.Boot) (o listed, err error) {
	raw, size, err := openFile(path)
	if err != nil {
		return o, err
	}
	defer func() {
		if err != nil {
			_ = raw.Close()
		}
	}()
	disk, described, err := Open(raw, size) // hashes everything
	if err != nil {
		return o, err
	}
	document, err := measure(disk, described, boot, measurements.Release{})
	if err != nil {
		return o, err
	}
	o = listed{raw, newInventory(), disk}
	o.addDocument(document)
	o.addDisk(disk, size)
	return o, o.addPackages(lock.Beside(path, lock.SPDXEnding), document.Image.RootHash.String())
}

func (i Inventory) addDocument(d measurements.Document) {
	i.add(KindImage, "name", d.Image.ID)
	i.add(KindImage, "version", d.Image.Version)
	i.add(KindImage, "sha256 of the disk", d.Image.Disk.String())
	i.add(KindImage, "root hash", d.Image.RootHash.String())
	i.add(KindImage, "sha256 of the kernel image", d.Image.UKI.String())
	i.add(KindImage, "boot stub", d.Image.Stub)
	i.add(KindImage, "Kubernetes", d.Image.Kubernetes.String())
	i.add(KindImage, "etcd", d.Image.Etcd.String())
	for _, r := range d.Registers {
		name := r.Register.String()
		if r.Register.PCR() {
			name = fmt.Sprintf("PCR %2d", int(r.Register)) // in the order of their numbers
		}
		i.add(KindRegister, name, r.Values[r.Register.In(pcrs.SHA256)].String())
		seen := map[string]int{}
		for _, e := range r.Events {
			what := name + ", " + e.Source.String()
			if seen[what]++; seen[what] > 1 {
				what += fmt.Sprintf(" (%d)", seen[what])
			}
			i.add(KindRegister, what, e.Digests[r.Register.In(pcrs.SHA256)].String())
		}
	}
}

func (i Inventory) addDisk(d *image.Disk, size int64) {
	i.add(KindSize, "disk", strconv.FormatInt(size, 10))
	i.add(KindSize, "root file system", strconv.FormatInt(d.Root.Size(), 10))
	i.add(KindSize, "kernel image", strconv.Itoa(len(d.UKIBytes)))
	for _, s := range d.UKI.Measured() {
		switch s.Name {
		case ".uname":
			i.add(KindSection, "version", string(s.Data))
		case ".cmdline":
		default:
			i.add(KindSize, s.Name, strconv.Itoa(len(s.Data)))
			i.add(KindSection, s.Name, fmt.Sprintf("sha256 %x", sha256.Sum256(s.Data)))
		}
	}
	words := map[string][]string{}
	for _, word := range strings.Fields(d.Cmdline) {
		name, _, _ := strings.Cut(word, "=")
		words[name] = append(words[name], word)
	}
	for name, all := range words {
		i.add(KindCmdline, name, strings.Join(all, " "))
	}
}

// addPackages reads the SBOM beside the image, if it is there.
func (i Inventory) addPackages(path, rootHash string) error {
	text, err := atomicfile.Read(path, lock.MaxSBOM)
	if errors.Is(err, fs.ErrNotExist) {
		i.Missing[KindPackage] = path + " is not there"
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
		i.add(KindPackage, l.Name, strings.TrimPrefix(i.Found[KindPackage][l.Name]+" "+l.Version, " "))
	}
	return nil
}

// addRoot looks into the root file system.
func (o listed) addRoot(ctx context.Context, walk Walk) error {
	if err := walk(ctx, io.NewSectionReader(o.disk.Root, 0, o.disk.Root.Size()), o.addFile); err != nil {
		return fmt.Errorf("%s: %w", o.Name(), err)
	}
	if len(o.Found[KindConfig]) == 0 {
		o.Missing[KindConfig] = o.Name() + " has none beside its modules"
	}
	return nil
}

var (
	unitFile   = regexp.MustCompile(`^/(usr/lib|etc)/systemd/system/`)
	configFile = regexp.MustCompile(`^/usr/lib/modules/[^/]+/config$`)
)

// addFile adds one file of the root file system.
func (i Inventory) addFile(name, file string, info fs.FileInfo) error {
	value := info.Mode().String()
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if err != nil {
			return err
		}
		value = "-> " + target
	case info.Mode().IsRegular():
		digest, err := Digest(file)
		if err != nil {
			return err
		}
		value = fmt.Sprintf("%s %d bytes, sha256 %v", info.Mode(), info.Size(), digest)
	}
	kind := KindFile
	if unitFile.MatchString(name) {
		kind = KindUnit
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

func (i Inventory) addConfig(file string) error {
	text, err := atomicfile.Read(file, maxConfig)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		if m := configLine.FindStringSubmatch(strings.TrimSpace(string(line))); m != nil {
			if m[3] != "" {
				m[1], m[2] = m[3], "n"
			}
			i.add(KindConfig, m[1], m[2])
		}
	}
	return nil
}
