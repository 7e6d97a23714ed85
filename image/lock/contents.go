package lock

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
	"time"
)

// Contents names the image that a lock became.
type Contents struct {
	// ID and Version are IMAGE_ID and IMAGE_VERSION of os-release(5).
	ID, Version string
	// RootHash is the image's dm-verity root hash in hex.
	RootHash string
	// Modules are what is compiled into its Go programs beside Go itself, each once, in the order in which SBOMs list them.
	Modules []Module
}

const rootHashComment = "dm-verity root hash "

func (c Contents) comment() string { return rootHashComment + c.RootHash }

// date is the date of an SBOM.
func (l Lock) date() string { return time.Unix(l.Time, 0).UTC().Format(time.RFC3339) }

// component is one thing in an image, as every SBOM lists it. Only name, version and purl are always known.
type component struct {
	name, version, purl string
	supplier            string
	file, sha256        string // of a package
	source, comment     string
}

// id is made of the package URL, because few characters are allowed where SBOMs want identifiers.
func (c component) id() string {
	sum := sha256.Sum256([]byte(c.purl))
	return hex.EncodeToString(sum[:8])
}

// stubPackage is the one package of set Tools that leaves bytes in an image: the boot stub.
const stubPackage = "systemd-boot-efi"

// contained lists what is in an image: the packages of set Root and the boot stub's in the lock's order, Go, and the modules.
func (l Lock) contained(c Contents) []component {
	var all []component
	for _, p := range l.Packages {
		if p.Set == Root || p.Set == Tools && p.Name == stubPackage {
			all = append(all, p.component())
		}
	}
	return append(all, l.compiled(c.Modules)...)
}

// Stdlib is the locked Go's own library, as a module that no go.sum has.
func (l Lock) Stdlib() Module { return Module{Path: "stdlib", Version: strings.TrimPrefix(l.Go, "go")} }

// compiled lists what is in programs of Go: its own library, and modules.
func (l Lock) compiled(modules []Module) []component {
	all := []component{l.Stdlib().component("compiled by " + l.Go)}
	for _, m := range modules {
		all = append(all, m.component("go.sum "+m.Sum))
	}
	return all
}

func (p Package) component() component {
	c := component{
		name: p.Name, version: p.Version, purl: p.PURL(),
		supplier: "Debian", file: path.Base(p.Path), sha256: p.SHA256, source: p.Path,
	}
	if p.Set == Tools {
		c.comment = "only its boot stub is in the image"
	}
	return c
}

func (m Module) component(source string) component {
	return component{name: m.Path, version: m.Version, purl: m.PURL(), source: source}
}
