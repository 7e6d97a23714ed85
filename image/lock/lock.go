// Package lock is the locked set of packages that an image is built from: its file format, what moved between two of them, and
// whether a tree holds exactly one.
package lock

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of a lock file; Parse refuses more.
const (
	MaxSize     = 1 << 20 // bytes
	MaxPackages = 4096
	MaxModules  = 1024
)

// Set tells what a package is for.
type Set string

// The sets that every lock has.
const (
	Root  Set = "root"  // installed in the image
	Build Set = "build" // what build scripts of a definition folder need beyond Root; none of it is in the image
	Tools Set = "tools" // runs the build; no byte of it is in the image except the boot stub
)

// added and dropped are the sets of one mkosi profile: what its image holds beyond Root, and what of Root it does without.
func added(profile string) Set   { return Root + "+" + Set(profile) }
func dropped(profile string) Set { return Root + "-" + Set(profile) }

// Lock says exactly what an image is built from. Its zero value holds nothing.
type Lock struct {
	// Time is the Unix time in seconds of the newest archive index that was read; every date in an image is this one.
	Time int64
	// Suites are the archive indexes that the packages were chosen from.
	Suites []Suite
	// Go is the release of Go that compiles the image's programs, as GOVERSION spells it ("go1.26.8").
	Go string
	// Kubernetes names what the Kubernetes bundle is compiled from.
	Kubernetes Kubernetes
	// Packages are sorted by set, then name, then architecture.
	Packages []Package
}

// Suite is one signed index of an archive.
type Suite struct {
	// Archive is the first element of every Path that it lists ("debian"), Name the suite ("trixie-updates").
	Archive, Name string
	// InRelease is the SHA-256 of the signed index file, in hex.
	InRelease string
	// Date is when the archive says that it made the index, in seconds of Unix time: no later index that is locked is older.
	Date int64
}

// String names the index and its date, as reports show it.
func (s Suite) String() string {
	return s.Archive + " " + s.Name + " of " + time.Unix(s.Date, 0).UTC().Format("2006-01-02 15:04:05 UTC")
}

// Kubernetes is the source of the Kubernetes bundle, held by Go's own checksums.
type Kubernetes struct {
	// Sums are the go.sum files that pin every module, sorted by folder.
	Sums []GoSum
	// Modules are the modules that the bundle asks for by itself, sorted by path and version.
	Modules []Module
}

// GoSum is one go.sum file.
type GoSum struct {
	// Dir is its folder in the checkout, with slashes.
	Dir string
	// SHA256 is the file's hash in hex.
	SHA256 string
}

// Module is a Go module at a version.
type Module struct {
	Path, Version string
	// Sum is the h1: line of go.sum, which hashes the module's content.
	Sum string
}

// Package is one Debian package file.
type Package struct {
	Set                 Set
	Name, Version, Arch string
	// SHA256 (hex) and Size (bytes) decide about the file's content, wherever it is taken from.
	SHA256 string
	Size   int64
	// Path is where archives keep the file, with the archive's name before it: "debian/pool/main/b/bash/bash_5.2.37-2_amd64.deb".
	Path string
}

// File returns the package's file name without what archives escape in it: "name_version_arch.deb", the epoch left out.
func (p Package) File() string {
	_, version, epoch := strings.Cut(p.Version, ":")
	if !epoch {
		version = p.Version
	}
	return p.Name + "_" + version + "_" + p.Arch + ".deb"
}

// ID returns "name version arch", as messages show a package.
func (p Package) ID() string { return p.Name + " " + p.Version + " " + p.Arch }

// Of returns the packages of one set.
func (l Lock) Of(s Set) []Package {
	var out []Package
	for _, p := range l.Packages {
		if p.Set == s {
			out = append(out, p)
		}
	}
	return out
}

// For returns the lock of an image with the given profiles: its set Root is what is installed in that image, and it has no profile's set.
func (l Lock) For(profiles ...string) Lock {
	gone, seen := map[string]bool{}, map[string]bool{}
	for _, p := range l.Packages {
		gone[p.ID()] = gone[p.ID()] || slices.ContainsFunc(profiles, func(name string) bool { return p.Set == dropped(name) })
	}
	packages := l.Packages
	l.Packages = nil
	for _, p := range packages {
		if slices.ContainsFunc(profiles, func(name string) bool { return p.Set == added(name) }) {
			p.Set = Root
		}
		if p.Set == Tools || p.Set == Build || p.Set == Root && !gone[p.ID()] && !seen[p.ID()] {
			l.Packages = append(l.Packages, p)
			seen[p.ID()] = seen[p.ID()] || p.Set == Root
		}
	}
	l.Sort()
	return l
}

// Differences returns packages as the sets of a profile: what they have beyond base, and what of base they lack.
func Differences(profile string, base, packages []Package) []Package {
	return append(Beyond(packages, base, added(profile)), Beyond(base, packages, dropped(profile))...)
}

// Beyond returns, as a set of its own, what of packages is not in others.
func Beyond(packages, others []Package, set Set) []Package {
	have := map[string]bool{}
	for _, p := range others {
		have[p.ID()] = true
	}
	var out []Package
	for _, p := range packages {
		if !have[p.ID()] {
			p.Set = set
			out = append(out, p)
		}
	}
	return out
}

// Digest condenses the content of one set: two locks with equal digests install the same bytes.
func (l Lock) Digest(s Set) string {
	h := sha256.New()
	for _, p := range l.Of(s) {
		fmt.Fprintf(h, "%s %s\n", p.Name, p.SHA256)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Sort brings l into the order in which it is written.
func (l *Lock) Sort() {
	slices.SortFunc(l.Suites, func(a, b Suite) int { return cmp.Or(cmp.Compare(a.Archive, b.Archive), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(l.Kubernetes.Sums, func(a, b GoSum) int { return cmp.Compare(a.Dir, b.Dir) })
	slices.SortFunc(l.Kubernetes.Modules, func(a, b Module) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Version, b.Version))
	})
	slices.SortFunc(l.Packages, comparePackages)
}

func comparePackages(a, b Package) int {
	return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Arch, b.Arch))
}
